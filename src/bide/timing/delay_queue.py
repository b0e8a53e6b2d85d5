"""Queues whose items come out when they are due: for threads, and for asyncio."""

import asyncio
from collections import OrderedDict
from functools import partial
from itertools import islice
from queue import Empty
from typing import TypeVar

from bide.clock import SYSTEM_CLOCK, Clock, Signal
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
        self._waiting: dict[Signal, None] = {}
        """What wakes each thread that waits, in the order in which they came; the first leads."""

    def take(self, timeout: Delay | None = None) -> T:
        """Wait until the head is due, take it out and return it.

        Args:
            timeout: give up after so many seconds; `None` waits without limit, 0 not at all.

        Raises:
            queue.Empty: no item was due in time.
            ShutDown: the queue was shut down and nothing is left in it.
        """
        limit = self._limit(timeout)
        entries, signal = self._entries, Signal()
        announced = -NEVER  # the time for which the clock has ended the last wait
        leads = False
        try:
            while True:
                with self._lock:
                    if leads:
                        self._alarm = -NEVER  # it is awake, and sees below what was put
                    self._reached = max(self._reached, announced)
                    # What was due when the clock was last read is due: a backlog needs no clock.
                    if (entry := entries.pop(self._reached)) is None:
                        self._reached = self._now()
                        entry = entries.pop(self._reached)
                    if entry is not None:
                        return entry.item
                    # First, so that a shutdown from now on wakes this thread: it takes no lock.
                    self._waiting[signal] = None
                    self._check_end()
                    if self._reached >= limit:
                        raise Empty(f"no item was due within {timeout}")
                    wait_end = limit
                    leads = self._leads(signal)
                    if leads:
                        self._alarm = NEVER  # what is put from now on wakes this thread
                        self._alarm = due = entries.next_due()
                        wait_end = min(due, limit)
                if not self._clock.wait(signal, None if wait_end >= NEVER else wait_end / NS):
                    announced = wait_end  # a float may say a few ns less
        finally:
            was_leader = self._leads(signal)
            self._waiting.pop(signal, None)
            if was_leader:
                self._wake()  # another one leads now
            self._leave()

    def _leads(self, signal: Signal) -> bool:
        """Return whether a thread that waits is the first one."""
        return [*self._waiting][:1] == [signal]

    def _leave(self) -> None:
        if self._closed and not len(self._entries):
            self._wake(everybody=True)

    def _wake(self, *, everybody: bool = False) -> None:
        for signal in list(self._waiting)[: None if everybody else 1]:
            signal.set()


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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: OrderedDict[object, asyncio.Future[None] | None] = OrderedDict()
        """The tasks that wait, in order, and what wakes each; `None` while it is awake."""

    async def take(self, timeout: Delay | None = None) -> T:  # noqa: ASYNC109 - as DelayQueue
        """Wait until the head is due, take it out and return it: as `DelayQueue.take`."""
        limit = self._limit(timeout)
        place = object()  # stands for this task in `_waiting`
        try:
            while True:
                self._check_process()
                now = self._now()
                # Only the first in line may take: others would take what it waits for. If no task
                # waits, this one is the first.
                leads = next(iter(self._waiting), place) is place
                if leads and (entry := self._entries.pop(now)) is not None:
                    return entry.item
                self._check_end()
                if now >= limit:
                    raise Empty(f"no item was due within {timeout}")
                await self._wait(place, limit, leads=leads)
        finally:
            self._waiting.pop(place, None)
            self._leave()

    async def _wait(self, place: object, limit: int, *, leads: bool) -> None:
        """Wait until woken or until `limit`; the first of the line until the head is due."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop and self._waiting:
            raise RuntimeError("tasks of another event loop wait in this queue; make one each")
        self._loop = loop
        wait_end, timer = limit, None
        if leads:
            self._alarm = self._entries.next_due()
            wait_end = min(self._alarm, limit)
        self._waiting[place] = waiter = loop.create_future()
        if wait_end < NEVER:
            seconds = max(0.0, (wait_end - self._now()) / NS)
            timer = self._clock.call_later(loop, seconds, partial(self._ring, waiter, wait_end))
        try:
            await waiter
        finally:
            self._waiting[place] = None  # it keeps its place in the line while it is awake
            if timer is not None:
                timer.cancel()
            if leads:
                self._alarm = -NEVER

    def _ring(self, waiter: asyncio.Future[None], wait_end: int) -> None:
        """Wake a task whose wait has reached its end, in ns."""
        self._reached = max(self._reached, wait_end)  # a float may say a few ns less
        _end(waiter)

    def _wake(self, *, everybody: bool = False) -> None:
        for waiter in islice(self._waiting.values(), None if everybody else 1):
            _end(waiter)


def _end(waiter: asyncio.Future[None] | None) -> None:
    """Wake the task that waits for a future; `None`: it is awake."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
