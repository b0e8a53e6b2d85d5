"""The delay queue for asyncio."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from queue import Empty
from typing import Generic, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock, Timer
from bide.timing.calendar_queue import CalendarQueue, Delayed, check_priority
from bide.timing.errors import ShutDown
from bide.timing.hierarchy import NEVER
from bide.timing.lifetime import forked, guard_fork
from bide.timing.moments import NS, Delay, Moment, WallClock, length_seconds, seconds_of

__all__ = ["AsyncDelayQueue"]

T = TypeVar("T")
D = TypeVar("D")


class AsyncDelayQueue(Generic[T]):
    """`DelayQueue` for tasks of one event loop: `take` is awaited, all else answers at once.

    Like asyncio's own queues it is not thread-safe: other threads go through
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
        self._clock = clock
        self._wall = WallClock(clock)
        self._reached = 0  # the moment that the loop last rang for, in ns
        self._entries: CalendarQueue[T] = CalendarQueue(self._now())
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: Timer | None = None
        self._alarm = NEVER  # what the timer is set to
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
        """Put an item in: as `DelayQueue.put`."""
        seconds = seconds_of(delay) if at is None else 0.0
        moment = None if at is None else self._wall.due(at, delay)
        if priority or priority.__class__ is not int:
            check_priority(priority)
        self._check_process()
        if self._closed:
            raise ShutDown("the delay queue was shut down: it takes no more items")
        due = self._now() + round(seconds * NS) if moment is None else moment
        entry = self._entries.add(item, due, priority)
        self._set_timer()
        return entry

    async def take(self, timeout: Delay | None = None) -> T:  # noqa: ASYNC109 - as DelayQueue
        """Await the head's moment, take it out and return it: as `DelayQueue.take`."""
        limit = NEVER
        if timeout is not None:
            limit = self._now() + round(length_seconds(timeout, "timeout") * NS)
        waited = False
        try:
            while True:
                self._check_process()
                now = self._now()
                if waited or not self._waiters:  # a newcomer does not jump the line
                    entry = self._entries.pop(now)
                    if entry is not None:
                        return entry.item
                if self._closed and not len(self._entries):
                    raise ShutDown("the delay queue was shut down, and nothing is left in it")
                if now >= limit:
                    raise Empty(f"nothing fell due within {timeout}")
                await self._wait(limit, first=waited)
                waited = True
        finally:
            self._leave()

    def poll(self, default: D | None = None) -> T | D | None:
        """Take out and return the head if it is due now, else return `default`."""
        self._check_process()
        entry = self._entries.pop(self._now())
        self._leave()
        return default if entry is None else entry.item

    def peek(self) -> Delayed[T] | None:
        """Return the handle of the head, due or not, and leave it there; `None` when empty."""
        self._check_process()
        return self._entries.head()

    def remove(self, handle: Delayed[T]) -> bool:
        """Take an item back before anybody takes it: as `DelayQueue.remove`."""
        if handle.__class__ is not Delayed:
            raise TypeError(f"remove wants what put returned, not {type(handle).__name__}")
        self._check_process()
        removed = self._entries.remove(handle)
        self._leave()
        return removed

    def drain(self, limit: int | None = None) -> list[T]:
        """Take out everything that is due now, at most `limit` items: as `DelayQueue.drain`."""
        if limit is not None and limit < 0:
            raise ValueError(f"limit is negative ({limit}); None takes all that is due")
        self._check_process()
        items: list[T] = []
        now = self._now()
        while limit is None or len(items) < limit:
            entry = self._entries.pop(now)
            if entry is None:
                break
            items.append(entry.item)
        self._leave()
        return items

    def shutdown(self, immediate: bool = False) -> list[T]:
        """Refuse further items, and end the waits: as `DelayQueue.shutdown`."""
        self._check_process()
        self._closed = True
        dropped = [entry.item for entry in self._entries.clear()] if immediate else []
        self._leave()
        return dropped

    def __len__(self) -> int:
        """Count the items, due or not."""
        self._check_process()
        return len(self._entries)

    def __iter__(self) -> Iterator[Delayed[T]]:
        """Go through the handles by due moment: a snapshot, which costs O(n log n)."""
        self._check_process()
        return iter(self._entries.in_order())

    def _now(self) -> int:
        return max(int(self._clock.monotonic() * NS + 0.5), self._reached)

    def _check_process(self) -> None:
        if self._forked:
            raise forked("AsyncDelayQueue")

    async def _wait(self, limit: int, *, first: bool) -> None:
        """Wait until woken, or until `limit`; `first` in line, or last."""
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
        if not waiter.done():
            waiter.set_result(None)

    def _ring(self) -> None:
        """The head is due, or part of a crowd must move: see to it."""
        self._reached = max(self._reached, self._alarm)
        self._timer = None
        self._alarm = NEVER
        if self._entries.crowd() <= self._now():
            self._entries.spread()
        if self._entries.next_due() <= self._now():
            self._wake_first()
        else:
            self._set_timer()

    def _wake_first(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_timer(self) -> None:
        """Have the loop ring at the head's moment, if anybody waits for it."""
        if not self._waiters or self._loop is None:
            self._drop_timer()
            return
        alarm = min(self._entries.next_due(), self._entries.crowd(), NEVER)
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
        """Before returning: the next head needs a timer, or everybody must know the end."""
        if self._forked:
            return
        if self._closed and not len(self._entries):
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._set_timer()

    def _after_fork(self) -> None:
        self._forked = True
