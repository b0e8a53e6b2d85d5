"""Clocks: read the time, and wait.

All waits go through a `Clock`, so that tests can use a manual clock and never sleep. The interface
follows Trio's `Clock`.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Signal:
    """Wakes one thread that waits for it, or lets its next wait return at once.

    Finalizers and signal handlers may set it at any time: each method is one step of a lock, and
    no lock is held meanwhile. `threading.Condition` and `Event` are not made for that.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread."""
        try:
            self._lock.release()
        except RuntimeError:  # it is set
            pass

    def is_set(self) -> bool:
        """Return whether a wait would return at once."""
        return not self._lock.locked()

    def wait(self, timeout: float = -1) -> bool:
        """Wait until it is set, and unset it; return False if it was not set in time.

        Args:
            timeout: in seconds; -1: without limit.
        """
        return self._lock.acquire(timeout=timeout)


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

    def wait(self, signal: Signal, moment: float | None) -> bool:
        """Wait until a signal is set, or `monotonic()` reaches `moment`.

        Args:
            signal: which only this thread waits for.
            moment: the end of the wait; `None`: no limit. Unlike a timeout, it stays right if a
                manual clock moves before the wait starts.

        Returns:
            False when that time has come, True when the signal was set.
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

    def wait(self, signal: Signal, moment: float | None) -> bool:
        """Wait for a signal in real time, until `time.monotonic()` reaches `moment`."""
        if moment is None:
            return signal.wait()
        timeout = moment - time.monotonic()
        # When the time has come, the signal is not even asked: callers look again anyway.
        return timeout > 0 and signal.wait(min(timeout, threading.TIMEOUT_MAX))

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Use the timer of the event loop."""
        return loop.call_later(delay, callback)


SYSTEM_CLOCK = SystemClock()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait a number of seconds by a clock."""
    end = asyncio.Event()
    timer = clock.call_later(asyncio.get_running_loop(), seconds, end.set)
    try:
        await end.wait()
    finally:
        timer.cancel()
