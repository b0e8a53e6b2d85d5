"""How bide knows what time it is, and how it waits.

Everything that waits does so through a `Clock`, so that a test can put a manual clock in its place
and never sleep. The shape (time is an object, and only it knows how long a real sleep must be) is
that of Trio's `Clock`.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock", "Timer", "sleep"]


class Timer(Protocol):
    """A callback that was asked for with `Clock.call_later`."""

    def cancel(self) -> None:
        """Take the callback back; one that has run or was cancelled before stays as it is."""


class Clock(Protocol):
    """Two readings and two ways to wait for a moment."""

    def now(self) -> int:
        """Return the wall clock in Unix milliseconds (UTC). It may jump when someone sets it."""

    def until(self, moment: int) -> float:
        """Return in how many seconds the wall clock shows a moment in Unix milliseconds.

        Finer than `moment - now()`, which is up to a millisecond too much.
        """

    def monotonic(self) -> float:
        """Return seconds since some fixed moment. They never go back."""

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait, holding `condition`, until it is notified or `timeout` seconds have passed.

        Args:
            condition: a condition whose lock the caller holds; released while waiting.
            timeout: seconds by this clock; `None` waits for a notification alone, zero or less
                returns at once.

        Returns:
            False when the time ran out, True otherwise. As with any condition, look again at what
            you were waiting for: a wake-up promises nothing.
        """

    def wait_until(self, condition: threading.Condition, moment: float) -> bool:
        """Wait, holding `condition`, until it is notified or `monotonic()` reaches `moment`.

        A moment, unlike a timeout, cannot go stale between reading the clock and starting to wait,
        so a manual clock that is moved in between wakes the caller all the same.

        Returns:
            False when the moment had come, True otherwise; a wake-up promises nothing, as ever.
        """

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Call `callback` on `loop`, `delay` seconds by this clock from now. Call from the loop."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def until(self, moment: int) -> float:
        """Return in how many seconds the wall clock shows a moment."""
        return moment / 1000 - time.time()

    monotonic = staticmethod(time.monotonic)  # itself: a call around it would cost as much again

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait on the condition in real time."""
        if timeout is None:
            return condition.wait()
        return condition.wait(min(timeout, threading.TIMEOUT_MAX)) if timeout > 0 else False

    def wait_until(self, condition: threading.Condition, moment: float) -> bool:
        """Wait on the condition in real time, until `time.monotonic()` reaches `moment`."""
        timeout = moment - time.monotonic()
        return condition.wait(min(timeout, threading.TIMEOUT_MAX)) if timeout > 0 else False

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Ask the event loop's own timer."""
        return loop.call_later(delay, callback)


SYSTEM_CLOCK = SystemClock()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait so many seconds by a clock."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(loop, seconds, finish)
    try:
        await over
    finally:
        timer.cancel()
