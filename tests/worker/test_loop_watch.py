"""A handler that holds up the event loop is named. This goes by real time, in short steps."""

import asyncio
import time
from typing import Any

import pytest

from bide.worker.process.loop_watch import Watch
from tests.worker.worker_app import Scene, until


def test_who_holds_up_the_loop_is_named_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        @scene.app.handler("q")
        async def sluggish(_: Any) -> None:
            time.sleep(0.4)  # noqa: ASYNC251  (the mistake that is to be found)

        await scene.put(1)
        async with scene.at_work(blocked=0.1):
            await scene.acked(1)

    scene.play(story())
    (warning,) = [text for text in caplog.messages if "has held up the event loop" in text]
    assert "sluggish, with <Handling 'q-0' of 'q', attempt 1>," in warning
    assert "test_loop_watch.py" in warning
    assert "(sluggish)" in warning


def test_who_awaits_is_not(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        @scene.app.handler("q")
        async def patient(_: Any) -> None:
            await asyncio.sleep(0.4)

        await scene.put(1)
        async with scene.at_work(blocked=0.1):
            await scene.acked(1)

    scene.play(story())
    assert "has held up" not in caplog.text


def test_something_else_on_the_loop_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        watch = Watch(lambda task: None, lambda: True, 0.05)
        watch.look()
        await asyncio.sleep(0.02)
        time.sleep(0.2)  # noqa: ASYNC251
        watch.close()

    asyncio.run(story())
    assert "something has held up the event loop" in caplog.text


def test_the_watch_rests_when_nothing_runs() -> None:
    async def story() -> None:
        busy = True
        watch = Watch(lambda task: None, lambda: busy, 0.02)
        watch.look()
        assert watch._on
        busy = False
        await until(lambda: not watch._on)
        assert not watch._wake.is_set()
        watch.close()

    asyncio.run(story())
