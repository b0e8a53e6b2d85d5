"""A clock that a test moves by hand, so that no test sleeps."""

import asyncio
import datetime as dt
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bide.clock import Signal, Timer
from bide.model.times import Duration, milliseconds, to_datetime, unix

NS = 1_000_000_000
"""Nanoseconds in a second."""


class FakeClock:
    """A `bide.clock.Clock` that does not move until `advance` is called.

    Args:
        now: the first reading: an aware `datetime`, or Unix milliseconds. By default a whole second
            that is 1 to 2 s ahead of the real time: what code under test puts at the real time plus
            ten minutes is due after `advance("10m")`.
        autojump: move by itself: when a thread starts to wait, the clock jumps to the earliest time
            that any thread waits for. For tests with one waiting thread.

    Example:
        >>> clock = FakeClock(1_000)
        >>> clock.advance(2.5)
        >>> clock.now()
        3500
    """

    def __init__(self, now: int | dt.datetime | None = None, *, autojump: bool = False) -> None:
        self.autojump = autojump
        self._lock = threading.RLock()  # a finalizer may read the clock
        if now is None:
            now = (int(time.time()) + 2) * 1_000
        start = unix(now, "now") if isinstance(now, dt.datetime) else now
        self._wall_ns = start * 1_000_000
        # Integers, so that ten tenths of a second are one second.
        self._monotonic_ns = 1_000 * NS
        """Begins at any time: code that takes it for the wall clock fails soon."""
        self._numbers = itertools.count()
        """Number waits and timers."""
        self._waits: dict[int, _FakeWait] = {}
        """The threads that wait, by number."""
        self._timers: list[_FakeTimerEntry] = []
        """A heap of the timers that have not fired."""
        self._new_wait = threading.Condition()
        """Notified when a thread begins to wait, for `wait_for_waiters`."""

    def now(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return self._wall_ns // 1_000_000

    def until(self, moment: int) -> float:
        """Return the seconds until the wall clock shows a time."""
        return (moment - self.now()) / 1000

    def datetime(self) -> dt.datetime:
        """Return the wall clock as an aware `datetime` in UTC, to whole milliseconds.

        Example:
            >>> FakeClock(1_700_000_000_000).datetime().isoformat()
            '2023-11-14T22:13:20+00:00'
        """
        return to_datetime(self.now())

    def monotonic(self) -> float:
        """Return the monotonic reading in seconds; only `advance` moves it."""
        return self._monotonic_ns / NS

    def advance(self, seconds: Duration) -> None:
        """Let time pass, and wake every thread whose time has come.

        A woken thread does not count as waiting, so a later `wait_for_waiters` blocks until it
        waits again.

        Args:
            seconds: how long, also as a `timedelta` or "1h30m".

        Raises:
            ValueError: it is negative, or no duration.
        """
        if not isinstance(seconds, (int, float)):
            seconds = milliseconds(seconds, "seconds") / 1000
        if seconds < 0:
            raise ValueError("time cannot go back; `set_wall` sets the wall clock alone")
        self._advance_ns(round(seconds * NS))

    def _advance_ns(self, step: int) -> None:
        """Let nanoseconds pass; wake the threads and fire the timers whose time has come."""
        due_timers = []
        with self._lock:
            self._monotonic_ns += step
            self._wall_ns += step
            for number, wait in list(self._waits.items()):
                if wait.end is not None and wait.end <= self._monotonic_ns:
                    wait.signal.set()
                    del self._waits[number]
            while self._timers and self._timers[0].due <= self._monotonic_ns:
                due_timers.append(heapq.heappop(self._timers).timer)
        for timer in due_timers:  # without the lock: an event loop may read the clock
            timer.fire()

    def set_wall(self, now: int) -> None:
        """Set only the wall clock, as an administrator or NTP would; this wakes no thread."""
        with self._lock:
            self._wall_ns = now * 1_000_000

    def waiting(self) -> int:
        """Count the threads that wait on this clock and whose signals are not set."""
        with self._lock:
            return sum(not wait.signal.is_set() for wait in self._waits.values())

    def wait_for_waiters(self, count: int = 1, timeout: float = 10.0) -> None:
        """Block, in real time, until `count` threads wait on this clock.

        A thread that was woken, by `advance` or by its signal, does not count until it waits again:
        after this call it has done its work.

        Raises:
            TimeoutError: they do not within `timeout` real seconds.
        """
        deadline = time.monotonic() + timeout
        with self._new_wait:
            while (waiting := self.waiting()) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{waiting} of {count} threads wait on the clock")
                self._new_wait.wait(0.001)  # a wait may have begun before this one

    def wait(self, signal: Signal, moment: float | None) -> bool:
        """Wait until a signal is set or this clock has reached `moment`."""
        end = None if moment is None else round(moment * NS)
        if end is not None and moment is not None and end / NS < moment:
            end += 1  # when the wait is over, the clock must show the time
        number = next(self._numbers)
        with self._lock:
            if end is not None and end <= self._monotonic_ns:
                return False
            self._waits[number] = _FakeWait(end, signal)
        with self._new_wait:
            self._new_wait.notify_all()
        try:
            if self.autojump and end is not None:
                self._jump(number)
            else:
                signal.wait()
            return end is None or self._monotonic_ns < end
        finally:
            with self._lock:
                self._waits.pop(number, None)

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Call `callback` on `loop` when this clock has moved by `delay` seconds."""
        timer = _FakeTimer(loop, callback)
        if delay <= 0:
            timer.fire()
            return timer
        with self._lock:
            due = self._monotonic_ns + round(delay * NS)
            heapq.heappush(self._timers, _FakeTimerEntry(due, next(self._numbers), timer))
        return timer

    def _jump(self, number: int) -> None:
        """Move to the earliest time that a thread waits for. The thread of `number` is awake."""
        with self._lock:
            ends = [wait.end for wait in self._waits.values() if wait.end is not None]
            self._waits.pop(number, None)
            step = min(ends, default=self._monotonic_ns) - self._monotonic_ns
        self._advance_ns(max(0, step))


class _FakeWait(NamedTuple):
    """A thread that waits."""

    end: int | None
    """The monotonic time in ns at which it is woken; `None`: only its signal wakes it."""
    signal: Signal


class _FakeTimerEntry(NamedTuple):
    """A timer in the heap; of those with the same time, the one made first fires first."""

    due: int
    """The monotonic time in ns."""
    number: int
    timer: "_FakeTimer"


class _FakeTimer:
    """A callback that waits for a `FakeClock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self._loop = loop
        self._callback = callback
        self._cancelled = False

    def fire(self) -> None:
        """Pass the callback to its loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run)

    def cancel(self) -> None:
        """Do not call the callback."""
        self._cancelled = True

    def _run(self) -> None:
        if not self._cancelled:
            self._callback()
