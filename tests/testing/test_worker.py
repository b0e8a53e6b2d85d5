"""A worker driven by hand: the same as `bide worker`, at the pace of a test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.testing import ManualWorker, ScratchStore
from tests.testing.handlers import both, register


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
        with pytest.raises(Exception, match="the body is no Order"):
            worker.run_due()
    store.assert_dead("q", error="the body is no Order")


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
