"""The hierarchical timing wheel as a data structure: no clock, no threads, no callbacks.

Entries are in slots. A slot of level 0 is one tick wide, a slot of each further level as wide as
256 of the level below. An entry is put on the lowest level on which its slot is not the current
one, and moves down ("cascades") when time enters its slot: at most once a level. So adding and
removing cost the same at ten entries and at ten million. This is scheme 7 of Varghese and Lauck,
"Hashed and Hierarchical Timing Wheels" (SOSP 1987), with these differences:

- Slots are in a dict by their absolute number, and a small heap of these numbers replaces stepping
  over them: no empty slot is ever visited, and there is no last level to overflow.
- A slot is an insertion-ordered dict of its entries. That makes removing exact and O(1), and costs
  the cyclic garbage collector a fifth of what a doubly linked list of the same entries does.
- A crowded slot can be moved down a few hundred entries at a time, before it is due, so that
  no caller waits for a million of them to move at once.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

BITS = 8
"""A level has 256 times the span of the one below: two to the power of this."""

CROWD = 512
"""A slot with more entries than this is moved down ahead of time."""

NEVER: int = 1 << 200
"""Past any tick and any `_due`."""

E = TypeVar("E", bound="Entry")


class Entry:
    """Waits in a slot until `_due`; `_slot` is None when it no longer waits."""

    __slots__ = ("_due", "_slot")
    _due: int
    _slot: "Slot[Any] | None"


class Slot(dict[E, None]):
    """The entries of one slot, in the order in which they were added."""

    __slots__ = ("earliest", "removed")

    def __init__(self, earliest: int) -> None:
        self.earliest = earliest
        """No entry is due before this tick. It may be too early, if the earliest was removed."""
        self.removed = 0
        """How many entries were removed since the memory was given back."""

    def remove(self, entry: E) -> None:
        """Take an entry out, and give back the memory it used."""
        del self[entry]
        if not self:
            self.clear()  # an empty dict keeps its table otherwise
            self.removed = 0
            self.earliest = NEVER
            return
        self.removed += 1
        # A dict does not shrink by itself. Rebuilt so rarely that it costs a removal little.
        if self.removed > 32 + 2 * len(self):
            remaining = dict.fromkeys(self)
            try:
                self.clear()
            finally:  # also if an interrupt comes between
                self.update(remaining)
            self.removed = 0


class Level(Generic[E]):
    """The slots of one width. `keys` is a heap of the slots' numbers, some of them empty by now."""

    __slots__ = ("keys", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.slots: dict[int, Slot[E]] = {}
        self.keys: list[int] = []

    def first(self) -> Slot[E] | None:
        """Return the earliest slot that has entries, whose number is then the first of `keys`.

        Empty slots before it are forgotten. `None`: there is no entry.
        """
        while self.keys:
            slot = self.slots.get(self.keys[0])
            if slot:
                return slot
            self.slots.pop(heappop(self.keys), None)
        return None


class _Moving(NamedTuple, Generic[E]):
    """A crowded slot that is moved down part by part."""

    slot: Slot[E]
    remaining: Iterator[E]
    """What was in it at the beginning, and is not moved yet."""


class Hierarchy(Generic[E]):
    """Entries by tick: the tick of an entry is its `_due`.

    Attributes:
        current: this tick and all before it were pulled.

    Args:
        current: the tick to start from.
        part_ticks: ticks that moving `CROWD` entries down may take, generously.
    """

    def __init__(self, current: int, part_ticks: int = 1) -> None:
        self._part_ticks = part_ticks
        self._levels: list[Level[E]] = [Level(level * BITS) for level in range(64 // BITS)]
        self._ticks = self._levels[0]
        self._wide_begin: int = NEVER
        """No slot of the levels above the first begins before this tick."""
        self._moving: _Moving[E] | None = None
        """The crowded slot of which a part was moved."""
        self.current = current
        # The highest bit in which a tick differs from `current` says on which level their slots
        # differ.
        self._level_at = [self._ticks] + [self._levels[bits // BITS] for bits in range(64)]
        """The level that a tick goes to, by the bit length of (tick ^ current)."""

    def __len__(self) -> int:
        """Count the entries, by slot: there are a few hundred slots."""
        return sum(len(slot) for level in self._levels for slot in level.slots.values())

    def place(self, entry: E, start: int) -> None:
        """Put an entry on the lowest level on which its slot is not that of the tick `start`.

        A new entry, whose tick must be after `current`, is placed from there.
        """
        tick = entry._due
        level = self._level_at[(tick ^ start).bit_length()]
        key = tick >> level.shift
        slot = level.slots.get(key)
        if slot is None:
            slot = Slot(tick)
            if level.shift and key << level.shift < self._wide_begin:
                self._wide_begin = key << level.shift
            heappush(level.keys, key)  # first: a slot without its key would never be found
            level.slots[key] = slot
        elif tick < slot.earliest:
            slot.earliest = tick
        slot[entry] = None
        entry._slot = slot

    def pull(self, tick: int) -> Slot[E] | None:
        """Detach the slot of the earliest tick, if that is at most `tick`; None when none is.

        The entries keep their `_slot`: the caller settles each.
        """
        ticks = self._ticks
        while True:
            slot = ticks.first()
            first_tick = NEVER if slot is None else ticks.keys[0]
            if first_tick < self._wide_begin:
                if first_tick > tick:
                    break
                del ticks.slots[heappop(ticks.keys)]
                self.current = max(self.current, first_tick)
                return slot
            if self._wide_begin > tick:
                break
            # A wider slot may have an entry of this tick, or of an earlier one.
            self._lower()
        self.current = max(self.current, tick)
        return None

    def earliest(self) -> int:
        """Return the `_due` of the earliest entry, or `NEVER`.

        Exact, unless the earliest of its slot was removed: then it may be too early, by less than
        the width of a slot.
        """
        firsts = [level.first() for level in self._levels]
        return min((slot.earliest for slot in firsts if slot is not None), default=NEVER)

    def crowd(self) -> tuple[int, Level[E] | None]:
        """Return the tick at which to begin moving a crowded slot down, and the level it is on.

        Returns `NEVER` and no level if there is no crowded slot.
        """
        earliest_begin, crowded = NEVER, None
        for level in self._levels[1:]:
            slot = level.first()
            if slot is not None and len(slot) > CROWD:
                parts = 1 + len(slot) // CROWD
                slot_begin = level.keys[0] << level.shift
                # So early that all parts are moved when time enters the slot.
                begin = slot_begin - parts * self._part_ticks
                if begin < earliest_begin:
                    earliest_begin, crowded = begin, level
        return earliest_begin, crowded

    def spread(self, level: Level[E]) -> None:
        """Move at most `CROWD` entries of the first slot of a level down. Order is kept."""
        key = level.keys[0]
        slot = level.slots[key]
        if self._moving is None or self._moving.slot is not slot:
            self._moving = _Moving(slot, iter(list(slot)))
        part = list(islice(self._moving.remaining, CROWD))
        if len(part) < CROWD:
            self._moving = None  # what was added meanwhile is moved later
        part = [entry for entry in part if entry._slot is slot]  # the others were cancelled
        for entry in part:
            slot.remove(entry)
            self.place(entry, key << level.shift)

    def in_order(self) -> list[E]:
        """Return every entry, sorted by tick."""
        slots = (slot for level in self._levels for slot in level.slots.values())
        return sorted(chain.from_iterable(slots), key=attrgetter("_due"))

    def _lower(self) -> None:
        """Move down the wider slot that begins first; of several, the widest.

        The widest goes first because what it holds came earlier than what lies in the narrow one.
        """
        first_level: Level[E] | None = None
        start = self._wide_begin = NEVER
        for level in self._levels[1:]:  # from narrow to wide
            if level.first() is not None and level.keys[0] << level.shift <= start:
                first_level = level
                start = level.keys[0] << level.shift
        if first_level is not None:
            slot = first_level.slots.pop(heappop(first_level.keys))
            for entry in list(slot):  # a finalizer may cancel some meanwhile
                if entry._slot is slot:
                    self.place(entry, start)
            self._wide_begin = min(
                (wider.keys[0] << wider.shift for wider in self._levels[1:] if wider.keys),
                default=NEVER,
            )
