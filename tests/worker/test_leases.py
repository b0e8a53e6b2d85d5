"""What is extended and when, and what happens to those who lose their lease."""

import asyncio
import threading
from typing import Any

import pytest

import bide
from bide.model.commands import Ack, Extend, Release
from tests.worker.worker_app import PATIENCE, Scene, entered, more, until

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
    told = threading.Event()

    async def story() -> None:
        def handle(delivery: bide.Handling) -> None:
            if delivery.attempt == 1:
                assert delivery.lost.wait(PATIENCE)
                told.set()

        scene.app.handler("q", lease="30s", concurrency=1)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.consumers["q"].running)
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
            await until(lambda: one.gone)
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
