"""Clocks: read the time, and wait.

All waits go through a `Clock`, so that tests can use a manual clock and never sleep. The interface
follows Trio's `Clock`.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A callback that `Clock.call_later` has scheduled."""

    def cancel(self) -> None:
        """Cancel the callback, if it has not run."""


class Clock(Protocol):
    """Reads the time, and waits until a time."""

    def now(self) -> int:
        """Return the wall clock in Unix milliseconds. It jumps when it is set."""

    def until(self, moment: int) -> float:
        """Return in how many seconds the wall clock shows a time in Unix milliseconds.

        More precise than `moment - now()`, which may be a millisecond too much.
        """

    def monotonic(self) -> float:
        """Return the seconds since a fixed time. They never go back."""

    def wait_until(self, condition: threading.Condition, moment: float | None) -> bool:
        """Wait, holding `condition`, until it is notified or `monotonic()` reaches `moment`.

        Unlike a timeout, a time stays right if a manual clock moves before the wait starts.

        Args:
            condition: a condition whose lock the caller holds; released while waiting.
            moment: the end of the wait; `None`: no limit.

        Returns:
            False when that time has come, True otherwise. As with any condition, check again what
            you wait for: a wake-up may be spurious.
        """

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Call `callback` on `loop`, `delay` seconds by this clock from now. Call from the loop."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def until(self, moment: int) -> float:
        """Return in how many seconds the wall clock shows a time."""
        return moment / 1000 - time.time()

    monotonic = staticmethod(time.monotonic)  # a method around it would double the cost

    def wait_until(self, condition: threading.Condition, moment: float | None) -> bool:
        """Wait on the condition in real time, until `time.monotonic()` reaches `moment`."""
        if moment is None:
            return condition.wait()
        timeout = moment - time.monotonic()
        return timeout > 0 and condition.wait(min(timeout, threading.TIMEOUT_MAX))

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Use the timer of the event loop."""
        return loop.call_later(delay, callback)


SYSTEM_CLOCK = SystemClock()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait a number of seconds by a clock."""
    over = asyncio.Event()
    timer = clock.call_later(asyncio.get_running_loop(), seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
