# ruff: noqa: D102  (the name of each case says what it checks)
"""Bursts: in a limited queue, many messages of one group that are due delay no other group."""

import pytest

from bide.model.message import Item
from bide.model.rank import LOOK_GROUPS, LOOK_MESSAGES, LOOK_MOST, PROMOTE
from bide.model.times import interval
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases
from bide.testing.conformance.limiting import put

__all__ = ["BurstCases"]

BURST = 2 * PROMOTE + 5
"""More than two claims put into lines."""


def burst(
    start: int = 0, stop: int = BURST, group: str | None = "a", at: int = START
) -> list[Item]:
    """Return messages of one group."""
    numbers = range(start, stop)
    return [Item(f"{group}{n:05}", b"1", group=group, at=at) for n in numbers]


def drained(desk: Desk) -> list[str]:
    """Claim and ack until nothing is left; return the ids in their order."""
    found: list[str] = []
    while (claimed := desk.claim(500)).messages or claimed.behind:
        found += ids_of(claimed)
        desk.ack(*leases(claimed))
    return found


class BurstCases:
    """How claims look ahead."""

    @pytest.mark.parametrize("place", [0, BURST // 2, BURST])
    def test_a_burst_delays_no_other_group(self, bare: Desk, place: int) -> None:
        bare.configure(limit=100)
        items = [*burst(0, place), Item("b", b"1", group="b", at=START), *burst(place)]
        bare.put_items(items)
        claimed = bare.claim(2)
        served = ["a00000", "b"] if place else ["b", "a00000"]
        assert (ids_of(claimed), claimed.behind) == (served, True)
        bare.ack(*leases(claimed))
        assert sorted([*served, *drained(bare)]) == sorted(item.id for item in items)
        assert bare.counts().strays == 0

    def test_a_burst_that_one_claim_lines_up_leaves_nothing_behind(self, bare: Desk) -> None:
        bare.configure(limit=10)
        bare.put_items(burst(0, PROMOTE))
        assert not bare.claim(1).behind

    def test_a_burst_without_a_group_delays_no_group(self, bare: Desk) -> None:
        bare.configure(rate=interval("9/s"))
        bare.put_items(burst(group=None))
        put(bare, "b1")
        assert bare.take() == ["None00000"]
        bare.wait(200)
        assert bare.take() == ["b1"]

    def test_of_a_group_priority_and_due_time_decide_what_goes_ahead(self, bare: Desk) -> None:
        bare.configure(limit=100)
        bare.put_items(burst(at=START - 9))
        put(bare, "b3 c2")
        put(bare, "b2 c1", at=START - 1)
        put(bare, "b1", priority=1)
        put(bare, "b4", priority=255, at=START + 1)
        assert bare.take(3) == ["a00000", "c1", "b1"]  # they came in the order of their due times
        assert bare.take(3) == ["a00001", "b2", "c2"]
        assert bare.take(2) == ["a00002", "b3"]
        bare.wait(1)
        assert bare.take(2) == ["a00003", "b4"]

    def test_a_group_that_has_a_line_is_not_looked_at(self, bare: Desk) -> None:
        bare.configure(limit=100)
        bare.put_items(burst(at=START - 9))
        put(bare, "b1")
        put(bare, "b2", priority=1, at=START + 1)
        assert bare.take(1) == ["a00000"]
        bare.wait(1)
        assert bare.take(2) == ["b1", "a00001"]
        assert bare.take(1) == ["b2"]

    def test_what_falls_due_while_a_burst_is_lined_up_goes_ahead(self, bare: Desk) -> None:
        bare.configure(group_limit=1)
        bare.put_items(burst(0, BURST + PROMOTE))
        put(bare, "b1", delay=5)
        (lease,) = leases(bare.claim())
        bare.wait(5)
        claimed = bare.claim()
        assert ids_of(claimed) == ["b1"]
        bare.ack(lease, *leases(claimed))
        put(bare, "b2 c1")
        claimed = bare.claim()
        assert (ids_of(claimed), claimed.behind) == (["a00001", "b2", "c1"], True)

    def test_many_groups_go_ahead_in_the_order_of_their_due_times(self, bare: Desk) -> None:
        bare.configure(limit=1_000)
        bare.put_items(burst(at=START - 999))
        names = [f"g{number * 7 % 300:03}" for number in range(300)]
        bare.put_items([Item(name, b"1", group=name, at=START - 300 + number // 3)
                        for number, name in enumerate(names)])  # fmt: skip
        assert bare.take(301) == ["a00000", *names]

    def test_a_look_ahead_that_does_not_end_is_continued_by_the_next_claim(
        self, bare: Desk
    ) -> None:
        bare.configure(limit=100)
        bare.put_items(burst(0, BURST + 2 * PROMOTE))
        bare.put_items([Item(f"g{number}", b"1", group=f"g{number:05}", delay=HOUR)
                        for number in range(LOOK_GROUPS)])  # fmt: skip
        put(bare, "0 z")
        assert bare.take(1) == ["a00000"]  # it looked at 0, a and all but two of the others
        assert bare.take(2) == ["0", "z"]
        put(bare, "y1 y2")
        assert "y1" not in bare.take(2)  # the next look begins anew
        assert "y1" in bare.take(2)

    def test_a_group_with_very_many_messages_waits_until_they_are_in_line(self, bare: Desk) -> None:
        bare.configure(limit=100)
        bare.put_items(burst())
        for group, count in (("b", LOOK_MOST), ("c", LOOK_MOST + 1)):
            items = [Item(f"{group}{number}", b"1", group=group, delay=HOUR - number)
                     for number in range(1, count)]  # fmt: skip
            bare.put_items([*items[1:], Item(group, b"1", group=group, at=START), *items[:1]])
        assert bare.take(3) == ["a00000", "b", "a00001"]
        while bare.claim(0).behind:
            pass
        assert bare.take(2) == ["c", "a00002"]

    def test_a_look_ahead_ends_after_so_many_messages(self, bare: Desk) -> None:
        bare.configure(limit=100)
        bare.put_items(burst(stop=BURST + 2 * PROMOTE))
        each = LOOK_MOST * 9 // 10
        for group in range(-(-LOOK_MESSAGES // each)):
            bare.put_items([Item(f"b{group}-{number}", b"1", group=f"b{group}", delay=HOUR)
                            for number in range(each)])  # fmt: skip
        put(bare, "c1")
        assert bare.take(2) == ["a00000", "a00001"]
        assert "c1" in bare.take(2)

    def test_a_look_ahead_leaves_other_queues_alone(self, bare: Desk) -> None:
        other = bare.apart("other")
        put(other, "b1 c1")
        bare.configure(limit=100)
        bare.put_items(burst())
        put(bare, "b2 c2")
        assert bare.take(3) == ["a00000", "b2", "c2"]
        assert bare.counts().strays == other.counts().strays == 0
        assert other.take() == ["b1", "c1"]

    def test_what_went_ahead_can_be_changed(self, bare: Desk) -> None:
        bare.configure(limit=1)
        bare.put_items(burst(at=START - 5))
        put(bare, "b1 c1 d1 e1 f1 g1")
        put(bare, "h1", expires=3, at=START - 1)
        (lease,) = leases(bare.claim(lease=HOUR))
        assert bare.cancel("b1")[0].done
        bare.reschedule("c1", delay=2)
        bare.edit("d1", group="e")
        bare.edit("f1", priority=3)
        bare.set_aside("g1")
        assert bare.counts().strays == 0
        bare.wait(3)
        bare.ack(lease)
        bare.configure(limit=100)
        assert bare.take(4) == ["d1", "f1", "c1", "a00001"]
        assert bare.state("h1") == "expired"
        left = drained(bare)
        assert (left[0], len(left)) == ("e1", BURST - 1)
        assert bare.counts().strays == 0

    def test_a_claim_that_may_serve_nothing_does_not_look_ahead(self, bare: Desk) -> None:
        bare.configure(limit=1)
        bare.put_items(burst(0, BURST + 3 * PROMOTE, at=START - 5))
        (lease,) = leases(bare.claim(lease=HOUR))
        put(bare, "c1")
        assert bare.take() == []  # the limit
        bare.ack(lease)
        assert bare.claim(0).behind
        bare.configure(limit=0, rate=interval("1/s"))
        assert bare.take() == []  # the rate
        put(bare, "b1", at=START - 1)
        bare.wait(1_000)
        assert bare.take() == ["b1"]  # else c1 would have come into line before it
