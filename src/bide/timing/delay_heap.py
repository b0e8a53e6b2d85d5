"""A heap of items by due time, under `DelayQueue` and `AsyncDelayQueue`. No threads, no clock.

The order of an item is one integer, its rank: the due time first, then the priority (the larger
goes first), then the order of arrival. One integer is compared faster than three. A removed item
leaves only its rank in the heap, until two thirds of the ranks are of removed items.
"""

from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Generic, TypeVar

from bide.timing.times import NS

T = TypeVar("T")

NEVER: int = 1 << 200  # past any due time in ns
ARRIVAL_BITS = 50  # thirty-five years of a million items a second
PRIORITY_BITS = 32
MOMENT = ARRIVAL_BITS + PRIORITY_BITS  # the lowest bit of the due time, in ns, in a rank
PRIORITY_0 = 1 << (MOMENT - 1)  # the other bits of the first rank with priority 0


class Delayed(Generic[T]):
    """One item that waits in a delay queue: `put` returns it and `remove` takes it.

    Attributes:
        item: what was put.
    """

    __slots__ = ("_home", "_rank", "item")
    item: T
    _home: "DelayHeap[T]"
    _rank: int

    @property
    def due(self) -> float:
        """When it is due, in seconds of the queue's `Clock.monotonic()`."""
        return (self._rank >> MOMENT) / NS

    @property
    def priority(self) -> int:
        """The larger goes first among items due at the same time."""
        within = self._rank & ((1 << MOMENT) - 1)
        return (PRIORITY_0 >> ARRIVAL_BITS) - (within >> ARRIVAL_BITS)

    @property
    def pending(self) -> bool:
        """Whether it still waits: neither taken, nor drained, nor removed."""
        return self._rank in self._home.waiting

    def __repr__(self) -> str:
        return f"<Delayed {self.item!r} due={self.due:.3f} priority={self.priority}>"


class DelayHeap(Generic[T]):
    """Items by due time in nanoseconds, priority and order of arrival."""

    def __init__(self) -> None:
        self.waiting: dict[int, Delayed[T]] = {}
        """The items by rank."""
        self._heap: list[int] = []  # their ranks, and those of some removed items
        self._came = PRIORITY_0  # counts up by one an item

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, item: T, due: int, priority: int) -> Delayed[T]:
        """Put an item in, with a priority that `check_priority` has accepted."""
        self._came = came = self._came + 1
        rank = (due << MOMENT) + came - (priority << ARRIVAL_BITS)
        entry: Delayed[T] = Delayed()  # and no `__init__`: calling it would cost as much again
        entry.item = item
        entry._rank = rank
        entry._home = self
        self.waiting[rank] = entry
        heappush(self._heap, rank)
        return entry

    def remove(self, entry: Delayed[T]) -> bool:
        """Take an entry out; False when it waits no more.

        Raises:
            ValueError: the entry is another queue's.
        """
        if entry._home is not self:
            raise ValueError(f"{entry!r} was put into another queue; remove it there")
        if self.waiting.pop(entry._rank, None) is None:
            return False
        if len(self._heap) > 32 + 3 * len(self.waiting):
            self._heap = list(self.waiting)
            heapify(self._heap)
        return True

    def pop(self, now: int) -> Delayed[T] | None:
        """Take the head out if it is due at `now`."""
        heap = self._heap
        while heap and heap[0] >> MOMENT <= now:
            if (entry := self.waiting.pop(heappop(heap), None)) is not None:
                return entry
        return None

    def head(self) -> Delayed[T] | None:
        """Return the head, due or not."""
        heap = self._heap
        while heap and heap[0] not in self.waiting:
            heappop(heap)
        return self.waiting[heap[0]] if heap else None

    def next_due(self) -> int:
        """Return when the head is due; `NEVER` when empty."""
        entry = self.head()
        return NEVER if entry is None else entry._rank >> MOMENT

    def in_order(self) -> list[Delayed[T]]:
        """Return every entry, sorted."""
        return sorted(self.waiting.values(), key=attrgetter("_rank"))

    def clear(self) -> list[Delayed[T]]:
        """Take everything out and return it, sorted."""
        entries = self.in_order()
        self.waiting.clear()
        self._heap.clear()
        return entries


def check_priority(priority: int) -> None:
    """Check a priority.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is out of range.
    """
    if priority.__class__ is not int:
        raise TypeError(f"priority must be an integer, not {type(priority).__name__}")
    limit = 1 << (PRIORITY_BITS - 1)
    if not -limit < priority < limit:
        raise ValueError(f"priority is {priority}; it must be between {1 - limit} and {limit - 1}")
