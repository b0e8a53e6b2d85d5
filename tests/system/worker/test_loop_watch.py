"""A handler that holds up the event loop is named. This goes by real time, in short steps."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from bide.threads import deaths
from bide.worker.process import runner
from bide.worker.process.runner import LoopWatch
from tests.system.worker.worker_app import PATIENCE, Scene


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LIMIT", 0.1)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "has held up the event loop" in text]


def hold_up(condition: Callable[[], object]) -> None:
    """Wait, without letting the event loop go on, until something comes to pass."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def test_who_holds_up_the_loop_is_named_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        @scene.app.handler("q")
        async def sluggish(_: Any) -> None:
            hold_up(lambda: warnings(caplog))  # the mistake that is to be found
            time.sleep(0.3)  # noqa: ASYNC251  (for so long a second warning would come)

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)

    scene.play(story())
    (warning,) = [text for text in warnings(caplog) if "sluggish" in text]
    assert "sluggish with q-0 has held up" in warning
    assert "test_loop_watch.py" in warning
    assert "(hold_up)" in warning


def test_who_awaits_is_not(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    longest = 0.0

    async def story() -> None:
        nonlocal longest

        @scene.app.handler("q")
        async def patient(_: Any) -> None:
            await asyncio.sleep(0.4)

        await scene.put(1)
        async with scene.at_work():
            while not scene.counts_in_file("q").flow.acked:
                began = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - began)

    scene.play(story())
    # A busy machine holds up the loop itself.
    assert longest > 0.06 or not warnings(caplog)


def test_something_else_on_the_loop_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        asyncio.current_task().set_name("another")  # type: ignore[union-attr]
        watch = LoopWatch()
        await asyncio.sleep(0.02)
        hold_up(lambda: warnings(caplog))
        watch.close()

    asyncio.run(story())
    assert "another has held up the event loop" in caplog.text


def test_the_watch_goes_on_after_an_error_that_nobody_expects(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        watch = LoopWatch()
        died = deaths["bide-watch"]
        with monkeypatch.context() as broken:
            broken.setattr(LoopWatch, "_warn", None)  # calling it raises a TypeError
            hold_up(lambda: deaths["bide-watch"] > died)
        hold_up(lambda: warnings(caplog))
        watch.close()

    asyncio.run(story())
    assert "the thread bide-watch died of TypeError" in caplog.text
