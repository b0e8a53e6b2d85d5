"""Queues whose items come out when they are due: for threads, and for asyncio."""

import asyncio
import threading
from collections import OrderedDict
from functools import partial
from queue import Empty
from typing import TypeVar

from bide.clock import SYSTEM_CLOCK, Clock, Timer
from bide.timing.base import NEVER, DelayQueueBase
from bide.timing.lifetime import NS, Delay

T = TypeVar("T")


class DelayQueue(DelayQueueBase[T]):
    """Items wait here until they are due; `take` returns the one that is due first.

    If items are due at the same time, the one with the largest priority goes first, then the one
    that was put first. Any number of threads may call any method at any time. One of the threads
    that wait in `take`, the leader, sleeps until the head is due; the others sleep until they are
    woken (leader-follower, as in Java's `java.util.concurrent.DelayQueue`, on which this class is
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
        self._lead = threading.Condition(self._lock)  # the leader waits here
        self._follow = threading.Condition(self._lock)  # all others
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
                    # What was due when the clock was last read is due: a backlog needs no clock.
                    if (entry := entries.pop(self._reached)) is None:
                        self._reached = self._now()
                        entry = entries.pop(self._reached)
                    if entry is not None:
                        return entry.item
                    self._check_end()
                    if self._reached >= limit:
                        raise Empty(f"no item was due within {timeout}")
                    self._wait(limit)
                    self._check_process()
            finally:
                self._leave()

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
        if not self._clock.wait_until(condition, None if moment >= NEVER else moment / NS):
            self._reached = max(self._reached, moment)  # a float may say a few ns less

    def _leave(self) -> None:
        if self._closed and not len(self._entries):
            self._lead.notify_all()
            self._follow.notify_all()
        elif self._followers and not self._led:
            self._follow.notify()


class AsyncDelayQueue(DelayQueueBase[T]):
    """`DelayQueue` for tasks of one event loop: `take` is awaited, all else returns at once.

    Like asyncio's own queues it is not thread-safe: other threads call
    `loop.call_soon_threadsafe(queue.put, ...)`. However many tasks wait, the loop holds one timer,
    for the head; waiting tasks are served in the order in which they came. A task cancelled in
    `take` has taken nothing: the item goes to the next.

    Args:
        clock: tells the time and waits; tests pass `bide.testing.FakeClock`.

    Example:
        >>> async def main():
        ...     queue = AsyncDelayQueue()
        ...     queue.put("tea is ready", delay=0.01)
        ...     return await queue.take()
        >>> asyncio.run(main())
        'tea is ready'
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock=clock)
        self._alarm = NEVER  # what the timer is set to; without one, any item is a new head
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: Timer | None = None

    async def take(self, timeout: Delay | None = None) -> T:  # noqa: ASYNC109 - as DelayQueue
        """Wait until the head is due, take it out and return it: as `DelayQueue.take`."""
        limit = self._limit(timeout)
        waited = False
        try:
            while True:
                self._check_process()
                now = self._now()
                if waited or not self._waiters:  # a newcomer does not jump the queue
                    entry = self._entries.pop(now)
                    if entry is not None:
                        return entry.item
                self._check_end()
                if now >= limit:
                    raise Empty(f"no item was due within {timeout}")
                await self._wait(limit, first=waited)
                waited = True
        finally:
            self._leave()

    async def _wait(self, limit: int, *, first: bool) -> None:
        """Wait until woken, or until `limit`; at the front of the line, or at its end."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._waiters:
                raise RuntimeError("tasks of another event loop wait in this queue; make one each")
            self._set_timer()  # without waiters there is none
            self._loop = loop
        waiter = loop.create_future()
        self._waiters[waiter] = None
        if first:
            self._waiters.move_to_end(waiter, last=False)
        timer = None
        if limit < NEVER:
            seconds = (limit - self._now()) / NS
            timer = self._clock.call_later(loop, seconds, partial(self._expire, waiter, limit))
        try:
            self._set_timer()
            await waiter
        finally:
            del self._waiters[waiter]
            if timer is not None:
                timer.cancel()

    def _expire(self, waiter: asyncio.Future[None], limit: int) -> None:
        self._reached = max(self._reached, limit)
        _wake(waiter)

    def _ring(self) -> None:
        """Wake a task: the head is due."""
        self._reached = max(self._reached, self._alarm)
        self._timer = None
        self._alarm = NEVER
        if self._entries.next_due() > self._now():
            self._set_timer()
        elif asleep := [waiter for waiter in self._waiters if not waiter.done()]:
            _wake(asleep[0])

    def _new_head(self) -> None:
        self._set_timer()

    def _set_timer(self) -> None:
        """Have the loop call `_ring` when the head is due, if a task waits for it."""
        alarm = self._entries.next_due() if self._waiters else NEVER
        if alarm == self._alarm or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._alarm = None, alarm
        if alarm < NEVER:
            seconds = max(0.0, (alarm - self._now()) / NS)
            self._timer = self._clock.call_later(self._loop, seconds, self._ring)

    def _leave(self) -> None:
        if self._forked:
            return
        if self._closed and not len(self._entries):
            for waiter in self._waiters:
                _wake(waiter)
        self._set_timer()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
