"""What queues, wheels and executors share: times as callers write them, forks, and the exit.

After a fork the child's copies raise `Forked`: their threads do not exist there, another thread may
have held a lock, and the timers still belong to the parent. At interpreter exit everything that has
threads stops, so that no pending timer keeps the process alive.
"""

import atexit
import math
import os
import sys
import threading
import weakref
from datetime import datetime, timedelta
from numbers import Real
from typing import Any, ClassVar

from bide.clock import Clock
from bide.model.times import EARLIEST, check_length, check_time

_lock = threading.Lock()
"""Held while `_owned` changes, and during a fork: the child must not find it half changed."""

_owned: "weakref.WeakSet[OwnedByProcess]" = weakref.WeakSet()
"""All objects to which a fork and the exit matter."""


class OwnedByProcess:
    """An object with a lock that only the process that made it can use."""

    _kind: ClassVar[str | None] = None
    """Its name in errors; by default that of its class."""

    def __init__(self) -> None:
        self._forked = False
        self._lock: Any = threading.RLock()
        with _lock:
            _owned.add(self)

    def _check_process(self) -> None:
        """Check that this process has made the object.

        Raises:
            Forked: it was made before the fork.
        """
        if self._forked:
            self._lock.__enter__()  # that of `_ParentsLock`, which raises

    def _at_exit(self) -> None:
        """End the threads: the interpreter is about to end."""

    def _after_fork(self) -> None:
        """Let each method raise `Forked` in the child, also those that only take the lock."""
        self._forked = True
        self._lock = _ParentsLock(self._kind or type(self).__name__)


class _ParentsLock:
    """Replaces the lock in a forked child: acquiring it raises `Forked`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        raise Forked(
            f"this {self._kind} was made before the fork and belongs to the parent process; "
            f"make another {self._kind} in process {os.getpid()}"
        )

    def __exit__(self, *error: object) -> None:
        """Never called, but part of a context manager."""


def _after_fork_in_child() -> None:
    _lock.release()
    for owner in list(_owned):
        owner._after_fork()


def _at_exit() -> None:
    for owner in list(_owned):
        if not owner._forked:
            owner._at_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child
    )
atexit.register(_at_exit)


if sys.version_info >= (3, 13):
    from queue import ShutDown as _QueueShutDown
else:

    class _QueueShutDown(Exception):
        """Replaces `queue.ShutDown`, which is new in Python 3.13."""


class ShutDown(_QueueShutDown, RuntimeError):
    """The queue, wheel or executor was shut down.

    On Python 3.13 and later `except queue.ShutDown` catches it too; `except RuntimeError`, which is
    what an executor of the standard library raises, does on every version.
    """


class Forked(RuntimeError):
    """This process was forked from the one that the timers belong to.

    Threads do not survive a fork, and a timer that fires in parent and child would fire twice. So
    the parent keeps its timers, and in the child every call raises this.

    Fix: make the queue, wheel or executor in the child, after the fork.
    """


NS = 1_000_000_000
"""Nanoseconds in a second."""

MAX_DELAY = 1e10
"""In seconds; 316 years."""

COARSE_NS = 2_000_000
"""Up to so many nanoseconds, a change of the distance between the clocks is rounding: the wall
clock is read in milliseconds."""

Delay = float | timedelta
"""A length of time: seconds, or a `timedelta`."""

Moment = datetime | float
"""A point in time: an aware `datetime`, or Unix seconds."""


class DueTimes:
    """Converts delays and times to nanoseconds of the monotonic clock.

    The distance between the wall clock and the monotonic clock is measured each time, but replaces
    the known one only when the difference exceeds the resolution of the wall clock. So two entries
    for the same time stay equal, and their priority decides. Setting the wall clock moves nothing
    converted before.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0
        """The monotonic clock minus the wall clock, in ns."""

    def of(self, delay: Delay | None, at: Moment | None) -> int:
        """Return when something is due, in ns of the monotonic clock.

        With neither `delay` nor `at`, that is now. For a time, the result is late by a millisecond
        at most.

        Raises:
            TypeError: both were given, or one of them is of another type.
            ValueError: it is NaN, infinite or more than 316 years ahead, the delay is negative, or
                the time is a datetime without a time zone. A number is a year or a delay, given as
                a time, or a time that is given as a delay.
        """
        if at is None:
            if isinstance(delay, float) and 0.0 <= delay < EARLIEST:
                seconds = delay  # as most are: the other checks cost five times as much
            else:
                seconds = 0.0 if delay is None else seconds_of(delay, "delay")
            return int((self._clock.monotonic() + seconds) * NS + 0.5)
        if delay is not None:
            raise TypeError("delay= and at= were both given; give one of them")
        unix_seconds = _unix_seconds(at)
        wall_ms = self._clock.now()
        _bounded(unix_seconds - wall_ms / 1000, f"at={at!r}")
        ahead = round(self._clock.monotonic() * NS) - wall_ms * 1_000_000
        if abs(ahead - self._ahead) > COARSE_NS:
            self._ahead = ahead
        # To whole microseconds first: a float of Unix seconds is no more precise.
        return round(unix_seconds * 1_000_000) * 1_000 + self._ahead


def period_ns(period: Delay, name: str = "period") -> int:
    """Return a period in nanoseconds, at least one.

    Raises:
        TypeError: it is neither a number nor a `timedelta`.
        ValueError: it is zero, negative, NaN, infinite or longer than 316 years, or a number that
            is a time in Unix seconds.
    """
    seconds = seconds_of(period, name)
    if seconds == 0:
        raise ValueError(f"{name} is 0: the task would never pause; give more than 0")
    return max(1, round(seconds * NS))


def seconds_of(value: Delay, name: str) -> float:
    """Return a length of time in seconds; `name` is what the caller calls it.

    Raises:
        TypeError: it is neither a number nor a `timedelta`.
        ValueError: it is negative, NaN, infinite or longer than 316 years, or a number that is a
            time in Unix seconds.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    else:
        seconds = _number(value, f"{name} must be seconds or a datetime.timedelta")
        # The error shows how to write a length that looks like a time.
        check_length(value, name, weeks="timedelta(weeks=2000)")
    if seconds < 0:
        raise ValueError(f"{name} is negative ({value!r}); give 0 or more")
    return _bounded(seconds, f"{name}={value!r}")


def _unix_seconds(at: Moment) -> float:
    """Return a time in Unix seconds.

    Raises:
        TypeError: it is of another type.
        ValueError: it has no time zone, or cannot be a time.
    """
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise ValueError(
                f"at={at!r} has no time zone; write datetime(..., tzinfo=timezone.utc), or "
                ".astimezone() for local time"
            )
        return at.timestamp()
    seconds = _number(at, "at must be an aware datetime or Unix seconds")
    check_time(at, "at")
    return seconds


def _number(value: object, requirement: str) -> float:
    """Return a number as a float.

    Args:
        value: from the caller.
        requirement: what it must be, for the error.

    Raises:
        TypeError: it is no number.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{requirement}, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return -math.inf if value < 0 else math.inf


def _bounded(seconds: float, what: str) -> float:
    """Return a length of time after a check; `what` names it in the error.

    Raises:
        ValueError: it is NaN, infinite or too long.
    """
    if math.isnan(seconds):
        raise ValueError(f"{what} is not a number")
    if seconds > MAX_DELAY or math.isinf(seconds):
        raise ValueError(f"{what} is more than 316 years ahead; is it in milliseconds?")
    return seconds
