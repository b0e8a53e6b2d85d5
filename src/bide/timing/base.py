"""What `DelayQueue` and `AsyncDelayQueue` share: a heap of items, and the methods that do not wait.

The order of an item is one integer, its rank: the due time first, then the priority (the larger
goes first), then the order of arrival. One integer is compared faster than three. A removed item
leaves only its rank in the heap, until two thirds of the ranks are of removed items.

Finalizers and signal handlers may put and remove in the midst of any other method, also of the same
thread. So these take no lock, and every change is one step: stores, then at most one call of a
function written in C. CPython lets nothing else run between these.
"""

import itertools
from collections.abc import Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Generic, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock
from bide.timing.lifetime import NS, Delay, DueTimes, Moment, OwnedByProcess, ShutDown, seconds_of

T = TypeVar("T")


D = TypeVar("D")


NEVER: int = 1 << 200
"""A time in ns past any due time."""

ARRIVAL_BITS = 50
"""How many bits of a rank are the order of arrival: for 35 years of a million items a second."""

PRIORITY_BITS = 32

DUE_SHIFT = ARRIVAL_BITS + PRIORITY_BITS
"""How many bits of a rank are below the due time in ns."""

PRIORITY_0 = 1 << (DUE_SHIFT - 1)
"""The bits below the due time of the first rank with priority 0: half of all priorities are above
0, and come before it."""


class Delayed(Generic[T]):
    """One item that waits in a delay queue: `put` returns it and `remove` takes it.

    Attributes:
        item: what was put.
    """

    __slots__ = ("_heap", "_rank", "item")
    item: T
    _heap: "DelayHeap[T]"
    _rank: int

    @property
    def due(self) -> float:
        """When it is due, in seconds of the queue's `Clock.monotonic()`."""
        return (self._rank >> DUE_SHIFT) / NS

    @property
    def priority(self) -> int:
        """The larger goes first among items due at the same time."""
        below_due = self._rank & ((1 << DUE_SHIFT) - 1)
        return (PRIORITY_0 >> ARRIVAL_BITS) - (below_due >> ARRIVAL_BITS)

    @property
    def pending(self) -> bool:
        """Whether it still waits: neither taken, nor drained, nor removed."""
        return self._rank in self._heap.waiting

    def __repr__(self) -> str:
        return f"<Delayed {self.item!r} due={self.due:.3f} priority={self.priority}>"


class DelayHeap(Generic[T]):
    """Items by due time in nanoseconds, priority and order of arrival."""

    def __init__(self) -> None:
        self.waiting: dict[int, Delayed[T]] = {}
        """The items by rank."""
        self._heap: list[int] = []
        """Their ranks, and those of some removed items."""
        self._arrivals = itertools.count(PRIORITY_0 + 1)
        """Numbers each item."""
        self._last_arrival = PRIORITY_0
        """The number of the item that was put last."""

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, item: T, due: int, priority: int) -> Delayed[T]:
        """Put an item in, with a priority that `check_priority` has accepted."""
        arrival = next(self._arrivals)
        # The earliest due time first, then the highest priority, then the first arrival. Arrivals
        # count from `PRIORITY_0`, so no priority makes the difference negative.
        rank = (due << DUE_SHIFT) + arrival - (priority << ARRIVAL_BITS)
        entry: Delayed[T] = Delayed()  # and no `__init__`: calling it would cost as much again
        entry.item = item
        entry._rank = rank
        entry._heap = self
        self._last_arrival = arrival
        self.waiting[rank] = entry
        heappush(self._heap, rank)
        return entry

    def remove(self, entry: Delayed[T]) -> bool:
        """Take an entry out; False when it waits no more.

        Raises:
            ValueError: the entry is another queue's.
        """
        if entry._heap is not self:
            raise ValueError(f"{entry!r} was put into another queue; remove it there")
        if self.waiting.pop(entry._rank, None) is None:
            return False
        # Rebuilt once most ranks are of removed items: so rarely that it costs a removal little.
        while len(self._heap) > 32 + 3 * len(self.waiting):
            last_arrival, ranks = self._last_arrival, sorted(self.waiting)
            # Else something was put meanwhile, whose rank is in the old heap only: again.
            if last_arrival == self._last_arrival:
                self._heap = ranks
        return True

    def pop(self, now: int) -> Delayed[T] | None:
        """Take the head out if it is due at `now`, in ns; `None` if it is not, or there is none."""
        waiting = self.waiting
        # The heap is read again each time: `remove` may have replaced it meanwhile.
        while (heap := self._heap) and heap[0] >> DUE_SHIFT <= now:
            if heap[0] not in waiting:
                heappop(heap)
            elif (entry := waiting.pop(heap[0], None)) is not None:
                return entry
        return None

    def head(self) -> Delayed[T] | None:
        """Return the head, due or not; `None` if there is none."""
        while heap := self._heap:
            if heap[0] not in self.waiting:
                heappop(heap)
            elif (entry := self.waiting.get(heap[0])) is not None:
                return entry
        return None

    def next_due(self) -> int:
        """Return when the head is due, in ns; `NEVER` when empty."""
        entry = self.head()
        return NEVER if entry is None else entry._rank >> DUE_SHIFT

    def in_order(self) -> list[Delayed[T]]:
        """Return every entry, sorted."""
        entries = list(self.waiting.values())  # in one step: others may put meanwhile
        return sorted(entries, key=attrgetter("_rank"))

    def clear(self) -> list[Delayed[T]]:
        """Take everything out and return it, sorted."""
        entries = self.in_order()
        return [entry for entry in entries if self.waiting.pop(entry._rank, None) is not None]


def check_priority(priority: int) -> None:
    """Check a priority.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is out of range.
    """
    if priority.__class__ is not int:  # nor a subclass such as `bool`
        raise TypeError(f"priority must be an integer, not {type(priority).__name__}")
    limit = 1 << (PRIORITY_BITS - 1)
    if not -limit < priority < limit:
        raise ValueError(f"priority is {priority}; it must be between {1 - limit} and {limit - 1}")


class DelayQueueBase(OwnedByProcess, Generic[T]):
    """Items in the order of their due times; a subclass adds `take`, which waits."""

    _waiting: Any
    """The callers that wait in `take`, in the order in which they came; the first one leads."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._due_times = DueTimes(clock)
        self._reached = 0
        """The latest time that the clock has announced, in ns: it never goes back."""
        self._entries: DelayHeap[T] = DelayHeap()
        self._alarm = -NEVER
        """Until when the leader sleeps, in ns; an item due before this wakes it. `-NEVER`: no
        leader sleeps."""
        self._closed = False

    def put(
        self, item: T, delay: Delay | None = None, *, at: Moment | None = None, priority: int = 0
    ) -> Delayed[T]:
        """Put an item in, to come out when it is due. Never blocks: the queue has no bound.

        Args:
            item: anything, also `None`.
            delay: seconds or a `timedelta` from now; with neither `delay` nor `at` it is due now.
            at: an aware `datetime` or Unix seconds. A time in the past is due at once, before items
                with a later due time.
            priority: an integer of less than 2**31 either way; the larger goes first among items
                due at the same time.

        Returns:
            A handle for `remove`.

        Raises:
            ValueError: the delay is negative or NaN, the datetime has no time zone, or the priority
                is out of range.
            TypeError: both `delay` and `at`, or one of them or `priority` is of the wrong type.
            ShutDown: after `shutdown`.
        """
        due = self._due_times.of(delay, at)
        if priority or priority.__class__ is not int:
            check_priority(priority)
        return self._put_due(item, due, priority)

    def poll(self, default: D | None = None) -> T | D | None:
        """Take out and return the head if it is due now, else return `default`."""
        with self._lock:
            entry = self._entries.pop(self._now())
            self._leave()
        return default if entry is None else entry.item

    def peek(self) -> Delayed[T] | None:
        """Return the handle of the head, due or not, and leave it there; `None` when empty."""
        with self._lock:
            return self._entries.head()

    def remove(self, handle: Delayed[T]) -> bool:
        """Take an item back before it is taken.

        Returns:
            True: it will not come out. False: it was taken or removed before.

        Raises:
            ValueError: the handle is another queue's.
            TypeError: it is not a handle.
        """
        if handle.__class__ is not Delayed:
            raise TypeError(f"remove takes what put returned, not {type(handle).__name__}")
        self._check_process()
        removed = self._entries.remove(handle)
        if self._closed:
            self._leave()
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
            The items that were dropped, by due time.
        """
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
        """Iterate over the handles by due time: a snapshot, which costs O(n log n)."""
        self._check_process()
        return iter(self._entries.in_order())

    def _now(self) -> int:
        """Return the time in nanoseconds of the monotonic clock."""
        return max(int(self._clock.monotonic() * NS + 0.5), self._reached)

    def _limit(self, timeout: Delay | None) -> int:
        """Return when a wait ends, in nanoseconds of the monotonic clock; `NEVER`: no limit."""
        if timeout is None:
            return NEVER
        return self._now() + round(seconds_of(timeout, "timeout") * NS)

    def _put_due(self, item: T, due: int, priority: int = 0) -> Delayed[T]:
        """Put an item in by its due time in nanoseconds of the monotonic clock."""
        if self._forked or self._closed:
            self._check_process()
            raise ShutDown("the delay queue was shut down: it takes no more items")
        entry = self._entries.add(item, due, priority)
        if due < self._alarm:
            # Only who leads changes the alarm: it may have woken, and wait again, before this ends.
            self._wake()
        return entry

    def _check_end(self) -> None:
        """Check that something is in the queue, or can still come.

        Raises:
            ShutDown: neither.
        """
        if self._closed and not len(self._entries):
            raise ShutDown("the delay queue was shut down, and nothing is left in it")

    def _leave(self) -> None:
        """Ensure, before a method returns, that something waits for the next head."""
        if self._closed and not len(self._entries):
            self._wake(everybody=True)
        elif self._waiting and self._alarm == -NEVER:
            self._wake()

    def _wake(self, *, everybody: bool = False) -> None:
        """Wake one that waits in `take`, or all of them."""
        raise NotImplementedError
