"""The hierarchy gives back every entry at its tick, in the order in which they came."""

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bide.timing import hierarchy as module
from bide.timing.hierarchy import CROWD, NEVER, Entry, Hierarchy

TICKS = st.one_of(
    st.integers(1, 40),
    st.sampled_from([255, 256, 257, 511, 512, 65_535, 65_536, 65_537, 2**24, 2**40, 2**53]),
    st.integers(1, 2**20),
)


class Numbered(Entry):
    """An entry with a number, to tell it from others."""

    def __init__(self, due: int, number: int) -> None:
        self._due = due
        self._slot = None
        self.number = number


def fill(hierarchy: Hierarchy[Numbered], dues: list[int]) -> list[Numbered]:
    entries = [Numbered(due, number) for number, due in enumerate(dues)]
    for entry in entries:
        hierarchy.place(entry, hierarchy.current)
    return entries


def pull_all(hierarchy: Hierarchy[Numbered], tick: int) -> list[Numbered]:
    pulled: list[Numbered] = []
    while (slot := hierarchy.pull(tick)) is not None:
        assert len({entry._due for entry in slot}) == 1
        pulled.extend(slot)
    return pulled


def remove(entry: Numbered) -> None:
    assert entry._slot is not None
    entry._slot.remove(entry)
    entry._slot = None


def spread(hierarchy: Hierarchy[Numbered]) -> None:
    _, crowded = hierarchy.crowd()
    if crowded is not None:
        hierarchy.spread(crowded)


@mock.patch.object(module, "CROWD", 3)  # so that a few entries are a crowd
@settings(deadline=None)
@given(st.lists(TICKS, max_size=60), st.lists(TICKS, max_size=12), st.data())
def test_it_agrees_with_a_sorted_list(
    dues: list[int], steps: list[int], data: st.DataObject
) -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    waiting = fill(hierarchy, dues)
    number = len(waiting)
    now = 0
    for step in steps:
        now += step
        for _ in range(data.draw(st.integers(0, 2))):
            spread(hierarchy)
        if data.draw(st.booleans()) and waiting:
            remove(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        waiting.sort(key=lambda entry: (entry._due, entry.number))
        assert hierarchy.earliest() <= (waiting[0]._due if waiting else NEVER)
        due = [entry for entry in waiting if entry._due <= now]
        assert pull_all(hierarchy, now) == due
        waiting = waiting[len(due) :]
        for ahead in data.draw(st.lists(TICKS, max_size=4)):
            entry = Numbered(now + ahead, number)
            number += 1
            hierarchy.place(entry, hierarchy.current)
            waiting.append(entry)
        assert len(hierarchy) == len(waiting)
        assert set(hierarchy.in_order()) == set(waiting)


def test_the_earliest_is_exact_while_nothing_is_removed() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    fill(hierarchy, [70_000, 66_000, 300, 2**30])
    assert hierarchy.earliest() == 300
    pull_all(hierarchy, 300)
    assert hierarchy.earliest() == 66_000


def test_removing_one_touches_no_neighbour_in_its_slot() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [5_000] * 100)
    for entry in entries[::2]:
        remove(entry)
    assert pull_all(hierarchy, 5_000) == entries[1::2]


def test_no_empty_slot_is_visited_on_the_way_to_a_far_tick() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    [entry] = fill(hierarchy, [2**52 + 12_345])
    assert hierarchy.pull(2**52) is None
    assert pull_all(hierarchy, 2**52 + 12_345) == [entry]


def test_a_crowded_slot_moves_down_in_parts_ahead_of_time() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [100_000 + number % 7 for number in range(10 * CROWD)])
    begin, _ = hierarchy.crowd()
    assert 65_536 - 20 <= begin < 65_536
    for _ in range(100):
        spread(hierarchy)
    assert hierarchy.crowd()[0] > begin
    late = Numbered(100_000, len(entries))
    hierarchy.place(late, hierarchy.current)
    gone = entries.pop(3)
    remove(gone)
    expected = sorted([*entries, late], key=lambda entry: (entry._due, entry.number))
    assert pull_all(hierarchy, 200_000) == expected


def test_entries_removed_while_their_slot_moves_stay_away() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [70_000] * (3 * CROWD))
    spread(hierarchy)
    for entry in entries[::3]:
        remove(entry)
    kept = [entry for entry in entries if entry._slot is not None]
    spread(hierarchy)
    assert pull_all(hierarchy, 70_000) == kept


def test_empty_slots_do_not_pile_up() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    for tick in range(1, 50_000):
        hierarchy.pull(tick)
        entry = Numbered(tick + 30_000, tick)
        hierarchy.place(entry, hierarchy.current)
        remove(entry)
    assert len(hierarchy) == 0
    assert sum(len(level.slots) for level in hierarchy._levels) < 2_000


@pytest.mark.parametrize("kept", [1, 40])
def test_a_slot_gives_its_memory_back(kept: int) -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [70_000] * 10_000)
    slot = entries[0]._slot
    assert slot is not None
    full = slot.__sizeof__()
    for entry in entries[kept:]:
        remove(entry)
    assert slot.__sizeof__() < full / 20
    assert pull_all(hierarchy, 70_000) == entries[:kept]
