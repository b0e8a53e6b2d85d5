# ruff: noqa: D102  (the name of each case says what it checks)
"""Turns: in a limited queue groups take turns, and order holds within each."""

import random
from collections import Counter

import pytest

from bide.model.message import Item
from bide.model.rank import GAP, LOOK_GROUPS, LOOK_MESSAGES, LOOK_MOST, PROMOTE
from bide.model.times import interval
from bide.testing.conformance.driver import HOUR, START, Driver, ids_of, leases, numbered
from bide.testing.conformance.limiting import limited, put


def one_by_one(driver: Driver) -> str:
    """Claim messages one at a time until none comes; return them in their order."""
    return " ".join(driver.take_all(1))


def line_up(driver: Driver) -> None:
    """Claim nothing until all that is due is in line."""
    while (claimed := driver.claim(0)).behind:
        assert claimed.messages == []


class TurnCases:
    """How a limited queue chooses."""

    @pytest.mark.parametrize("count", [1, 5, 500])
    def test_groups_take_turns(self, driver: Driver, count: int) -> None:
        limited(driver, "a1 a2 b1 b2 a3 a4 c1 -1 -2", limit=100)
        assert " ".join(driver.take_all(count)) == "a1 b1 c1 -1 a2 b2 -2 a3 a4"

    def test_groups_enter_between_two_deliveries_in_their_order(self, driver: Driver) -> None:
        limited(driver, "d1 d2 d3 c1", limit=100)
        first = driver.hold(1, HOUR)
        put(driver, "z1")
        driver.claim(0)
        put(driver, "y1 y2", delay=HOUR)
        driver.reschedule("y1")
        driver.edit("z1", group="x")
        driver.claim(0)
        driver.retry(*first, release=True)  # d has waited since before
        put(driver, "z2 b1 -1")
        # Entered: d and c; then d was served; then x, y, z, b and none; d comes behind all of them
        assert one_by_one(driver) == "c1 z1 y1 z2 b1 -1 d1 d2 d3"

    def test_a_group_with_leases_enters_like_others(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1 b2 b3", limit=100)
        first = driver.hold(1, HOUR)
        assert driver.take(3) == ["b1", "a2", "b2"]
        put(driver, "c1")
        driver.claim(0)
        driver.retry(*first, release=True)
        assert one_by_one(driver) == "c1 a1 b3"

    def test_many_expired_messages_leave_room_for_others(self, bare: Driver) -> None:
        """Together they are more than a claim examines, and less than it may bring."""
        bare.configure(limit=2 * PROMOTE)
        count = PROMOTE * 2 // 3
        bare.put(*numbered(count), expires=1)
        bare.put(*numbered(count, count))
        line_up(bare)
        bare.wait(2)
        assert bare.take(PROMOTE) + bare.take(PROMOTE) == numbered(count, count)

    def test_an_expired_message_does_not_stretch_the_bound_of_bytes(self, driver: Driver) -> None:
        limited(driver, "a1", limit=9)
        put(driver, "b1", expires=0)
        put(driver, "b2", data=b"2" * 1_000)
        assert ids_of(driver.wait(1).claim(max_bytes=1_000)) == ["a1"]

    def test_many_groups_enter_one_behind_the_other(self, bare: Driver) -> None:
        """More than come before the group that was served last."""
        count = GAP + PROMOTE
        limited(bare, "a1 a2 a3", limit=20_000)
        assert bare.take(1) == ["a1"]
        ids = numbered(count)[::-1]
        bare.put_items([Item(id, b"1", group=id) for id in ids])
        line_up(bare)
        served = bare.take(count + 2)
        assert [id for id in served if id[0] == "m"] == ids
        assert served.index("a2") == GAP - 1

    def test_nobody_waits_for_more_than_one_message_of_each_other_group(self, bare: Driver) -> None:
        chance = random.Random(4)
        bare.configure(limit=1)
        arrived: dict[str, tuple[int, str]] = {}
        served: list[str] = []
        numbers = iter(range(10_000))
        for _ in range(400):
            for _ in range(chance.choice([0, 1, 1, 2])):
                group = chance.choice("aaaabbcdefgh")
                id = f"{group}{next(numbers)}"
                put(bare, id)
                arrived[id] = len(served), group
            claimed = bare.claim(1)
            for message in claimed.messages:
                since, group = arrived.pop(message.id)
                first = all(served[n] != group for n in range(since, len(served)))
                others = Counter(served[since:])
                assert not first or all(count <= 1 for count in others.values())
                served.append(group)
                bare.ack(*leases(claimed))

    def test_new_limits_line_up_what_is_ready(self, driver: Driver) -> None:
        put(driver, "a1 a2 a3", priority=2)
        put(driver, "b1 b2")
        assert driver.take(1) == ["a1"]  # this has made the others ready
        driver.configure(limit=9)
        assert one_by_one(driver) == "a2 b1 a3 b2"

    def test_changes_of_what_waits_keep_the_lines(self, driver: Driver) -> None:
        driver.configure(limit=100)
        put(driver, "a1 a2 a3 b1 b2 c1 c2 d1 d2", attempts=2)
        driver.claim(0)  # this has lined them up
        driver.cancel("a1")
        driver.reschedule("b1", delay=5)
        driver.edit("c1", group="a")
        driver.edit("a3", priority=5)
        driver.replace("d1", group="b")
        driver.set_aside("c2")
        # b2 and d2 stayed where they were; d1 has taken its place again behind b2
        assert one_by_one(driver) == "a3 b2 d2 a2 d1 c1"
        driver.revive("c2")
        driver.wait(5)
        assert one_by_one(driver) == "c2 b1"

    def test_a_backlog_is_lined_up_by_several_claims(self, bare: Driver) -> None:
        bare.configure(limit=10)
        count = 2 * PROMOTE + 5
        bare.put(*numbered(count, prefix="a"), group="a", delay=1)
        bare.put("b", group="b", delay=2)
        bare.wait(10)
        assert (claimed := bare.claim(1)).behind
        assert ids_of(claimed) == ["a00000"]
        assert bare.claim(0).behind
        last = bare.claim(0)
        assert (last.behind, last.next) == (False, 0)
        assert bare.take(2) == ["b", "a00001"]
        assert not bare.claim(1).behind
        assert bare.counts().sizes.total == count + 1

    def test_a_claim_that_finds_nothing_in_line_yet_is_to_be_repeated(self, bare: Driver) -> None:
        count = 3 * PROMOTE
        bare.put(*numbered(count), group="a", at=START - 5)
        bare.put("b", group="b", at=START - 4)
        bare.put("x", priority=1)
        for _ in range(4):
            bare.claim(1, lease=HOUR)  # this makes them ready
        bare.configure(group_limit=1)
        while not (claimed := bare.claim(1)).messages:
            assert (claimed.behind, claimed.next) == (True, 0)
        assert ids_of(claimed) == ["b"]

    def test_a_backlog_that_is_ready_is_lined_up_by_several_claims(self, bare: Driver) -> None:
        bare.put(*numbered(3 * PROMOTE, prefix="a"), group="a")
        bare.put("a", priority=1)
        for _ in range(3):
            bare.claim(1)  # this makes them ready
        bare.configure(limit=5)
        bare.put("b", group="b")
        line_up(bare)
        assert bare.counts().strays == 0
        assert set(bare.take(3)) == {"b", "a00002"}
        bare.cancel("a03000")
        assert bare.cancel_where(group="a").count == 1_000
        assert bare.counts().strays == 0
        bare.configure(limit=0)
        assert len(bare.take(5)) == 5


BURST = 2 * PROMOTE + 5
"""More than two claims put into lines."""


def burst(
    driver: Driver, start: int = 0, stop: int = BURST, at: int = START, **limits: int
) -> None:
    """Set limits of a queue, and put many messages of the group a."""
    driver.configure(**limits)
    driver.put(*numbered(stop - start, start, "a"), group="a", at=at)


def drained(driver: Driver) -> list[str]:
    """Claim and ack until nothing is left; return the ids in their order."""
    ids: list[str] = []
    while (claimed := driver.claim(500)).messages or claimed.behind:
        ids += ids_of(claimed)
        driver.ack(*leases(claimed))
    return ids


class BurstCases:
    """How claims look ahead."""

    @pytest.mark.parametrize("place", [0, BURST // 2, BURST])
    def test_a_burst_delays_no_other_group(self, bare: Driver, place: int) -> None:
        burst(bare, 0, place, limit=100)
        put(bare, "b")
        burst(bare, place)
        claimed = bare.claim(2)
        served = ["a00000", "b"] if place else ["b", "a00000"]
        assert (ids_of(claimed), claimed.behind) == (served, True)
        bare.ack(*leases(claimed))
        assert drained(bare) == numbered(BURST - 1, 1, "a")
        assert bare.counts().strays == 0

    def test_a_burst_that_one_claim_lines_up_leaves_nothing_behind(self, bare: Driver) -> None:
        burst(bare, 0, PROMOTE, limit=10)
        assert not bare.claim(1).behind

    def test_a_burst_without_a_group_delays_no_group(self, bare: Driver) -> None:
        bare.configure(rate=interval("9/s"))
        bare.put(*numbered(BURST))
        put(bare, "b1")
        assert bare.take() == ["m00000"]
        assert bare.wait(200).take() == ["b1"]

    def test_of_a_group_priority_and_due_time_decide_what_goes_ahead(self, bare: Driver) -> None:
        burst(bare, at=START - 9, limit=100)
        put(bare, "b3 c2")
        put(bare, "b2 c1", at=START - 1)
        put(bare, "b1", priority=1)
        put(bare, "b4", priority=255, at=START + 1)
        assert bare.take(3) == ["a00000", "c1", "b1"]  # they came in the order of their due times
        assert bare.take(3) == ["a00001", "b2", "c2"]
        assert bare.take(2) == ["a00002", "b3"]
        assert bare.wait(1).take(2) == ["a00003", "b4"]

    def test_a_group_that_has_a_line_is_not_looked_at(self, bare: Driver) -> None:
        burst(bare, at=START - 9, limit=100)
        put(bare, "b1")
        put(bare, "b2", priority=1, at=START + 1)
        assert bare.take(1) == ["a00000"]
        assert bare.wait(1).take(2) == ["b1", "a00001"]
        assert bare.take(1) == ["b2"]

    def test_what_falls_due_while_a_burst_is_lined_up_goes_ahead(self, bare: Driver) -> None:
        burst(bare, 0, BURST + PROMOTE, group_limit=1)
        put(bare, "b1", delay=5)
        held = bare.hold() + bare.wait(5).hold()
        assert [lease.id for lease in held] == ["a00000", "b1"]
        bare.ack(*held)
        put(bare, "b2 c1")
        claimed = bare.claim()
        assert (ids_of(claimed), claimed.behind) == (["a00001", "b2", "c1"], True)

    def test_many_groups_go_ahead_in_the_order_of_their_due_times(self, bare: Driver) -> None:
        burst(bare, at=START - 999, limit=1_000)
        names = [f"g{number * 7 % 300:03}" for number in range(300)]
        bare.put_items(
            Item(name, b"1", group=name, at=START - 300 + number // 3)
            for number, name in enumerate(names)
        )
        assert bare.take(301) == ["a00000", *names]

    def test_a_look_ahead_is_continued_by_the_next_claim(self, bare: Driver) -> None:
        burst(bare, 0, BURST + 2 * PROMOTE, limit=100)
        bare.put_items(
            [
                Item(f"g{number}", b"1", group=f"g{number:05}", delay=HOUR)
                for number in range(LOOK_GROUPS)
            ]
        )
        put(bare, "0 z")
        assert bare.take(1) == ["a00000"]  # it looked at 0, a and all but two of the others
        assert bare.take(2) == ["0", "z"]
        put(bare, "y1 y2")
        assert "y1" not in bare.take(2)  # the next look begins again
        assert "y1" in bare.take(2)

    def test_a_group_with_very_many_messages_waits_for_its_line(self, bare: Driver) -> None:
        burst(bare, limit=100)
        for group, count in (("b", LOOK_MOST), ("c", LOOK_MOST + 1)):
            items = [
                Item(f"{group}{number}", b"1", group=group, delay=HOUR - number)
                for number in range(1, count)
            ]
            bare.put_items([*items[1:], Item(group, b"1", group=group, at=START), *items[:1]])
        assert bare.take(3) == ["a00000", "b", "a00001"]
        line_up(bare)
        assert bare.take(2) == ["c", "a00002"]

    def test_a_look_ahead_ends_after_so_many_messages(self, bare: Driver) -> None:
        burst(bare, stop=BURST + 2 * PROMOTE, limit=100)
        each = LOOK_MOST * 9 // 10
        for group in range(-(-LOOK_MESSAGES // each)):
            bare.put(*numbered(each, prefix=f"b{group}-"), group=f"b{group}", delay=HOUR)
        put(bare, "c1")
        assert bare.take(2) == ["a00000", "a00001"]
        assert "c1" in bare.take(2)

    def test_a_look_ahead_leaves_other_queues_alone(self, bare: Driver) -> None:
        other = bare.apart("other")
        put(other, "b1 c1")
        burst(bare, limit=100)
        put(bare, "b2 c2")
        assert bare.take(3) == ["a00000", "b2", "c2"]
        assert bare.counts().strays == other.counts().strays == 0
        assert other.take() == ["b1", "c1"]

    def test_what_went_ahead_can_be_changed(self, bare: Driver) -> None:
        burst(bare, at=START - 5, limit=1)
        put(bare, "b1 c1 d1 e1 f1 g1")
        put(bare, "h1", expires=3, at=START - 1)
        (lease,) = bare.hold(lease=HOUR)
        assert bare.cancel("b1")[0].done
        bare.reschedule("c1", delay=2)
        bare.edit("d1", group="e")
        bare.edit("f1", priority=3)
        bare.set_aside("g1")
        assert bare.counts().strays == 0
        bare.wait(3).ack(lease)
        bare.configure(limit=100)
        assert bare.take(4) == ["d1", "f1", "c1", "a00001"]
        assert bare.state("h1") == "expired"
        remaining = drained(bare)
        assert (remaining[0], len(remaining)) == ("e1", BURST - 1)
        assert bare.counts().strays == 0

    def test_a_claim_that_may_serve_nothing_does_not_look_ahead(self, bare: Driver) -> None:
        burst(bare, 0, BURST + 3 * PROMOTE, at=START - 5, limit=1)
        (lease,) = bare.hold(lease=HOUR)
        put(bare, "c1")
        assert bare.take() == []  # the limit
        bare.ack(lease)
        assert bare.claim(0).behind
        bare.configure(limit=0, rate=interval("1/s"))
        assert bare.take() == []  # the rate
        put(bare, "b1", at=START - 1)
        assert bare.wait(1_000).take() == ["b1"]  # else c1 would have come into line before it
