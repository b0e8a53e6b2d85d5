"""Every timer there is behind one face: schedule, cancel, fire all."""

import asyncio
import heapq
import itertools
import sched
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from bide.testing.clock import FakeClock
from bide.timing import Delayed, DelayQueue, TimingWheel

__all__ = ["PEERS", "Peer"]


class Peer(Protocol):
    """Timers that call `int`."""

    schedule: Callable[[float], Any]
    """Takes the delay in seconds, returns something to cancel with."""
    cancel: Callable[[Any], object]

    def fire(self) -> None:
        """Let everything become due, and return when all was called."""


class Wheel:
    """`TimingWheel`, callbacks on its own thread."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.wheel = wheel = TimingWheel(clock=self.clock)
        self.schedule: Callable[[float], Any] = partial(wheel.schedule, int)
        self.cancel: Callable[[Any], object] = wheel.cancel

    def fire(self) -> None:
        """Jump to the end of time."""
        self.clock.advance(1e5)
        self.wheel.stop(drain=True)


class Queue:
    """`DelayQueue`, taken from and called in a loop."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue: DelayQueue[Callable[[], object]] = DelayQueue(clock=self.clock)
        self.schedule: Callable[[float], Delayed[Any]] = partial(self.queue.put, int)
        self.cancel: Callable[[Any], object] = self.queue.remove

    def fire(self) -> None:
        """Take and call one by one."""
        self.clock.advance(1e5)
        take = self.queue.take
        for _ in range(len(self.queue)):
            take()()


class Heap:
    """`heapq` as people write it: a list an entry, which cancelling empties and leaves there."""

    def __init__(self) -> None:
        self.heap: list[list[Any]] = []
        heap, order, push = self.heap, itertools.count(), heapq.heappush

        def schedule(delay: float) -> list[Any]:
            entry = [delay, next(order), int]
            push(heap, entry)
            return entry

        def cancel(entry: list[Any]) -> None:
            entry[2] = None

        self.schedule: Callable[[float], Any] = schedule
        self.cancel: Callable[[Any], object] = cancel

    def fire(self) -> None:
        """Pop and call one by one."""
        heap, pop = self.heap, heapq.heappop
        while heap:
            fn = pop(heap)[2]
            if fn is not None:
                fn()


class Dicts:
    """The least that exact cancelling takes: an object an entry, in one dict for each minute.

    Nothing is in order before its minute, nothing is checked, locked or woken. What this costs more
    beside a million others is what the machine's memory costs.
    """

    class Entry:
        __slots__ = ("delay", "fn", "minute")

        def __init__(self, delay: float, minute: "dict[Dicts.Entry, None]") -> None:
            self.delay = delay
            self.fn = int
            self.minute = minute

    def __init__(self) -> None:
        self.minutes: list[dict[Dicts.Entry, None]] = [{} for _ in range(61)]
        minutes, entry_of = self.minutes, Dicts.Entry

        def schedule(delay: float) -> Dicts.Entry:
            minute = minutes[int(delay / 60)]
            entry = entry_of(delay, minute)
            minute[entry] = None
            return entry

        def cancel(entry: Dicts.Entry) -> None:
            del entry.minute[entry]

        self.schedule: Callable[[float], Any] = schedule
        self.cancel: Callable[[Any], object] = cancel

    def fire(self) -> None:
        """Sort minute by minute, and call."""
        for minute in self.minutes:
            for entry in sorted(minute, key=lambda entry: entry.delay):
                entry.fn()
            minute.clear()


class Sched:
    """`sched.scheduler`. Its cancel is O(n), so it is left out."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduler = scheduler = sched.scheduler(lambda: self.now, lambda seconds: None)
        self.schedule: Callable[[float], Any] = partial(scheduler.enter, priority=0, action=int)
        self.cancel: Callable[[Any], object] = scheduler.cancel

    def fire(self) -> None:
        """Run it at the end of time."""
        self.now = 1e5
        self.scheduler.run(blocking=False)


class Loop:
    """`loop.call_later` of asyncio."""

    def __init__(self) -> None:
        class Standing(asyncio.SelectorEventLoop):
            moment = 0.0

            def time(self) -> float:
                return self.moment

        self.loop = loop = Standing()
        self.schedule: Callable[[float], Any] = partial(loop.call_later, callback=int)
        self.cancel: Callable[[Any], object] = lambda handle: handle.cancel()

    def fire(self) -> None:
        """One turn of the loop at the end of time makes all ready, the next calls them."""
        self.loop.moment = 1e5
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


PEERS: dict[str, Callable[[], Peer]] = {
    "TimingWheel": Wheel,
    "DelayQueue": Queue,
    "dicts": Dicts,
    "heapq": Heap,
    "sched": Sched,
    "asyncio.call_later": Loop,
}
