"""The delay queue for asyncio."""

import asyncio
from collections import OrderedDict
from functools import partial
from queue import Empty
from typing import TypeVar

from bide.clock import SYSTEM_CLOCK, Clock, Timer
from bide.timing.base import DelayQueueBase
from bide.timing.delay_heap import NEVER
from bide.timing.times import NS, Delay

T = TypeVar("T")


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
            self._drop_timer()
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
        if not self._waiters or self._loop is None:
            self._drop_timer()
            return
        alarm = self._entries.next_due()
        if alarm == self._alarm:
            return
        self._drop_timer()
        if alarm < NEVER:
            self._alarm = alarm
            seconds = max(0.0, (alarm - self._now()) / NS)
            self._timer = self._clock.call_later(self._loop, seconds, self._ring)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._alarm = NEVER

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
