"""A blocking queue whose items come out when they are due."""

import threading
from collections.abc import Iterator
from queue import Empty
from typing import Generic, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock
from bide.timing.calendar_queue import CalendarQueue, Delayed, check_priority
from bide.timing.errors import ShutDown
from bide.timing.hierarchy import NEVER
from bide.timing.lifetime import forked, guard_fork
from bide.timing.moments import MAX_DELAY, NS, Delay, Moment, WallClock, length_seconds, seconds_of

__all__ = ["DelayQueue"]

T = TypeVar("T")
D = TypeVar("D")


class DelayQueue(Generic[T]):
    """Items wait here until they are due; `take` hands out the one due first.

    Of items due at the same moment the one with the larger priority goes first, then the one that
    was put first. Any number of threads may call anything at any time. Of the threads that wait in
    `take` one, the leader, sleeps until the head is due; the others sleep until they are called
    (leader-follower, as in Java's `java.util.concurrent.DelayQueue`, which this class answers to).

    Moments are kept on the monotonic clock: setting the wall clock moves no item. An item put with
    `at=` keeps the distance that it had when it was put.

    Args:
        clock: tells the time and waits; tests pass `bide.testing.FakeClock`.

    Example:
        >>> queue = DelayQueue()
        >>> handle = queue.put("tea is ready", delay=0.01)
        >>> queue.take()
        'tea is ready'
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        self._wall = WallClock(clock)
        self._reached = 0  # the moment that the clock last said had come, in ns
        self._entries: CalendarQueue[T] = CalendarQueue(self._now())
        self._make_lock()
        self._led = False  # whether somebody leads
        self._followers = 0
        self._alarm = -NEVER  # what the leader sleeps until; an earlier item must wake it
        self._closed = False
        self._forked = False
        guard_fork(self)

    def put(
        self,
        item: T,
        delay: Delay | None = None,
        *,
        at: Moment | None = None,
        priority: int = 0,
    ) -> Delayed[T]:
        """Put an item in, to come out when it is due. Never blocks: the queue has no bound.

        Args:
            item: anything, `None` too.
            delay: seconds or a `timedelta` from now; with neither `delay` nor `at` it is due now.
            at: an aware `datetime` or Unix seconds. A moment that is past is due at once, before
                what fell due after it.
            priority: an integer of less than 2**31 either way; the larger goes first among items
                due at the same moment.

        Returns:
            A handle for `remove`.

        Raises:
            ValueError: the delay is negative or NaN, the datetime has no time zone, or the priority
                is out of range.
            TypeError: both `delay` and `at`, or one of them or `priority` is of the wrong type.
            ShutDown: after `shutdown`.
        """
        seconds = 0.0
        if at is not None:
            due = self._wall.due(at, delay)
        elif delay.__class__ is float and 0.0 <= delay <= MAX_DELAY:
            seconds = delay
        else:
            seconds = seconds_of(delay)
        if priority or priority.__class__ is not int:
            check_priority(priority)
        self._acquire()  # half the price of `with`
        try:
            if self._closed or self._forked:
                self._refuse()
            if at is None:
                due = int((self._monotonic() + seconds) * 1e9 + 0.5)
            entry = self._entries.add(item, due, priority)
            if due < self._alarm:
                self._alarm = -NEVER
                self._lead.notify()
        finally:
            self._release()
        return entry

    def take(self, timeout: Delay | None = None) -> T:
        """Wait until the head is due, take it out and return it.

        Args:
            timeout: give up after so many seconds; `None` waits as long as it takes, 0 not at all.

        Raises:
            queue.Empty: nothing fell due in time.
            ShutDown: the queue was shut down and nothing is left in it.
        """
        limit = NEVER
        if timeout is not None:
            limit = self._now() + round(length_seconds(timeout, "timeout") * NS)
        entries = self._entries
        self._acquire()
        try:
            while True:
                if self._forked:
                    raise forked("DelayQueue")
                # What was due when the clock was last read is due: a backlog needs no clock.
                entry = entries.pop(self._reached) or entries.pop(self._read_clock())
                if entry is not None:
                    return entry.item
                if self._closed and not len(entries):
                    raise ShutDown("the delay queue was shut down, and nothing is left in it")
                if self._reached >= limit:
                    raise Empty(f"nothing fell due within {timeout}")
                self._wait(limit)
        finally:
            if self._followers or self._closed:
                self._leave()
            self._release()

    def poll(self, default: D | None = None) -> T | D | None:
        """Take out and return the head if it is due now, else return `default`."""
        with self._lock:
            self._check_process()
            entry = self._entries.pop(self._now())
            self._leave()
        return default if entry is None else entry.item

    def peek(self) -> Delayed[T] | None:
        """Return the handle of the head, due or not, and leave it there; `None` when empty."""
        with self._lock:
            self._check_process()
            return self._entries.head()

    def remove(self, handle: Delayed[T]) -> bool:
        """Take an item back before anybody takes it.

        Returns:
            True: it will not come out. False: it was taken or removed before.

        Raises:
            ValueError: the handle is another queue's.
        """
        if handle.__class__ is not Delayed:
            raise TypeError(f"remove wants what put returned, not {type(handle).__name__}")
        self._acquire()
        try:
            if self._forked:
                raise forked("DelayQueue")
            removed = self._entries.remove(handle)
            if self._closed:
                self._leave()
        finally:
            self._release()
        return removed

    def drain(self, limit: int | None = None) -> list[T]:
        """Take out everything that is due now, at most `limit` items, and return it in order.

        Raises:
            ValueError: `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit is negative ({limit}); None takes all that is due")
        items: list[T] = []
        with self._lock:
            self._check_process()
            now = self._now()
            while limit is None or len(items) < limit:
                entry = self._entries.pop(now)
                if entry is None:
                    break
                items.append(entry.item)
            self._leave()
        return items

    def shutdown(self, immediate: bool = False) -> list[T]:
        """Refuse further items, and end the waits: as `queue.Queue.shutdown` of Python 3.13.

        What is in the queue still comes out when it is due; then `take` raises `ShutDown`. Calling
        it again is allowed.

        Args:
            immediate: drop what is in the queue, so that every `take` raises at once.

        Returns:
            The items that were dropped, by due moment.
        """
        with self._lock:
            self._check_process()
            self._closed = True
            dropped = [entry.item for entry in self._entries.clear()] if immediate else []
            self._leave()
        return dropped

    def __len__(self) -> int:
        """Count the items, due or not."""
        with self._lock:
            self._check_process()
            return len(self._entries)

    def __iter__(self) -> Iterator[Delayed[T]]:
        """Go through the handles by due moment: a snapshot, which costs O(n log n)."""
        with self._lock:
            self._check_process()
            return iter(self._entries.in_order())

    def _now(self) -> int:
        return max(int(self._monotonic() * 1e9 + 0.5), self._reached)

    def _read_clock(self) -> int:
        self._reached = now = self._now()  # under the lock
        return now

    def _put_due(self, item: T, due: int, priority: int = 0) -> Delayed[T]:
        """Put an item in by its moment in nanoseconds of the monotonic clock, drift-free."""
        with self._lock:
            if self._closed or self._forked:
                self._refuse()
            entry = self._entries.add(item, due, priority)
            if due < self._alarm:
                self._alarm = -NEVER
                self._lead.notify()
        return entry

    def _refuse(self) -> None:
        self._check_process()
        raise ShutDown("the delay queue was shut down: it takes no more items")

    def _check_process(self) -> None:
        if self._forked:
            raise forked("DelayQueue")

    def _wait(self, limit: int) -> None:
        """Wait as the leader, if there is none, else as a follower. May return early."""
        if self._led:
            self._followers += 1
            try:
                self._sleep(self._follow, limit)
            finally:
                self._followers -= 1
            return
        crowd = self._entries.crowd()
        if crowd <= self._now():
            self._entries.spread()
            self._release()  # others first: there may be many parts to spread
            self._acquire()
            return
        self._led = True
        self._alarm = self._entries.next_due()
        try:
            self._sleep(self._lead, min(self._alarm, crowd, limit))
        finally:
            self._led = False
            self._alarm = -NEVER

    def _sleep(self, condition: threading.Condition, moment: int) -> None:
        if moment >= NEVER:
            self._clock.wait(condition, None)
        elif not self._clock.wait_until(condition, moment / NS):
            self._reached = max(self._reached, moment)  # a float may say a few ns less

    def _leave(self) -> None:
        """Before returning: see to it that somebody leads, or that everybody knows the end."""
        if self._closed and not len(self._entries):
            self._lead.notify_all()
            self._follow.notify_all()
        elif self._followers and not self._led:
            self._follow.notify()

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        self._acquire = self._lock.acquire
        self._release = self._lock.release
        self._lead = threading.Condition(self._lock)  # the leader waits here
        self._follow = threading.Condition(self._lock)  # everybody else

    def _after_fork(self) -> None:
        self._make_lock()
        self._forked = True
