"""A blocking queue whose items come out when they are due."""

import threading
from queue import Empty
from typing import TypeVar

from bide.clock import SYSTEM_CLOCK, Clock
from bide.timing.base import DelayQueueBase
from bide.timing.delay_heap import NEVER
from bide.timing.times import NS, Delay

T = TypeVar("T")


class DelayQueue(DelayQueueBase[T]):
    """Items wait here until they are due; `take` returns the one that is due first.

    Of items due at the same time the one with the larger priority goes first, then the one that was
    put first. Any number of threads may call anything at any time. Of the threads that wait in
    `take` one, the leader, sleeps until the head is due; the others sleep until they are woken
    (leader-follower, as in Java's `java.util.concurrent.DelayQueue`, on which this class is
    modelled).

    Due times are kept on the monotonic clock: setting the wall clock moves no item. An item put
    with `at=` keeps the distance that it had when it was put.

    Args:
        clock: tells the time and waits; tests pass `bide.testing.FakeClock`.

    Example:
        >>> queue = DelayQueue()
        >>> handle = queue.put("tea is ready", delay=0.01)
        >>> queue.take()
        'tea is ready'
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock=clock)
        self._led = False  # whether a thread leads
        self._followers = 0

    def take(self, timeout: Delay | None = None) -> T:
        """Wait until the head is due, take it out and return it.

        Args:
            timeout: give up after so many seconds; `None` waits without limit, 0 not at all.

        Raises:
            queue.Empty: no item was due in time.
            ShutDown: the queue was shut down and nothing is left in it.
        """
        limit = self._limit(timeout)
        entries = self._entries
        with self._lock:
            try:
                while True:
                    self._check_process()
                    # What was due when the clock was last read is due: a backlog needs no clock.
                    entry = entries.pop(self._reached) or entries.pop(self._read_clock())
                    if entry is not None:
                        return entry.item
                    self._check_end()
                    if self._reached >= limit:
                        raise Empty(f"no item was due within {timeout}")
                    self._wait(limit)
            finally:
                self._leave()

    def _read_clock(self) -> int:
        self._reached = now = self._now()  # under the lock
        return now

    def _new_head(self) -> None:
        self._alarm = -NEVER
        self._lead.notify()

    def _wait(self, limit: int) -> None:
        """Wait as the leader, if there is none, else as a follower. May return early."""
        if self._led:
            self._followers += 1
            try:
                self._sleep(self._follow, limit)
            finally:
                self._followers -= 1
            return
        self._led = True
        self._alarm = self._entries.next_due()
        try:
            self._sleep(self._lead, min(self._alarm, limit))
        finally:
            self._led = False
            self._alarm = -NEVER

    def _sleep(self, condition: threading.Condition, moment: int) -> None:
        if moment >= NEVER:
            self._clock.wait(condition, None)
        elif not self._clock.wait_until(condition, moment / NS):
            self._reached = max(self._reached, moment)  # a float may say a few ns less

    def _leave(self) -> None:
        if self._closed and not len(self._entries):
            self._lead.notify_all()
            self._follow.notify_all()
        elif self._followers and not self._led:
            self._follow.notify()

    def _make_lock(self) -> None:
        super()._make_lock()
        self._lead = threading.Condition(self._lock)  # the leader waits here
        self._follow = threading.Condition(self._lock)  # all others
