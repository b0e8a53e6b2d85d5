"""What is extended and when, and what happens to those who lose their lease or their time."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.consuming.consumer import STUCK
from bide.model.commands import Ack, Cancel, Extend, Release
from tests.effort import one_in
from tests.system.worker.processes import children, log, wait_for, worker
from tests.system.worker.worker_app import PATIENCE, Scene, entered, more, until

HOUR = 3_600


async def beats(scene: Scene, count: int, seconds: float) -> None:
    """Let time pass in steps; after each the worker has done what it does at that time."""
    for _ in range(count):
        extended = more(lambda: len(scene.sent(Extend)))
        await scene.pass_time(extended, seconds / 20)


def test_one_extend_a_beat_for_everything_that_runs(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", lease="30s")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(*range(10))
        async with scene.at_work() as runner:
            await until(lambda: len(runner.consumers["q"].running) == 10)
            await beats(scene, 12, 10)
            assert (await scene.counts()).flow.lapsed == 0
            gate.set()
            await scene.acked(10)
        extends = scene.sent(Extend)
        assert len(extends) == 12
        assert {command.weight for command in extends} == {10}
        assert {command.lease for command in extends} == {30_000}

    scene.play(story())


def test_what_ends_within_a_beat_is_never_extended(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", lease="30s")
        async def handle(_: Any) -> None: ...

        async with scene.at_work():
            for number in range(4):
                await scene.put(number, id=f"m{number}")
                await scene.acked(number + 1)
                scene.clock.advance(10)
        assert scene.sent(Extend) == []

    scene.play(story())


def take_away(scene: Scene) -> None:
    """Let all leases be over for the store, while the worker believes in them; then a beat."""
    scene.clock.set_wall(scene.clock.now() + 60_000)
    scene.clock.advance(10)


def test_an_async_handler_whose_lease_was_lost_is_cancelled(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[str] = []

    async def story() -> None:
        @scene.app.handler("q", lease="30s", concurrency=1)
        async def handle(delivery: bide.Handling) -> None:
            if delivery.attempt == 2:
                return
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                assert delivery.lost.is_set()
                raise

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.consumers["q"].running)
            (one,) = runner.consumers["q"].running
            await until(lambda: entered(one))
            take_away(scene)
            await until(lambda: ends)
            await scene.acked(1)
        found = await scene.counts()
        assert found.flow.lapsed == 1

    scene.play(story())
    assert "the lease was lost while" in caplog.text


def test_a_plain_handler_whose_lease_was_lost_is_told(scene: Scene) -> None:
    begun, told = threading.Event(), threading.Event()

    async def story() -> None:
        def handle(delivery: bide.Handling) -> None:
            begun.set()
            if delivery.attempt == 1:
                assert delivery.lost.wait(PATIENCE)
                told.set()

        scene.app.handler("q", lease="30s", concurrency=1)(handle)
        await scene.put(1)
        async with scene.at_work():
            await until(begun.is_set)
            take_away(scene)
            await scene.acked(1)
            assert told.is_set()
        assert (await scene.counts()).flow.lapsed == 1

    scene.play(story())


def test_what_ends_after_its_lease_was_lost_is_not_acked(scene: Scene) -> None:
    async def story() -> None:
        release = threading.Event()

        def handle(delivery: bide.Handling) -> None:
            if delivery.attempt == 1:
                release.wait(PATIENCE)

        scene.app.handler("q", lease="30s", concurrency=1)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.consumers["q"].running)
            (one,) = runner.consumers["q"].running
            scene.clock.advance(31)
            await until(lambda: one.outcome_ignored)
            release.set()
            await scene.acked(1)
        assert len(scene.sent(Ack)) == 1
        assert (await scene.counts()).flow.lapsed == 1

    scene.play(story())


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wall_clock_that_jumps_loses_nothing(scene: Scene, hours: int) -> None:
    """Forward, all leases are over at once; backward, they last longer. Work goes on either way."""
    handled: list[Any] = []

    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", lease="30s")
        async def handle(body: Any) -> None:
            handled.append(body)
            await gate.wait()

        await scene.put("running")
        async with scene.at_work():
            await until(lambda: handled)
            await scene.put("waiting", id="w", delay=20_000)
            scene.clock.set_wall(scene.clock.now() + hours * HOUR * 1000)
            scene.clock.advance(10)
            gate.set()
            if hours < 0:
                await scene.acked(1)
                scene.clock.advance(HOUR)
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 2, 1)
        counts = await scene.counts()
        assert counts.sizes.total == 0
        assert counts.flow.lapsed == (1 if hours > 0 else 0)

    scene.play(story())


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_a_message_that_was_released_elsewhere_stops_its_run_here_first(
    scene: Scene, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[str] = []
    runs = 0

    def begin() -> bool:
        nonlocal runs
        runs += 1
        events.append(f"begin {runs}")
        return runs == 1

    async def story() -> None:
        if is_async:

            @scene.app.handler("q", lease="30s")
            async def handle(_: Any) -> None:
                if begin():
                    try:
                        await asyncio.Event().wait()
                    finally:
                        events.append("end 1")
        else:

            @scene.app.handler("q", lease="30s")
            def handle_plainly(_: Any, delivery: bide.Delivery) -> None:
                if begin():
                    assert isinstance(delivery, bide.Handling)
                    assert delivery.lost.wait(PATIENCE)
                    events.append("end 1")

        await scene.put("work", id="a")
        async with scene.at_work():
            await until(lambda: runs == 1)
            await scene.lane.acall(Release("q", ["a"], "an operator said so"))
            await scene.acked(1)
        assert events == ["begin 1", "end 1", "begin 2"]
        assert "was released, and is claimed here again" in caplog.text

    scene.play(story())


def test_a_run_that_does_not_stop_goes_on_beside_the_next_one(scene: Scene) -> None:
    gate = threading.Event()
    runs: list[int] = []

    async def story() -> None:
        @scene.app.handler("q", lease="30s")
        def handle(_: Any) -> None:
            runs.append(len(runs))
            if len(runs) == 1:
                gate.wait(PATIENCE)

        await scene.put("work", id="a")
        async with scene.at_work():
            await until(lambda: len(runs) == 1)
            await scene.lane.acall(Release("q", ["a"], "an operator said so"))
            await scene.pass_time(lambda: len(runs) == 2)
            await scene.acked(1)
            gate.set()
        assert (await scene.counts()).flow.acked == 1

    scene.play(story())


def test_a_third_run_waits_for_the_first_one_too(scene: Scene) -> None:
    events: list[str] = []
    cleaned_up = asyncio.Event()

    async def story() -> None:
        @scene.app.handler("q", lease="30s")
        async def handle(_: Any) -> None:
            run = sum(event.startswith("begin") for event in events) + 1
            events.append(f"begin {run}")
            if run == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    await cleaned_up.wait()
                    events.append("end 1")

        await scene.put("work", id="a")
        async with scene.at_work() as runner:
            running = runner.consumers["q"].running
            for count in (1, 2):
                await until(lambda: sum(entered(one) for one in running) == count)  # noqa: B023
                await scene.lane.acall(Release("q", ["a"], "an operator said so"))
            await until(lambda: sum(entered(one) for one in running) == 3)
            for _ in range(20):
                await asyncio.sleep(0)
            cleaned_up.set()
            await scene.acked(1)
        assert events == ["begin 1", "end 1", "begin 2"]

    scene.play(story())


def test_a_run_that_waits_for_an_earlier_one_to_stop_is_within_its_timeout(scene: Scene) -> None:
    gate = threading.Event()
    runs: list[int] = []

    async def story() -> None:
        retry = bide.Backoff(attempts=2, first="1s", jitter=0)

        @scene.app.handler("q", timeout="2s", lease="1h", concurrency=2, retry=retry)
        def handle(_: Any) -> None:
            runs.append(len(runs))
            if len(runs) == 1:
                gate.wait(PATIENCE)

        await scene.put("work", id="a")
        async with scene.at_work():
            await until(lambda: len(runs) == 1)
            await scene.pass_time(lambda: len(runs) == 2)
            await scene.acked(1)
            gate.set()
        assert (await scene.counts()).flow.retried == 1

    scene.play(story())


def test_a_worker_stops_while_a_run_waits_for_an_earlier_one(scene: Scene) -> None:
    gate = threading.Event()
    runs: list[int] = []

    async def story() -> None:
        @scene.app.handler("q", lease="30s")
        def handle(_: Any) -> None:
            runs.append(len(runs))
            gate.wait(PATIENCE)

        await scene.put("work", id="a")
        async with scene.at_work() as runner:
            await until(lambda: len(runs) == 1)
            await scene.lane.acall(Release("q", ["a"], "an operator said so"))
            await until(lambda: len(runner.consumers["q"].running) == 2)
        gate.set()
        message = await scene.find("a")
        assert (message.state, message.attempt) == ("ready", 1)
        assert runs == [0]

    scene.play(story())


def test_an_async_handler_that_takes_too_long_is_cancelled_and_tried_again(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", timeout="5s", retry=bide.Backoff(on=(OSError,), jitter=0))
        async def handle(_: Any) -> None:
            await asyncio.Event().wait()

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: any(entered(one) for one in runner.consumers["q"].running))
            scene.clock.advance(4.9)
            await asyncio.sleep(0.01)
            assert runner.consumers["q"].running
            scene.clock.advance(0.1)
            await scene.delayed(1)
        error = (await scene.find("q-0")).error or ""
        assert error.startswith("TimeoutError: tests.system.worker.test_leases")
        assert "took longer than its timeout of 5s" in error

    scene.play(story())


def test_a_handler_that_ends_well_though_it_was_cancelled_is_acked(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", timeout="5s")
        async def handle(_: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: any(entered(one) for one in runner.consumers["q"].running))
            scene.clock.advance(5)
            await scene.acked(1)

    scene.play(story())


def test_an_async_handler_that_swallows_its_cancellation_is_given_up(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        over = asyncio.Event()

        @scene.app.handler("q", timeout="5s", lease="1h", concurrency=2)
        async def handle(delivery: bide.Handling) -> None:
            while delivery.attempt == 1 and not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: any(entered(one) for one in runner.consumers["q"].running))
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.retried == 1, 0.5)
            assert len(runner.consumers["q"].running) == 1  # it keeps its place
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1, 0.5)
            assert (await scene.counts()).flow.lapsed == 0
            over.set()
            await until(lambda: not runner.consumers["q"].running)

    scene.play(story())
    assert "is still running after its timeout and keeps its slot; 1 of 2 slots" in caplog.text


def test_a_queue_without_a_place_left_is_stuck_until_one_returns(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    begun, over = list[int](), threading.Event()

    async def story() -> None:
        def handle(body: int) -> None:
            begun.append(body)
            over.wait(60)

        scene.app.handler("q", timeout="1s", concurrency=2)(handle)
        scene.app.handler("r", timeout="1s", concurrency=1)(lambda body: None)
        await scene.put(1, 2)
        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            await until(lambda: len(begun) == 2)  # one that has no thread by then never begins
            scene.clock.advance(1)
            await until(lambda: all(one.outcome_ignored for one in consumer.running))
            assert runner.stuck() == []
            scene.clock.advance(STUCK - 0.1)
            await asyncio.sleep(0.01)
            assert runner.stuck() == []
            assert runner.trouble() is None
            scene.clock.advance(0.1)
            await until(lambda: runner.stuck() == ["q"])
            places = "all slots of q are taken by handlers that do not return"
            assert runner.trouble() == places
            over.set()
            await until(lambda: runner.stuck() == [])

    scene.play(story())
    assert caplog.text.count("2 of 2 slots are taken this way") == 1


@pytest.mark.parametrize("why", ["released", "cancelled"])
def test_a_plain_handler_that_hangs_is_stuck_though_its_message_was_taken_away(
    scene: Scene, why: str
) -> None:
    begun, over = threading.Event(), threading.Event()

    async def story() -> None:
        def handle(body: str) -> None:
            begun.set()
            over.wait(60)

        scene.app.handler("q", timeout="1m", lease="6s", concurrency=1)(handle)
        await scene.put("hangs", id="a")
        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            await until(begun.is_set)  # one that has no thread by then never begins
            (handling,) = consumer.running
            if why == "released":
                await scene.lane.acall(Release("q", ["a"], "an operator said so"))
                await scene.pass_time(lambda: handling.outcome_ignored)  # a beat finds out
            else:
                await scene.lane.acall(Cancel("q", ["a"], running=True))
                await until(lambda: handling.stopping)
            assert not handling.overran  # it may end by itself
            await scene.pass_time(lambda: handling.overran, 2)  # leases are extended meanwhile
            if why == "cancelled":
                await until(lambda: scene.counts_in_file("q").flow.cancelled == 1)
            scene.clock.advance(STUCK)
            await until(lambda: runner.stuck() == ["q"])
            over.set()
            await until(lambda: runner.stuck() == [])

    try:
        scene.play(story())
    finally:
        over.set()


FOR_EVER = """
import os, time, bide
app = bide.App()

first = not os.path.exists("hangs")  # a busy machine may need long for a message that ends

@app.handler(
    "q", timeout="500ms" if first else "1h", concurrency=1, retry=bide.Backoff(attempts=1)
)
def handle(body: str) -> None:
    if body == "for ever":
        open("hangs", "w").close()
        time.sleep(1000)
"""


@pytest.mark.full
@pytest.mark.process
def test_a_process_without_a_place_left_is_replaced(tmp_path: Path) -> None:
    with bide.Queue("q", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
        queue.put("for ever")
        with worker(tmp_path, FOR_EVER, "--health-file", str(tmp_path / "well")) as process:
            wait_for(lambda: queue.counts().sizes.dead == 1, tmp_path)
            (stuck,) = children(process)
            queue.put("next")
            wait_for(lambda: "process 1 is replaced: all slots of q" in log(tmp_path), tmp_path)
            wait_for(lambda: queue.counts().flow.acked == 1, tmp_path)
            wait_for(lambda: stuck not in children(process), tmp_path)
            wait_for((tmp_path / "well").exists, tmp_path)


SWALLOWING = """
import asyncio, bide
app = bide.App()

@app.handler("q")
async def handle(body: int) -> None:
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            continue
"""


CLOSING = SWALLOWING.replace("    while", "    sys.stdout.close()\n    while").replace(
    "import asyncio", "import asyncio, sys"
)


@pytest.mark.process
@pytest.mark.parametrize("source", one_in(2, [SWALLOWING, CLOSING]), ids=["", "with stdout closed"])
def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_the_end(
    tmp_path: Path, source: str
) -> None:
    with bide.Queue("q", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
        queue.put(1)
        with worker(tmp_path, source, "--grace", "100ms") as process:
            wait_for(lambda: "began" in log(tmp_path), tmp_path)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert queue.counts().sizes.ready == 1
    assert "the process ends anyway" in log(tmp_path)
    assert "it is killed" not in log(tmp_path)


def test_a_plain_handler_that_takes_too_long_is_told_and_tried_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    begun, over = threading.Event(), threading.Event()

    async def story() -> None:
        def handle(delivery: bide.Handling) -> None:
            begun.set()
            if delivery.attempt == 1:
                assert delivery.lost.wait(PATIENCE)
                over.wait(PATIENCE)

        scene.app.handler("q", timeout="5s", concurrency=2)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(begun.is_set)
            scene.clock.advance(5)
            await scene.delayed(1)
            assert len(runner.consumers["q"].running) == 1  # it keeps its thread
            scene.clock.advance(11)
            await scene.acked(1)
            over.set()
            await until(lambda: not runner.consumers["q"].running)

    scene.play(story())
    assert "1 of 2 slots are taken this way" in caplog.text


def test_a_plain_handler_past_the_limit_of_its_middleware_keeps_its_place(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place was free while its thread was not, and its retry ran beside it."""
    limits: list[asyncio.Timeout] = []
    running: list[int] = []
    over = threading.Event()

    async def story() -> None:
        @scene.app.middleware
        async def limit(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await go_on()

        def handle(body: Any, delivery: bide.Handling) -> None:
            running.append(delivery.attempt)
            if delivery.attempt == 1:
                assert delivery.lost.wait(PATIENCE)
                over.wait(PATIENCE)
            assert running == [delivery.attempt]
            running.clear()

        scene.app.handler("q", concurrency=1)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            await until(lambda: running)
            limits[0].reschedule(0)
            await scene.delayed(1)
            assert [handling.overran for handling in consumer.running] == [True]
            scene.clock.advance(11)
            assert consumer.stuck
            over.set()
            await until(lambda: not consumer.running)
            await scene.acked(1)

    scene.play(story())
    assert "is still running after its middleware has ended and keeps its slot" in caplog.text


def test_a_plain_handler_does_not_begin_after_its_timeout(scene: Scene) -> None:
    """Its middleware has waited for too long; the next attempt may run elsewhere."""

    async def story() -> None:
        attempts, noted = list[int](), list[int]()
        begun, go = asyncio.Event(), asyncio.Event()

        @scene.app.middleware
        async def wait(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            begun.set()
            await go.wait()
            await go_on()
            noted.append(delivery.attempt)  # as handled

        def handle(delivery: bide.Handling) -> None:
            attempts.append(delivery.attempt)

        scene.app.handler("q", timeout="5s")(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await begun.wait()
            scene.clock.advance(5)
            await scene.delayed(1)
            go.set()
            await until(lambda: not runner.consumers["q"].running)
            scene.clock.advance(11)
            await scene.acked(1)
        assert attempts == noted == [2]

    scene.play(story())


def test_a_handler_in_time_hears_nothing_of_its_timeout(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", timeout="5s")
        async def handle(_: Any) -> None: ...

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
            scene.clock.advance(6)
            await scene.put(2, id="second")
            await scene.acked(2)

    scene.play(story())


def test_a_handler_that_runs_long_is_warned_of_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        said = [record.getMessage() for record in caplog.records]
        return [one for one in said if "has been running" in one]

    async def story() -> None:
        over = asyncio.Event()

        @scene.app.handler("q", warn_after="5m")
        async def handle(_: Any) -> None:
            await over.wait()

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.tallies()["q"].running)
            scene.clock.advance(60)
            assert runner.tallies()["q"].longest == 60
            assert not warnings()
            await scene.pass_time(warnings, 30)
            scene.clock.advance(600)
            over.set()
            await scene.acked(1)
            assert runner.tallies()["q"].longest == 0
        (warning,) = warnings()
        assert "has been running for 5m" in warning

    scene.play(story())


def test_one_that_ends_in_time_is_not_warned_of(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        @scene.app.handler("q", warn_after="5s")
        async def handle(_: Any) -> None: ...

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
            scene.clock.advance(6)
            await scene.put(2, id="second")
            await scene.acked(2)

    scene.play(story())
    assert "has been running" not in caplog.text


def test_lost_is_known_to_who_asks_later(scene: Scene) -> None:
    """The event is made when it is asked for, which may be after the fact."""
    one: Any = None

    async def story() -> None:
        nonlocal one

        @scene.app.handler("q")
        async def handle(delivery: bide.Handling) -> None:
            nonlocal one
            one = delivery
            assert not delivery.lost.is_set()

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
        one.lose()
        assert one.lost.is_set()
        one._event = None
        assert one.lost.is_set()

    scene.play(story())
