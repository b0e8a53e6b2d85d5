"""How much is claimed, what is extended, and what happens to those who take too long."""

import asyncio
import threading
from typing import Any

import pytest

import bide
from bide.model.commands import Ack, Claim, Extend
from tests.worker.scene import Scene, more, until

HOUR = 3_600


def test_claims_never_bring_more_than_can_be_started(scene: Scene) -> None:
    most = running = 0

    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", concurrency=5)
        async def handle(_: Any) -> None:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await gate.wait()
            await asyncio.sleep(0)
            running -= 1

        await scene.put(*range(40))
        async with scene.at_work() as runner:
            await until(lambda: running == 5)
            assert len(runner.stations["q"].running) == 5
            assert (await scene.counts()).sizes.leased == 5
            gate.set()
            await scene.acked(40)
        assert most == 5
        assert max(command.count for command in scene.sent(Claim)) == 5

    scene.play(story())


def test_no_more_threads_run_than_places(scene: Scene) -> None:
    seen: set[str] = set()
    lock = threading.Lock()
    running = most = 0

    def handle(_: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            seen.add(threading.current_thread().name)
        with lock:
            running -= 1

    async def story() -> None:
        scene.app.handler("q", concurrency=3)(handle)
        await scene.put(*range(60))
        async with scene.at_work():
            await scene.acked(60)
        assert most <= 3
        assert len(seen) <= 3
        assert all(name.startswith("bide-handler-") for name in seen)

    scene.play(story())


def test_plain_handlers_run_side_by_side(scene: Scene) -> None:
    together = threading.Barrier(4, timeout=10)

    def handle(_: Any) -> None:
        together.wait()

    async def story() -> None:
        scene.app.handler("q", concurrency=4)(handle)
        await scene.put(*range(8))
        async with scene.at_work():
            await scene.acked(8)

    scene.play(story())


def test_a_queue_that_is_busy_holds_up_no_other(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("slow", concurrency=1)
        async def slow(_: Any) -> None:
            await gate.wait()

        @scene.app.handler("quick")
        async def quick(_: Any) -> None: ...

        await scene.put(1, 2, queue="slow")
        await scene.put(1, 2, queue="quick")
        async with scene.at_work():
            await scene.acked(2, "quick")
            assert (await scene.counts("slow")).sizes.leased == 1
            gate.set()
            await scene.acked(2, "slow")

    scene.play(story())


def test_what_is_due_later_is_started_when_it_is_due(scene: Scene) -> None:
    seen: list[Any] = []

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            seen.append(body)

        async with scene.at_work():
            await scene.put("later", delay=90_000)
            for _ in range(89):
                scene.clock.advance(1)
                await asyncio.sleep(0.001)
            assert seen == []
            scene.clock.advance(1)
            await scene.acked(1)
        assert seen == ["later"]

    scene.play(story())


async def beats(scene: Scene, count: int, seconds: float) -> None:
    """Let time pass in steps; after each the worker has done what it does at that time."""
    for _ in range(count):
        extended = more(lambda: len(scene.sent(Extend)))
        scene.clock.advance(seconds)
        await until(extended)


def test_one_extend_a_beat_for_everything_that_runs(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", lease="30s")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(*range(10))
        async with scene.at_work() as runner:
            await until(lambda: len(runner.stations["q"].running) == 10)
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
            await until(lambda: runner.stations["q"].running)
            (one,) = runner.stations["q"].running
            await until(lambda: one.entered)
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
                assert delivery.lost.wait(10)
                told.set()

        scene.app.handler("q", lease="30s", concurrency=1)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.stations["q"].running)
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
                release.wait(10)

        scene.app.handler("q", lease="30s", concurrency=1)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.stations["q"].running)
            (one,) = runner.stations["q"].running
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
            for _ in range(20):
                scene.clock.advance(1)
                await asyncio.sleep(0.001)
            await scene.acked(2)
        counts = await scene.counts()
        assert counts.sizes.total == 0
        assert counts.flow.lapsed == (1 if hours > 0 else 0)

    scene.play(story())


def test_an_async_handler_that_takes_too_long_is_cancelled_and_tried_again(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", timeout="5s", retry=bide.Backoff(on=(OSError,), jitter=0))
        async def handle(_: Any) -> None:
            await asyncio.Event().wait()

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: any(one.entered for one in runner.stations["q"].running))
            scene.clock.advance(4.9)
            await asyncio.sleep(0.01)
            assert runner.stations["q"].running
            scene.clock.advance(0.1)
            await scene.delayed(1)
        error = (await scene.find("q-0")).error or ""
        assert error.startswith("TimeoutError: tests.worker.test_pace")
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
            await until(lambda: any(one.entered for one in runner.stations["q"].running))
            scene.clock.advance(5)
            await scene.acked(1)

    scene.play(story())


def test_an_async_handler_that_never_ends_is_left_to_lapse(scene: Scene) -> None:
    async def story() -> None:
        over = asyncio.Event()

        @scene.app.handler("q", timeout="5s", lease="30s")
        async def handle(delivery: bide.Handling) -> None:
            while delivery.attempt == 1 and not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: any(one.entered for one in runner.stations["q"].running))
            for _ in range(5):
                scene.clock.advance(10)
                await asyncio.sleep(0.01)
            await scene.acked(1)
            assert (await scene.counts()).flow.lapsed == 1
            over.set()

    scene.play(story())


def test_a_plain_handler_that_takes_too_long_is_told_and_tried_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    async def story() -> None:
        def handle(delivery: bide.Handling) -> None:
            if delivery.attempt == 1:
                assert delivery.lost.wait(10)
                over.wait(10)

        scene.app.handler("q", timeout="5s", concurrency=2)(handle)
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.stations["q"].running)
            scene.clock.advance(5)
            await scene.delayed(1)
            assert len(runner.stations["q"].running) == 1  # it keeps its thread
            scene.clock.advance(11)
            await scene.acked(1)
            over.set()
            await until(lambda: not runner.stations["q"].running)

    scene.play(story())
    assert "1 of 2 places are taken like that" in caplog.text


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
