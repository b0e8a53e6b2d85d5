"""The hierarchical timing wheel as a data structure: no clock, no threads, no callbacks.

Entries lie in slots; a slot of level 0 is one tick wide, a slot of each further level as wide as
256 of the level below. An entry is put on the lowest level on which its slot is not the current
one, and moves down ("cascades") when time enters its slot: at most once a level. So adding and
removing cost the same at ten entries and at ten million. After Varghese and Lauck, "Hashed and
Hierarchical Timing Wheels" (SOSP 1987), scheme 7, with these differences:

- Slots are kept in a dict by their absolute number, and a small heap of these numbers stands in
  for stepping over them: no empty slot is ever visited, and there is no last level to overflow.
- A slot is an insertion-ordered dict of its entries. That makes removing exact and O(1), and costs
  the cyclic garbage collector a fifth of what a doubly linked list of the same entries does.
- A crowded slot can be moved down a few hundred entries at a time, ahead of its moment, so that
  nobody waits for a million of them to move at once.
"""

from heapq import heappop, heappush
from typing import Generic, TypeVar

__all__ = ["Entry", "Hierarchy", "Slot"]

BITS = 8  # a level has 256 times the span of the one below
LEVEL_OF = [0] + [bits // BITS for bits in range(64)]  # by the bit length of (tick ^ current)
CROWD = 512  # a slot with more entries than this is moved down ahead of time
NEVER: int = 1 << 62

E = TypeVar("E", bound="Entry")


class Entry:
    """Something that waits in a slot. `_due` is an integer; `_slot` is None when it waits no more."""

    __slots__ = ("_due", "_slot")
    _due: int
    _slot: "Slot | None"


class Slot(dict[Entry, None]):
    """The entries of one slot, in the order in which they were added."""

    __slots__ = ("earliest", "removed")

    def __init__(self) -> None:
        self.earliest = NEVER  # no entry is due before this
        self.removed = 0

    def remove(self, entry: Entry) -> None:
        """Take an entry out, and give back the memory it used."""
        del self[entry]
        if not self:
            self.clear()
            self.removed = 0
            self.earliest = NEVER
            return
        self.removed += 1
        if self.removed > 32 + 2 * len(self):  # a dict does not shrink by itself
            rest = list(self)
            self.clear()
            self.update(dict.fromkeys(rest))
            self.removed = 0


class Level:
    """The slots of one width. `keys` is a heap of the slots' numbers, some of them empty by now."""

    __slots__ = ("keys", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.slots: dict[int, Slot] = {}
        self.keys: list[int] = []

    def first(self) -> Slot | None:
        """Return the earliest slot that has entries; forget the empty ones before it."""
        while self.keys:
            slot = self.slots[self.keys[0]]
            if slot:
                return slot
            del self.slots[heappop(self.keys)]
        return None


class Hierarchy(Generic[E]):
    """Entries by tick. The tick of an entry is its `_due`, shifted right by `shift` bits.

    Args:
        shift: how many low bits of `_due` are finer than a tick.
        current: the tick to start from.
    """

    __slots__ = ("_levels", "_shift", "count", "current")

    def __init__(self, shift: int, current: int) -> None:
        self._shift = shift
        self._levels = [Level(level * BITS) for level in range(64 // BITS)]
        self.current = current  # this tick and all before it were pulled
        self.count = 0

    def add(self, entry: E) -> None:
        """Put in an entry whose tick is after `current`."""
        due = entry._due
        self.count += 1
        tick = due >> self._shift
        level = self._levels[LEVEL_OF[(tick ^ self.current).bit_length()]]
        key = tick >> level.shift
        slot = level.slots.get(key)
        if slot is None:
            slot = level.slots[key] = Slot()
            heappush(level.keys, key)
        slot[entry] = None
        entry._slot = slot
        if due < slot.earliest:
            slot.earliest = due

    def remove(self, entry: E) -> None:
        """Take out an entry that was added and has not been pulled."""
        slot = entry._slot
        assert slot is not None
        entry._slot = None
        slot.remove(entry)
        self.count -= 1

    def pull(self, tick: int) -> Slot | None:
        """Detach the slot of the earliest occupied tick, if that is at most `tick`.

        Its entries keep their `_slot`: the caller settles each. None when nothing is due.
        """
        while (level := self._first_level()) is not None:
            key = level.keys[0]
            if key << level.shift > tick:
                break
            slot = level.slots.pop(heappop(level.keys))
            if level.shift == 0:
                self.current = key
                self.count -= len(slot)
                return slot
            self._move_down(slot, key << level.shift, list(slot))
        self.current = max(self.current, tick)
        return None

    def earliest(self) -> int:
        """Return the `_due` of the earliest entry, or `NEVER`.

        Exact, unless the earliest of its slot was removed: then it may be too early, by less than
        the width of a slot.
        """
        firsts = [level.first() for level in self._levels]
        return min((slot.earliest for slot in firsts if slot is not None), default=NEVER)

    def crowd(self) -> int:
        """Return the tick by which a crowded slot should have begun to move down, or `NEVER`.

        Two ticks (of about a millisecond) for every thousand entries leave time enough.
        """
        for level in self._levels[1:]:
            slot = level.first()
            if slot is not None and len(slot) > CROWD:
                return (level.keys[0] << level.shift) - len(slot) // CROWD - 1
        return NEVER

    def spread(self) -> None:
        """Move a part of the earliest crowded slot down one step. Order is kept."""
        for level in self._levels[1:]:
            slot = level.first()
            if slot is not None and len(slot) > CROWD:
                part = []
                for entry in slot:
                    part.append(entry)
                    if len(part) == CROWD:
                        break
                for entry in part:
                    del slot[entry]
                self._move_down(slot, level.keys[0] << level.shift, part)
                return

    def head(self) -> list[Entry]:
        """Return the entries of the earliest occupied tick, in the order in which they came."""
        while (level := self._first_level()) is not None:
            slot = level.slots[level.keys[0]]
            if level.shift == 0:
                return list(slot)
            del level.slots[heappop(level.keys)]
            self._move_down(slot, level.keys[0] << level.shift, list(slot))
        return []

    def entries(self) -> list[Entry]:
        """Return every entry, in no order."""
        return [entry for level in self._levels for slot in level.slots.values() for entry in slot]

    def clear(self) -> None:
        """Forget every entry. Their `_slot` is None afterwards."""
        for level in self._levels:
            for slot in level.slots.values():
                for entry in slot:
                    entry._slot = None
            level.slots.clear()
            level.keys.clear()
        self.count = 0

    def _first_level(self) -> Level | None:
        """Return the level whose first slot begins earliest; of several, the widest.

        The widest goes first because what it holds came earlier than what lies in the narrow one.
        """
        found: Level | None = None
        start = NEVER
        for level in self._levels:
            if level.keys and level.first() is not None and level.keys[0] << level.shift <= start:
                found = level
                start = level.keys[0] << level.shift
        return found

    def _move_down(self, slot: Slot, start: int, entries: list[Entry]) -> None:
        """Put entries of a slot that begins at `start` where they belong on the levels below."""
        shift = self._shift
        levels = self._levels
        for entry in entries:
            due = entry._due
            tick = due >> shift
            level = levels[LEVEL_OF[(tick ^ start).bit_length()]]
            key = tick >> level.shift
            below = level.slots.get(key)
            if below is None:
                below = level.slots[key] = Slot()
                heappush(level.keys, key)
            below[entry] = None
            entry._slot = below
            if due < below.earliest:
                below.earliest = due
