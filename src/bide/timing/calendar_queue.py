"""A priority queue by due time, under `DelayQueue` and `AsyncDelayQueue`.

Entries that are far off are in a `Hierarchy`, where adding and removing are O(1). Only the entries
of the current page (a millisecond, or a quarter of a second if little is due in it) are in a heap,
which gives them their exact order. So the heap stays small however many entries wait. R. Brown
described a calendar whose current page alone is sorted ("Calendar queues", CACM 1988). No threads,
no clock.

The order of an entry is one integer, its rank: the due time first, then the priority (the larger
goes first), then the order of arrival. One integer is compared faster than three, and an entry
needs less memory.
"""

from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Generic, TypeVar

from bide.timing.hierarchy import NEVER, Entry, Hierarchy, Slot
from bide.timing.moments import NS

__all__ = ["CalendarQueue", "Delayed", "check_priority"]

T = TypeVar("T")

ARRIVAL_BITS = 50  # thirty-five years of a million entries a second
PRIORITY_BITS = 32
MOMENT = ARRIVAL_BITS + PRIORITY_BITS  # the lowest bit of the moment, in ns, in a rank
PRIORITY_0 = 1 << (MOMENT - 1)  # the other bits of the first rank with priority 0
TICK = 20  # a tick is 2**20 ns
PAGE = 128  # entries; that many are put in order at once

by_rank = attrgetter("_due")


class Delayed(Entry, Generic[T]):
    """One item that waits in a delay queue: `put` returns it and `remove` takes it.

    Attributes:
        item: what was put.
    """

    __slots__ = ("_home", "item")
    item: T
    _home: "CalendarQueue[T]"

    @property
    def due(self) -> float:
        """When it is due, in seconds of the queue's `Clock.monotonic()`."""
        return (self._due >> MOMENT) / NS

    @property
    def priority(self) -> int:
        """The larger goes first among items due at the same time."""
        within = self._due & ((1 << MOMENT) - 1)
        return (PRIORITY_0 >> ARRIVAL_BITS) - (within >> ARRIVAL_BITS)

    @property
    def pending(self) -> bool:
        """Whether it still waits: neither taken, nor drained, nor removed."""
        return self._slot is not None

    def __repr__(self) -> str:
        return f"<Delayed {self.item!r} due={self.due:.3f} priority={self.priority}>"


class CalendarQueue(Generic[T]):
    """Items by due time in nanoseconds, priority and order of arrival."""

    def __init__(self, now: int) -> None:
        self._later: Hierarchy[Delayed[T]] = Hierarchy(MOMENT + TICK, now >> TICK, page=PAGE)
        self._heap: list[int] = []  # the ranks of the current page, those of removed entries too
        self._near: dict[int, Delayed[T]] = {}  # the entries of the current page by rank
        self._in_heap: Slot[Delayed[T]] = Slot(NEVER)  # marks them; holds nothing
        self._came = PRIORITY_0  # counts up by one an entry
        self._went = PRIORITY_0

    def __len__(self) -> int:
        return self._came - self._went

    def add(self, item: T, due: int, priority: int) -> Delayed[T]:
        """Put an item in, with a priority that `check_priority` has accepted."""
        later = self._later
        self._came = came = self._came + 1
        rank = (due << MOMENT) + came
        if priority:
            rank -= priority << ARRIVAL_BITS
        entry: Delayed[T] = Delayed()  # and no `__init__`: calling it would cost as much again
        entry.item = item
        entry._due = rank
        entry._home = self
        if due >> TICK > later.current:
            later.place(entry, later.current)
        else:
            entry._slot = self._in_heap
            self._near[rank] = entry
            heappush(self._heap, rank)
        return entry

    def remove(self, entry: Delayed[T]) -> bool:
        """Take an entry out; False when it waits no more.

        Raises:
            ValueError: the entry is another queue's.
        """
        if entry._home is not self:
            raise ValueError(f"{entry!r} was put into another queue; remove it there")
        slot = entry._slot
        if slot is None:
            return False
        entry._slot = None
        self._went += 1
        if slot is not self._in_heap:
            slot.remove(entry)
            return True
        near = self._near
        del near[entry._due]
        if len(self._heap) > 32 + 2 * len(near):
            self._heap = list(near)
            heapify(self._heap)
        return True

    def pop(self, now: int) -> Delayed[T] | None:
        """Take the head out if it is due at `now`."""
        heap = self._heap
        while True:
            if heap:
                if heap[0] >> MOMENT > now:
                    return None
                entry = self._near.pop(heappop(heap), None)
                if entry is not None:
                    entry._slot = None
                    self._went += 1
                    return entry
            elif not self._fill_heap(now):
                return None

    def next_due(self) -> int:
        """Return when the head is due, rarely a bit earlier; `NEVER` when empty."""
        self._drop_removed()
        rank = self._heap[0] if self._heap else self._later.earliest()
        return rank >> MOMENT if rank < NEVER else NEVER

    def head(self) -> Delayed[T] | None:
        """Return the head, due or not."""
        self._drop_removed()
        if self._heap:
            return self._near[self._heap[0]]
        return min(self._later.head(), key=by_rank, default=None)

    def crowd(self) -> int:
        """Return when to call `spread`, or something past `NEVER`."""
        return self._later.crowd() << TICK

    def spread(self) -> None:
        """Move a part of a crowded slot, so that not all of it moves at once."""
        self._later.spread()

    def in_order(self) -> list[Delayed[T]]:
        """Return every entry, sorted."""
        entries = self._later.entries()
        entries += self._near.values()
        return sorted(entries, key=by_rank)

    def clear(self) -> list[Delayed[T]]:
        """Take everything out and return it, sorted."""
        entries = self.in_order()
        for entry in entries:
            entry._slot = None
        self._later.clear()
        self._heap.clear()
        self._near.clear()
        self._went = self._came
        return entries

    def _fill_heap(self, now: int) -> bool:
        later, near, marker = self._later, self._near, self._in_heap
        slot = later.pull(now >> TICK)
        if slot is None:
            return False
        while slot is not None:
            for entry in slot:
                entry._slot = marker
                near[entry._due] = entry
            slot = later.pull(later.current)
        self._heap.extend(near)
        heapify(self._heap)
        return True

    def _drop_removed(self) -> None:
        while self._heap and self._heap[0] not in self._near:
            heappop(self._heap)


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
