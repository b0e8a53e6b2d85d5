"""A priority queue by moment: what `DelayQueue` and `AsyncDelayQueue` have in common.

What is far off lies in a `Hierarchy`, where adding and removing are O(1). Only the entries of the
earliest tick, about a millisecond, lie in a heap that gives them their exact order: moment first,
then priority, then the order in which they came. So the heap stays small however many entries
wait. The idea of a calendar whose current page alone is sorted is R. Brown's ("Calendar queues",
CACM 1988). No threads, no clock.
"""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from bide.timing.hierarchy import LEVEL_OF, NEVER, Entry, Hierarchy, Slot
from bide.timing.moments import NS

__all__ = ["CalendarQueue", "Delayed"]

T = TypeVar("T")

SHIFT = 20  # a tick is 2**20 ns


class Delayed(Entry, Generic[T]):
    """One item that waits in a delay queue: what `put` returns and `remove` takes.

    Attributes:
        item: what was put.
        priority: the larger goes first among items due at the same moment.
    """

    __slots__ = ("_home", "_order", "item", "priority")

    def __init__(
        self, item: T, due: int, priority: int, order: int, home: "CalendarQueue[T]"
    ) -> None:
        self.item = item
        self.priority = priority
        self._due = due
        self._order = order
        self._home = home
        self._slot = None

    @property
    def due(self) -> float:
        """The moment, in seconds of the queue's `Clock.monotonic()`."""
        return self._due / NS

    @property
    def pending(self) -> bool:
        """Whether it still waits: neither taken, nor drained, nor removed."""
        return self._slot is not None

    def __repr__(self) -> str:
        return f"<Delayed {self.item!r} due={self.due:.3f} priority={self.priority}>"


class CalendarQueue(Generic[T]):
    """Items by due moment in nanoseconds, priority and order of arrival."""

    def __init__(self, now: int) -> None:
        self._count = 0
        self._later: Hierarchy[Delayed[T]] = Hierarchy(SHIFT, now >> SHIFT)
        self._heap: list[tuple[int, int, int]] = []  # moment, minus priority, order
        self._near: dict[int, Delayed[T]] = {}  # by order: those of the heap that are not removed
        self._in_heap: Slot[Delayed[T]] = Slot(NEVER)  # marks them; holds nothing
        self._order = 0

    def __len__(self) -> int:
        return self._count

    def add(self, item: T, due: int, priority: int, now: int) -> Delayed[T]:
        """Put an item in."""
        later = self._later
        self._order = order = self._order + 1
        entry = Delayed(item, due, priority, order, self)
        self._count += 1
        if self._count == 1 and now >> SHIFT > later.current:
            later.current = now >> SHIFT
        tick = due >> SHIFT
        if tick > later.current:
            # `later.add(entry)`, but for a slot that is there: a call less.
            level = later._levels[LEVEL_OF[(tick ^ later.current).bit_length()]]
            slot = level.slots.get(tick >> level.shift)
            if slot is None:
                later.add(entry)
            else:
                slot[entry] = None
                entry._slot = slot
                if due < slot.earliest:
                    slot.earliest = due
        else:
            entry._slot = self._in_heap
            self._near[entry._order] = entry
            heappush(self._heap, (due, -priority, entry._order))
        return entry

    def remove(self, entry: Delayed[T]) -> bool:
        """Take an entry out; False when it waits no more.

        Raises:
            ValueError: the entry is another queue's.
        """
        if entry._home is not self:
            raise ValueError(f"{entry!r} was put into another queue; remove it there")
        if entry._slot is None:
            return False
        self._count -= 1
        if entry._slot is not self._in_heap:
            slot = entry._slot
            entry._slot = None
            slot.remove(entry)
            return True
        entry._slot = None
        near = self._near
        del near[entry._order]
        if len(self._heap) > 32 + 2 * len(near):
            self._heap = [row for row in self._heap if row[2] in near]
            heapify(self._heap)
        return True

    def pop(self, now: int) -> Delayed[T] | None:
        """Take the head out if it is due at `now`."""
        while True:
            if self._heap:
                if self._heap[0][0] > now:
                    return None
                entry = self._near.pop(heappop(self._heap)[2], None)
                if entry is not None:
                    entry._slot = None
                    self._count -= 1
                    return entry
            elif not self._count or not self._fill_heap(now):
                return None

    def next_due(self) -> int:
        """Return when to look again, `NEVER` when empty: the head's moment, seldom a bit before."""
        self._drop_removed()
        return self._heap[0][0] if self._heap else self._later.earliest()

    def head(self) -> Delayed[T] | None:
        """Return the head, due or not."""
        self._drop_removed()
        if self._heap:
            return self._near[self._heap[0][2]]
        return min(self._later.head(), key=_by_order, default=None)

    def crowd(self) -> int:
        """Return the moment at which to call `spread`, or something past `NEVER`."""
        return self._later.crowd() << SHIFT

    def spread(self) -> None:
        """Do a small part of the work that would otherwise come all at once."""
        self._later.spread()

    def in_order(self) -> list[Delayed[T]]:
        """Return every entry, sorted."""
        entries = self._later.entries()
        entries += self._near.values()
        return sorted(entries, key=_by_order)

    def clear(self) -> list[Delayed[T]]:
        """Take everything out and return it, sorted."""
        entries = self.in_order()
        for entry in entries:
            entry._slot = None
        self._later.clear()
        self._heap.clear()
        self._near.clear()
        self._count = 0
        return entries

    def _fill_heap(self, now: int) -> bool:
        slot = self._later.pull(now >> SHIFT)
        if slot is None:
            return False
        marker = self._in_heap
        for entry in slot:
            entry._slot = marker
            self._near[entry._order] = entry
            self._heap.append((entry._due, -entry.priority, entry._order))
        heapify(self._heap)
        return True

    def _drop_removed(self) -> None:
        while self._heap and self._heap[0][2] not in self._near:
            heappop(self._heap)


def _by_order(entry: Delayed[T]) -> tuple[int, int, int]:
    return entry._due, -entry.priority, entry._order
