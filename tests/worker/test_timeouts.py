"""Handlers that take too long."""

import asyncio
import threading
from typing import Any

import pytest

import bide
from tests.worker.scene import Scene, until


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
        assert error.startswith("TimeoutError: tests.worker.test_timeouts")
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
