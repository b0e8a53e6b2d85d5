"""A clock that a test moves by hand, so that no test sleeps."""

import asyncio
import datetime as dt
import heapq
import itertools
import threading
import time
from collections.abc import Callable

from bide.clock import Signal, Timer
from bide.model.times import Duration, milliseconds, to_datetime, unix

NS = 1_000_000_000  # nanoseconds in a second


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
        self._ns = 1_000 * NS  # an integer, so that ten tenths of a second are one second
        self._sequence = itertools.count()
        self._signals: dict[int, tuple[int | None, Signal]] = {}
        self._timers: list[tuple[int, int, _FakeTimer]] = []
        self._changed = threading.Condition()

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
        return self._ns / NS

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
        due = []
        with self._lock:
            self._ns += step
            self._wall_ns += step
            for key, (moment, signal) in list(self._signals.items()):
                if moment is not None and moment <= self._ns:
                    signal.set()
                    del self._signals[key]
            while self._timers and self._timers[0][0] <= self._ns:
                due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            timer.fire()

    def set_wall(self, now: int) -> None:
        """Set only the wall clock, as an administrator or NTP would; this wakes no thread."""
        with self._lock:
            self._wall_ns = now * 1_000_000

    def waiting(self) -> int:
        """Count the threads that wait on this clock and whose signals are not set."""
        with self._lock:
            return sum(not signal.is_set() for _, signal in self._signals.values())

    def wait_for_waiters(self, count: int = 1, timeout: float = 10.0) -> None:
        """Block, in real time, until `count` threads wait on this clock.

        A thread that was woken, by `advance` or by its signal, does not count until it waits again:
        after this call it has done its work.

        Raises:
            TimeoutError: they do not within `timeout` real seconds.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while (waiting := self.waiting()) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{waiting} of {count} threads wait on the clock")
                self._changed.wait(0.001)  # not every change notifies

    def wait(self, signal: Signal, moment: float | None) -> bool:
        """Wait until a signal is set or this clock has reached `moment`."""
        until = None if moment is None else round(moment * NS)
        if until is not None and moment is not None and until / NS < moment:
            until += 1  # when the wait is over, the clock must show the time
        key = next(self._sequence)
        with self._lock:
            if until is not None and until <= self._ns:
                return False
            self._signals[key] = (until, signal)
        with self._changed:
            self._changed.notify_all()
        try:
            if self.autojump and until is not None:
                self._jump(key)
            else:
                signal.wait()
            return until is None or self._ns < until
        finally:
            with self._lock:
                self._signals.pop(key, None)

    def call_later(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]
    ) -> Timer:
        """Call `callback` on `loop` when this clock has moved by `delay` seconds."""
        timer = _FakeTimer(loop, callback)
        if delay <= 0:
            timer.fire()
            return timer
        with self._lock:
            heapq.heappush(
                self._timers, (self._ns + round(delay * NS), next(self._sequence), timer)
            )
        return timer

    def _jump(self, key: int) -> None:
        """Move to the earliest time. The thread of `key` is awake."""
        with self._lock:
            moments = [moment for moment, _ in self._signals.values() if moment is not None]
            self._signals.pop(key, None)
            step = min(moments, default=self._ns) - self._ns
        self._advance_ns(max(0, step))


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
