"""Batch handlers: one call for many messages."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import bide
from bide import InvalidArgument
from bide.consuming.consumer import STUCK
from bide.testing import ManualWorker, ScratchStore
from bide.worker.process.runner import Runner
from tests.system.worker.worker_app import Scene, until


@dataclass
class Mail:
    to: str


@pytest.fixture
def store() -> Iterator[ScratchStore]:
    with ScratchStore() as store:
        yield store


@pytest.fixture
def app() -> bide.App:
    return bide.App("memory://batches")


def put(store: ScratchStore, count: int, **options: Any) -> bide.Queue:
    mails = store.queue("mails")
    mails.put_many([bide.NewMessage({"to": f"{n}"}, id=f"{n}", **options) for n in range(count)])
    return mails


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_one_call_handles_many(app: bide.App, store: ScratchStore, is_async: bool) -> None:
    calls: list[list[str]] = []

    def note(mails: list[Mail]) -> None:
        calls.append(sorted(mail.to for mail in mails))

    async def note_async(mails: list[Mail]) -> None:
        note(mails)

    app.handler("mails", batch=4, linger="10ms")(note_async if is_async else note)
    mails = put(store, 9)
    with ManualWorker(app, store) as worker:
        handled = worker.run_due()
    assert calls == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8"]]
    assert [one.outcome for one in handled] == ["acked"] * 9
    assert mails.counts().flow.acked == 9
    assert mails.audit()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_a_message_that_fails_costs_its_neighbours_no_attempt(
    app: bide.App, store: ScratchStore, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[list[str]] = []

    def send(mails: list[Mail]) -> None:
        calls.append([mail.to for mail in mails])
        if "2" in calls[-1]:
            raise ValueError("no such address")

    async def send_async(mails: list[Mail]) -> None:
        send(mails)

    retry = bide.Backoff(attempts=2, first="10s", jitter=0)
    app.handler("mails", batch=4, linger="10ms", retry=retry)(send_async if is_async else send)
    mails = put(store, 4, attempts=2)
    with ManualWorker(app, store, errors="collect") as worker:
        worker.advance("1m")
        outcomes = [(one.id, one.outcome) for one in worker.handled]
    assert outcomes[:4] == [(id, "released") for id in "0123"]
    assert calls[1:] == [["0"], ["1"], ["2"], ["3"], ["2"]]
    assert mails.counts().flow.acked == 3
    (dead,) = mails.dead()
    assert (dead.id, dead.attempt) == ("2", 2)
    reasons = [failure.reason.splitlines()[0] for failure in dead.failures]
    assert reasons == [
        "batch failed: ValueError: no such address",
        "ValueError: no such address",
        "ValueError: no such address",
    ]
    assert [failure.attempt for failure in dead.failures] == [0, 1, 2]
    said = [r.getMessage() for r in caplog.records if "a batch of 4 failed" in r.getMessage()]
    assert len(said) == 1


def test_outcomes_may_be_given_one_by_one(app: bide.App, store: ScratchStore) -> None:
    store.queue("mails").configure(result_ttl="1h")

    @app.handler("mails", batch=5, linger="10ms")
    async def send(mails: list[Mail]) -> list[Any]:
        return [
            {"sent": True},
            None,
            bide.Retry("busy", delay="1h"),
            bide.Bury("no such address"),
            ValueError("odd"),
        ]

    mails = put(store, 5)
    with ManualWorker(app, store, errors="collect") as worker:
        outcomes = {one.id: one.outcome for one in worker.run_due()}
    assert outcomes == {"0": "acked", "1": "acked", "2": "retried", "3": "dead", "4": "retried"}
    assert mails.result("0") == {"sent": True}
    assert mails.result("1") is None


@pytest.mark.parametrize("returned", [5, [None], ["a"] * 3], ids=str)
def test_a_wrong_answer_fails(app: bide.App, store: ScratchStore, returned: Any) -> None:
    calls: list[int] = []

    @app.handler("mails", batch=2, linger="10ms")
    async def send(mails: list[Mail]) -> Any:
        calls.append(len(mails))
        return returned if len(mails) == 2 else None

    mails = put(store, 2)
    with ManualWorker(app, store, errors="collect") as worker:
        worker.run_due()
    assert calls == [2, 1, 1]
    assert mails.counts().flow.acked == 2


def test_it_may_take_the_deliveries(app: bide.App, store: ScratchStore) -> None:
    seen: list[tuple[str, str]] = []

    @app.handler("mails", batch=3, linger="10ms")
    def send(mails: list[Mail], deliveries: list[bide.Delivery]) -> None:
        seen.extend((mail.to, held.id) for mail, held in zip(mails, deliveries, strict=True))

    put(store, 3)
    with ManualWorker(app, store) as worker:
        worker.run_due()
    assert seen == [("0", "0"), ("1", "1"), ("2", "2")]


def test_what_does_not_fit_is_no_part_of_a_batch(app: bide.App, store: ScratchStore) -> None:
    calls: list[int] = []

    @app.handler("mails", batch=3, linger="10ms")
    async def send(mails: list[Mail]) -> None:
        calls.append(len(mails))

    store.queue("mails").put({"from": 1}, id="wrong")
    put(store, 2)
    with ManualWorker(app, store, errors="collect") as worker:
        outcomes = {one.id: one.outcome for one in worker.run_due()}
    assert outcomes == {"wrong": "dead", "0": "acked", "1": "acked"}
    assert calls == [2]


def test_middleware_runs_around_each_delivery(app: bide.App, store: ScratchStore) -> None:
    seen: list[str] = []

    @app.middleware
    async def note(delivery: bide.Handling, go_on: Any) -> None:
        seen.append(delivery.id)
        await go_on()

    app.handler("mails", batch=3, linger="10ms")(lambda mails: None)
    put(store, 3)
    with ManualWorker(app, store) as worker:
        worker.run_due()
    assert sorted(seen) == ["0", "1", "2"]


def test_a_batch_that_takes_too_long_is_released(app: bide.App, store: ScratchStore) -> None:
    calls: list[int] = []

    @app.handler("mails", batch=2, linger="10ms", timeout="50ms")
    async def send(mails: list[Mail]) -> None:
        calls.append(len(mails))
        if len(mails) == 2:
            await asyncio.Event().wait()

    mails = put(store, 2)
    with ManualWorker(app, store, errors="collect") as worker:
        outcomes = [one.outcome for one in worker.run_due()]
    assert outcomes == ["released", "released", "acked", "acked"]
    assert calls == [2, 1, 1]
    assert mails.counts().flow.acked == 2


@pytest.mark.parametrize("failures", [0, 1], ids=["in a batch", "alone"])
def test_an_async_batch_that_swallows_its_cancellation_is_given_up(
    scene: Scene, failures: int
) -> None:
    async def story() -> None:
        interrupted, over = asyncio.Event(), asyncio.Event()
        fails = failures == 1

        @scene.app.handler(
            "q", batch=2, linger=0, timeout="1ms", concurrency=2, retry=bide.Backoff(jitter=0)
        )
        async def handle(bodies: list[str]) -> None:
            nonlocal fails
            if fails:
                fails = False
                raise ValueError("its batch is released, and then each is alone")
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    interrupted.set()

        await scene.put("a", "b")
        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            await interrupted.wait()
            assert runner.stuck() == []
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.retried == 2)
            assert all(handling.overran for handling in consumer.running)
            scene.clock.advance(STUCK)
            await until(lambda: runner.stuck() == ["q"])
            over.set()
            await until(lambda: runner.stuck() == [])
        (text,) = {failure.reason for failure in (await scene.find("q-0")).failures[-1:]}
        assert text.endswith("took longer than its timeout of 1ms")

    scene.play(story())


def test_a_worker_that_stops_releases_what_has_not_ended(scene: Scene) -> None:
    async def story() -> None:
        ended: list[str] = []
        began = asyncio.Event()

        @scene.app.handler("q", batch=2, linger="10ms")
        async def handle(bodies: list[str]) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        await scene.put("a", "b")
        async with scene.at_work(grace=0):
            await began.wait()
        assert ended == ["cancelled"]
        counts = await scene.counts()
        assert (counts.sizes.ready, counts.flow.retried) == (2, 0)

    scene.play(story())


def test_a_full_batch_waits_for_nothing(scene: Scene) -> None:
    async def story() -> None:
        calls: list[int] = []

        @scene.app.handler("q", batch=3, linger="1m")
        async def handle(bodies: list[str]) -> None:
            calls.append(len(bodies))

        await scene.put("a", "b", "c")
        async with scene.at_work():
            await scene.acked(3)
        assert calls == [3]

    scene.play(story())


def test_a_message_whose_lease_was_lost_leaves_the_others_in_peace(scene: Scene) -> None:
    gate = threading.Event()

    async def story() -> None:
        calls: list[list[str]] = []

        @scene.app.handler("q", batch=2, linger="10ms", lease="30s")
        def handle(bodies: list[str]) -> None:
            calls.append(sorted(bodies))
            if len(bodies) == 2:
                assert gate.wait(60)

        await scene.put("a", id="a")
        await scene.put("b", id="b")
        async with scene.at_work() as runner:
            await until(lambda: len(calls) == 1)
            running = runner.consumers["q"].running
            (lost,) = [handling for handling in running if handling.id == "a"]
            lost.lose()
            gate.set()
            await scene.acked(1)
        assert calls == [["a", "b"]]
        assert [(await scene.find("a")).state, (await scene.counts()).flow.acked] == ["leased", 1]

    scene.play(story())


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize(
    "error",
    [SystemExit(1), StopIteration(), asyncio.CancelledError(), KeyboardInterrupt(), Mute()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_batch_raises_releases_it(
    app: bide.App, store: ScratchStore, is_async: bool, error: BaseException
) -> None:
    calls: list[int] = []

    def send(mails: list[Mail]) -> None:
        calls.append(len(mails))
        if len(mails) > 1:
            raise error

    async def send_async(mails: list[Mail]) -> None:
        send(mails)

    app.handler("mails", batch=3, linger="10ms")(send_async if is_async else send)
    put(store, 3)
    with ManualWorker(app, store, errors="collect") as worker:
        outcomes = [handled.outcome for handled in worker.run_due()]
    assert outcomes == ["released"] * 3 + ["acked"] * 3
    assert calls == [3, 1, 1, 1]


def test_any_exception_can_be_an_outcome(app: bide.App, store: ScratchStore) -> None:
    @app.handler("mails", batch=3, linger="10ms")
    async def send(mails: list[Mail]) -> list[Any]:
        return [StopIteration(), SystemExit(1), None]

    put(store, 3)
    with ManualWorker(app, store, errors="collect") as worker:
        outcomes = {handled.id: handled.outcome for handled in worker.run_due()}
    assert outcomes == {"0": "retried", "1": "retried", "2": "acked"}


def test_a_message_that_has_failed_breaks_no_other_batch(
    app: bide.App, store: ScratchStore
) -> None:
    calls: list[list[str]] = []

    @app.handler("mails", batch=3, linger="10ms", retry=bide.Backoff(first="10s", jitter=0))
    def send(mails: list[Mail]) -> None:
        calls.append([mail.to for mail in mails])
        if "0" in calls[-1]:
            raise ValueError("no such address")

    mails = put(store, 3)
    with ManualWorker(app, store, errors="collect") as worker:
        worker.run_due()
        mails.put_many([bide.NewMessage({"to": f"{n}"}, delay=10) for n in range(3, 5)])
        worker.advance("10s")
    assert calls[:4] == [["0", "1", "2"], ["0"], ["1"], ["2"]]
    assert sorted(calls[4:]) == [["0"], ["3", "4"]]


def test_a_plain_batch_that_does_not_end_holds_up_nobody(scene: Scene) -> None:
    gate, began = threading.Event(), threading.Event()

    async def story() -> None:
        @scene.app.handler("q", batch=2, linger="10ms")
        def handle(bodies: list[str]) -> None:
            began.set()
            gate.wait()

        await scene.put("a", "b")
        async with scene.at_work(grace=0):
            await until(began.is_set)
        assert (await scene.counts()).sizes.ready == 2

    try:
        scene.play(story())  # closing its event loop waits for nothing
    finally:
        gate.set()


def test_a_worker_that_stops_lets_no_batch_wait_for_more(scene: Scene) -> None:
    async def story() -> None:
        calls: list[list[str]] = []

        @scene.app.handler("q", batch=10, linger="1m")
        async def handle(bodies: list[str]) -> None:
            calls.append(bodies)

        await scene.put("a")
        runner = Runner(scene.app, lane=scene.lane)
        running = asyncio.create_task(runner.run())
        await until(lambda: "q" in runner.consumers and runner.consumers["q"].running)
        runner.stop()
        await asyncio.wait_for(running, 30)  # less than the linger
        assert calls == [["a"]]
        assert (await scene.counts()).flow.acked == 1

    scene.play(story())


def test_a_plain_batch_is_told_when_the_worker_stops(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = threading.Event(), threading.Event()

    async def story() -> None:
        @scene.app.handler("q", batch=2, linger="10ms")
        def handle(bodies: list[str], deliveries: list[bide.Handling]) -> None:
            began.set()
            if all(delivery.lost.wait(60) for delivery in deliveries):
                ended.set()

        await scene.put("a", "b")
        async with scene.at_work(grace=0):
            await until(began.is_set)
        await until(ended.is_set)
        assert (await scene.counts()).sizes.ready == 2

    scene.play(story())
    assert "a batch of 2 failed" not in caplog.text


def too_many(bodies: list[str], deliveries: list[bide.Delivery], more: str) -> None: ...


def generates(bodies: list[str]) -> Iterator[None]:
    yield


def one_by_one(body: Mail) -> None: ...


def fine(bodies: list[str]) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (too_many, {}, "a batch handler takes"),
        (lambda: None, {}, "a batch handler takes"),
        (generates, {}, "is a generator"),
        (one_by_one, {}, "annotate body with a list"),
        (fine, {"batch": 1}, "batch=1 must be"),
        (fine, {"batch": 1001}, "batch=1001 must be"),
        (fine, {"linger": "2m"}, "linger='2m' must be between 0 and 1 minute"),
        (fine, {"batch": None, "linger": "1s"}, "has linger= without batch="),
        (fine, {"timeout": "1m"}, "has batch= and timeout=, and is a plain function"),
        (fine, {"still_wanted": fine}, "has batch= and still_wanted="),
        (fine, {"concurrency": 5}, "concurrency=5 is less than batch=10"),
    ],
    ids=range(11),
)
def test_what_a_batch_handler_cannot_be(function: Any, options: Any, text: str) -> None:
    app = bide.App("memory://batches")
    with pytest.raises(InvalidArgument, match=text):
        app.handler("mails", **{"batch": 10, **options})(function)
    assert not app.queue_handlers
