"""A worker driven by hand: the same as bide worker, at the pace of a test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.testing import AsyncManualWorker, ManualWorker, ScratchStore
from tests.unit.testing.handlers import both, register


@both
def test_what_is_due_is_handled_in_order(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    seen: list[Any] = []
    for queue in ("q", "r"):
        register(app, lambda body, _: seen.append(body), queue, is_async=is_async)
    q, r = store.queue("q"), store.queue("r")
    r.put("second", delay=20)
    q.put("third", delay=30)
    q.put("first", delay=10)
    q.put("weighty", delay=30, priority=5)
    q.put("far", delay="1d")
    with ManualWorker(app, store) as worker:
        assert worker.run_due() == []
        store.clock.advance(60)
        done = worker.run_due()
        assert seen == ["weighty", "first", "second", "third"]  # in a backlog the weight decides
        assert [(one.queue, one.body, one.outcome) for one in done[1:3]] == [
            ("q", "first", "acked"),
            ("r", "second", "acked"),
        ]
        assert worker.handled == done
    assert q.audit()


@both
def test_time_passes_from_moment_to_moment(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    start, seen = store.clock.now(), []
    queue = store.queue("q")

    def handle(body: Any, delivery: bide.Delivery) -> None:
        seen.append((body, store.clock.now() - start, delivery.lateness))

    register(app, handle, is_async=is_async)
    queue.put("a", delay="250ms")
    queue.put("b", delay="30m")
    queue.put("c", delay="31m")
    with ManualWorker(app, store) as worker:
        worker.advance("30m")
        assert seen == [("a", 250, 0), ("b", 1_800_000, 0)]
        assert store.clock.now() - start == 1_800_000
        worker.advance_to(datetime.fromtimestamp(start / 1000 + 3600, UTC))
        assert seen[2] == ("c", 1_860_000, 0)
        assert store.clock.now() - start == 3_600_000
        with pytest.raises(bide.InvalidArgument, match="time cannot go back"):
            worker.advance_to(start / 1000)


def test_what_a_handler_puts_is_handled_in_its_turn(app: bide.App, store: ScratchStore) -> None:
    seen: list[Any] = []
    steps = store.queue("steps")

    def step(body: int, _: bide.Delivery) -> None:
        seen.append(body)
        if body < 3:
            steps.put(body + 1, delay=0 if body == 1 else "1h")

    register(app, step, "steps")
    steps.put(1)
    with ManualWorker(app, store) as worker:
        assert len(worker.run_due()) == 2
        worker.advance("1h")
    assert seen == [1, 2, 3]


@both
def test_a_failure_is_tried_again_without_jitter(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    moments: list[int] = []

    def fail(_: Any, delivery: bide.Delivery) -> None:
        moments.append(store.clock.now())
        raise OSError(f"attempt {delivery.attempt}")

    retry = bide.Backoff(attempts=3, first="10s", factor=2, jitter=1)
    register(app, fail, is_async=is_async, retry=retry)
    store.queue("q").put(1, id="one")
    with ManualWorker(app, store, errors="collect") as worker:
        done = worker.advance("1h")
        assert [one.outcome for one in done] == ["retried", "retried", "dead"]
        assert [str(error) for error in worker.errors] == [f"attempt {n}" for n in (1, 2, 3)]
        assert done[0].reason.startswith("OSError: attempt 1\n")
    assert [later - moments[0] for later in moments] == [0, 10_000, 30_000]
    assert len(store.assert_dead("q", id="one", error="attempt 3").failures) == 3


@both
def test_an_error_comes_out_where_the_test_is(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    def fail(body: str, delivery: bide.Delivery) -> None:
        if body == "bad" and delivery.attempt == 1:
            raise KeyError("colour")

    register(app, fail, is_async=is_async)
    queue = store.queue("q")
    queue.put("bad", delay=5, id="bad")
    queue.put("good", delay=6)
    start = store.clock.now()
    with ManualWorker(app, store) as worker:
        with pytest.raises(KeyError, match="colour") as raised:
            worker.advance("1m")
        assert "'bad' of 'q', attempt 1; it will be retried" in raised.value.__notes__[0]
        assert store.clock.now() - start == 5_000
        assert [(one.body, one.attempt) for one in worker.advance("1m")] == [
            ("good", 1),
            ("bad", 2),
        ]


def test_signals_are_no_errors(app: bide.App, store: ScratchStore) -> None:
    signals: dict[str, Exception] = {
        "retry": bide.Retry("closed", delay="5m"),
        "discard": bide.Discard("gone"),
        "bury": bide.Bury("broken"),
    }

    def signal(body: str, delivery: bide.Delivery) -> None:
        if delivery.attempt == 1:
            raise signals[body]

    register(app, signal)
    store.queue("q").put_many(list(signals))
    with ManualWorker(app, store) as worker:
        done = {one.body: one for one in worker.run_due()}
        assert {body: one.outcome for body, one in done.items()} == {
            "retry": "retried",
            "discard": "discarded",
            "bury": "dead",
        }
        assert done["bury"].error is signals["bury"]
        assert worker.errors == []
        assert [one.body for one in worker.advance("5m")] == ["retry"]
    store.assert_dead("q", error="^broken$")


def test_what_is_no_longer_wanted_is_discarded(app: bide.App, store: ScratchStore) -> None:
    seen: list[int] = []
    register(app, lambda body, _: seen.append(body), still_wanted=lambda body: body == 2)
    store.queue("q").put_many([1, 2])
    with ManualWorker(app, store) as worker:
        assert [one.outcome for one in worker.run_due()] == ["discarded", "acked"]
    assert seen == [2]


@dataclass
class Order:
    id: int


def test_a_body_that_does_not_fit_is_an_error(app: bide.App, store: ScratchStore) -> None:
    @app.handler("q")
    def handle(order: Order) -> None: ...

    store.queue("q").put({"id": "x"})
    with ManualWorker(app, store) as worker:
        with pytest.raises(Exception, match="the body does not fit Order"):
            worker.run_due()
    store.assert_dead("q", error="the body does not fit Order")


def test_jobs_run(app: bide.App, store: ScratchStore) -> None:
    ran: list[Any] = []

    @app.job("meetings")
    class Remind(bide.Job):
        meeting: int

        def due(self) -> str:
            return "10m"

        async def run(self) -> None:
            ran.append(self.meeting)

    store.queue("meetings").put_many([Remind(7).message()])
    store.assert_put("meetings", Remind(7), delay="10m", headers={"bide-job": "Remind"})
    with ManualWorker(app, store) as worker:
        worker.advance("10m")
    assert ran == [7]


def test_only_the_queues_named_are_worked_on(app: bide.App, store: ScratchStore) -> None:
    for name in ("q", "r"):
        register(app, lambda *_: None, name)
        store.queue(name).put(name)
    with ManualWorker(app, store, queues=["r"]) as worker:
        assert [one.queue for one in worker.advance("1h")] == ["r"]
    with pytest.raises(bide.InvalidArgument, match="queue 's' has no handler"):
        ManualWorker(app, store, queues=["s"])


def test_a_paused_queue_rests(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    queue = store.queue("q")
    queue.put(1)
    queue.pause()
    with ManualWorker(app, store) as worker:
        assert worker.advance("1h") == []
        queue.resume()
        assert len(worker.run_due()) == 1


def test_a_run_that_was_missed_hides_nothing_that_is_due(
    app: bide.App, store: ScratchStore
) -> None:
    seen: list[Any] = []
    register(app, lambda body, _: seen.append(body))
    queue = store.queue("q")
    queue.put("hourly", repeat=bide.Every("1h", missed="skip"), id="a")
    queue.put("plain", delay="2h")
    with ManualWorker(app, store) as worker:
        store.clock.advance("3h")
        start = store.clock.now()
        worker.advance(0)
        assert sorted(seen) == ["hourly", "plain"]
        assert store.clock.now() == start


def test_a_run_that_dies_is_no_put_of_the_program(app: bide.App, store: ScratchStore) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no")

    register(app, fail)
    store.queue("q").put("x", id="a", repeat=bide.Every("1h"), attempts=1)
    with ManualWorker(app, store, errors="collect") as worker:
        worker.advance("2h")
    assert len(store.dead("q")) == 2
    assert store.assert_put("q", "x", times=1).id == "a"


def test_what_somebody_let_lapse_comes_back(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    queue = store.queue("q")
    queue.put(1)
    queue.claim(lease="1m")
    with ManualWorker(app, store) as worker:
        assert worker.advance("59s") == []
        assert [one.attempt for one in worker.advance("1s")] == [2]


def test_what_is_put_at_a_real_time_is_due_when_the_clock_has_moved_so_far(
    app: bide.App, store: ScratchStore
) -> None:
    register(app, lambda body, _: None, "q", is_async=False)
    store.queue("q").put("a", at=datetime.now(UTC) + timedelta(minutes=10))
    with ManualWorker(app, store) as worker:
        assert worker.advance("9m") == []
        assert [one.body for one in worker.advance("1m")] == ["a"]


@both
def test_middleware_and_lifespan_surround_the_work(store: ScratchStore, is_async: bool) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        told.append("open")
        app.state.pool = asyncio.current_task()
        yield
        assert app.state.pool is asyncio.current_task()
        told.append("close")

    app = bide.App(lifespan=lifespan)
    app.state.given = 1

    @app.middleware
    async def around(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        assert delivery.state.given == 1
        told.append("before")
        await go_on()
        told.append("after")

    register(app, lambda body, _: told.append(body), is_async=is_async)
    store.queue("q").put("handled")
    with ManualWorker(app, store) as worker:
        assert app.clock is store.clock
        assert told == ["open"]
        worker.run_due()
    assert told == ["open", "before", "handled", "after", "close"]
    assert vars(app.state) == {"given": 1}
    assert app.clock is not store.clock


def test_a_lifespan_that_fails_says_so_at_once(store: ScratchStore) -> None:
    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    app = bide.App(lifespan=lifespan)
    register(app, lambda *_: None)
    with pytest.raises(OSError, match="no database"):
        ManualWorker(app, store)


def test_a_lifespan_that_fails_later_ends_the_deliveries(store: ScratchStore) -> None:
    failing = asyncio.Event()

    async def watch() -> None:
        await failing.wait()
        raise OSError("no database")

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            yield

    app = bide.App(lifespan=lifespan)

    @app.handler("q")
    async def handle(body: int) -> None:
        failing.set()
        await asyncio.sleep(0.05)

    store.queue("q").put_many([1, 2])

    async def story() -> None:
        worker = await AsyncManualWorker(app, store).__aenter__()
        with pytest.raises(ExceptionGroup) as caught:
            await worker.run_due()
        assert "no database" in str(caught.value.exceptions[0])
        assert [one.body for one in worker.handled] == [1]
        with pytest.raises(ExceptionGroup):
            await worker.__aexit__()

    asyncio.run(story())


def test_a_wrong_choice_is_refused(app: bide.App, store: ScratchStore) -> None:
    with pytest.raises(bide.InvalidArgument, match="app has no handlers"):
        ManualWorker(app, store)
    register(app, lambda *_: None)
    wrong: Any = "ignore"
    with pytest.raises(bide.InvalidArgument, match=r'errors=.ignore. must be "raise" or "collect"'):
        ManualWorker(app, store, errors=wrong)


def test_closing_twice_does_nothing(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    worker = ManualWorker(app, store)
    worker.close()
    worker.close()
    with pytest.raises(bide.Closed, match="this worker was closed"):
        worker.run_due()


def test_on_an_event_loop_it_names_the_other(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)

    async def story() -> None:
        with ManualWorker(app, store):
            pass

    with pytest.raises(bide.WrongContext, match="bide_async_worker"):
        asyncio.run(story())


@both
def test_the_async_form_does_the_same(app: bide.App, store: ScratchStore, is_async: bool) -> None:
    seen: list[Any] = []

    def handle(body: Any, delivery: bide.Delivery) -> None:
        seen.append(body)
        if body == "bad":
            raise ValueError("bad")

    register(app, handle, is_async=is_async)

    async def story() -> None:
        async with bide.AsyncQueue("q") as queue, AsyncManualWorker(app, store) as worker:
            await queue.put("good", delay="30m")
            assert await worker.run_due() == []
            assert [one.outcome for one in await worker.advance("30m")] == ["acked"]
            await queue.put("bad", id="bad")
            with pytest.raises(ValueError, match="bad"):
                await worker.run_due()
            assert len(worker.errors) == 1
            store.assert_put("q", "bad")  # assertions do not mind the loop
            with pytest.raises(ValueError, match="bad"):
                await worker.advance_to(store.clock.now() / 1000 + 60)

    asyncio.run(story())
    assert seen == ["good", "bad", "bad"]


def test_two_calls_at_a_time_make_one_delivery_after_the_other(
    app: bide.App, store: ScratchStore
) -> None:
    register(app, lambda *_: None)
    store.queue("q").put_many(range(6))

    async def story() -> None:
        async with AsyncManualWorker(app, store) as worker:
            await asyncio.gather(worker.run_due(), worker.run_due())
            assert [one.body for one in worker.handled] == [*range(6)]
            assert {one.outcome for one in worker.handled} == {"acked"}

    asyncio.run(story())


def test_the_lifespan_lasts_until_the_calls_have_ended(store: ScratchStore) -> None:
    told: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        yield
        told.append("close")

    app = bide.App(lifespan=lifespan)

    @app.handler("q")
    async def handle(body: Any) -> None:
        await asyncio.sleep(0.01)
        told.append(body)

    store.queue("q").put_many(["one", "two"])

    async def story() -> None:
        async with AsyncManualWorker(app, store) as worker:
            calls = [asyncio.create_task(worker.run_due()) for _ in range(2)]
            await asyncio.sleep(0)
        first, second = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, list)
        assert isinstance(second, bide.Closed)

    asyncio.run(story())
    assert told == ["one", "two", "close"]


def test_a_cancelled_call_leaves_its_message_due(app: bide.App, store: ScratchStore) -> None:
    begun = asyncio.Event()

    @app.handler("q")
    async def handle(body: int) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)

    store.queue("q").put(1)

    async def story() -> None:
        async with AsyncManualWorker(app, store) as worker:
            call = asyncio.create_task(worker.run_due())
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert [one.attempt for one in await worker.run_due()] == [1]

    asyncio.run(story())


def test_the_async_form_is_to_be_entered(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)

    async def story() -> None:
        with pytest.raises(bide.Closed, match="async with"):
            await AsyncManualWorker(app, store).run_due()

    asyncio.run(story())


def test_both_forms_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(ManualWorker) - {"close", "app", "store", "handled"} == public(AsyncManualWorker)


def test_a_source_fills_the_queue_while_time_passes(store: ScratchStore) -> None:
    app = bide.App()
    start = store.clock.now() / 1000
    orders = {f"o{number}": start + number * 600 for number in range(1, 4)}
    expired: list[tuple[str, float]] = []

    @app.source("orders", every="1m", window="10m")
    def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
        for id, due in orders.items():
            if after.timestamp() <= due < before.timestamp():
                yield bide.NewMessage(id, at=due, id=id)

    @app.handler("orders")
    def expire(order: str) -> None:
        expired.append((order, store.clock.now() / 1000 - start))

    with ManualWorker(app, store) as worker:
        worker.run_due()
        assert expired == []
        worker.advance("20m")
        assert expired == [("o1", 600), ("o2", 1200)]
        asked = [one for one in worker.handled if one.queue == "bide:source:orders:unpaid"]
        assert len(asked) == 21


def test_what_a_source_raises_comes_out(store: ScratchStore) -> None:
    app = bide.App()

    @app.source("orders", every="1m", window="10m")
    def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
        raise OSError("the database is down")

    with ManualWorker(app, store) as worker:
        with pytest.raises(OSError, match="the database is down"):
            worker.run_due()


def test_a_schedule_ticks_while_time_passes(store: ScratchStore) -> None:
    app = bide.App()
    seen: list[str] = []

    @app.schedule("reports", cron="0 9 * * MON-FRI", timezone="Asia/Shanghai")
    async def report(tick: bide.Tick) -> None:
        assert store.clock.now() == tick.due.timestamp() * 1000
        seen.append(f"{tick.due:%a %H:%M}")

    with ManualWorker(app, store) as worker:
        worker.advance("7d")
    assert sorted(seen) == ["Fri 09:00", "Mon 09:00", "Thu 09:00", "Tue 09:00", "Wed 09:00"]


def test_a_handler_that_lets_time_pass_runs_out_of_it(app: bide.App, store: ScratchStore) -> None:
    @app.handler("q", timeout="30s")
    async def slow(body: int) -> None:
        store.clock.advance(31)
        await asyncio.sleep(60)

    store.queue("q").put(1)
    with ManualWorker(app, store) as worker:
        with pytest.raises(TimeoutError, match="took longer than its timeout of 30s"):
            worker.run_due()


def test_a_plain_handler_runs_out_of_time_too(app: bide.App, store: ScratchStore) -> None:
    @app.handler("q", timeout="30s")
    def slow(body: int, delivery: bide.Handling) -> None:
        store.clock.advance(31)
        assert delivery.lost.wait(60)

    store.queue("q").put(1)
    with ManualWorker(app, store, errors="collect") as worker:
        assert [one.outcome for one in worker.run_due()] == ["retried"]
        assert "took longer than its timeout" in str(worker.errors[0])


@both
def test_a_handler_that_never_ends_is_named(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    release = threading.Event()

    async def on_loop(body: int) -> None:
        await asyncio.Event().wait()

    def in_thread(body: int) -> None:
        release.wait()

    app.handler("q")(on_loop if is_async else in_thread)
    store.queue("q").put(1, id="stuck")
    with ManualWorker(app, store, patience=0.05) as worker:
        with pytest.raises(TimeoutError, match=r"on_loop|in_thread.*'stuck'.*within 0\.05 s"):
            worker.run_due()
    release.set()  # not before the worker has ended: it waits for no handler


def test_deliveries_without_end_are_an_error(app: bide.App, store: ScratchStore) -> None:
    queue = store.queue("q")

    def again(body: int, _: bide.Delivery) -> None:
        queue.put(body)

    register(app, again)
    queue.put(1)
    with ManualWorker(app, store) as worker:
        with pytest.raises(RuntimeError, match="more than limit=50 deliveries were made"):
            worker.run_due(limit=50)
        with pytest.raises(RuntimeError, match="more than limit=50 deliveries were made"):
            worker.advance("1h", limit=50)


def test_as_many_deliveries_as_the_limit_are_allowed(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    store.queue("q").put_many(range(3))
    with ManualWorker(app, store) as worker:
        assert len(worker.run_due(limit=3)) == 3


def test_deliveries_at_many_moments_are_not_too_many(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    store.queue("q").put_many([bide.NewMessage(n, delay=n) for n in range(20)])
    with ManualWorker(app, store) as worker:
        assert len(worker.advance("1m", limit=5)) == 20


@both
def test_a_handler_with_a_transaction_is_acked_without_the_database(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    """Where queues lead to a store of the test, `within=` is ignored: the ack is done at once."""
    ends: list[str] = []

    class Transaction:
        def __enter__(self) -> str:
            return "connection"

        def __exit__(self, kind: object, error: object, trace: object) -> None:
            ends.append("rolled back" if kind else "committed")

        async def __aenter__(self) -> str:
            return "connection"

        async def __aexit__(self, *error: Any) -> None:
            self.__exit__(*error)

    def work(body: str, within: str) -> None:
        assert within == "connection"
        if body == "bad":
            raise bide.Bury("no")

    async def work_on_loop(body: str, within: str) -> None:
        work(body, within)

    app.handler("q", within=Transaction)(work_on_loop if is_async else work)
    queue = store.queue("q")
    with ManualWorker(app, store) as worker:
        queue.put("good")
        queue.put("bad")
        done = worker.run_due()
    assert [one.outcome for one in done] == ["acked", "dead"]
    assert ends == ["committed", "rolled back"]
    assert queue.counts().flow.acked == 1
