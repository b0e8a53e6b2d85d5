# ruff: noqa: D102  (the name of each case says what it checks)
"""How a limited queue chooses: by priority, and among equal priorities groups share fairly."""

import random
from collections import Counter

import pytest

from bide.model.rank import PROMOTE
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


class SharingCases:
    """How a limited queue chooses."""

    @pytest.mark.parametrize("count", [1, 5, 500])
    def test_groups_share_fairly(self, driver: Driver, count: int) -> None:
        limited(driver, "a1 a2 b1 b2 a3 a4 c1 -1 -2", limit=100)
        assert " ".join(driver.take_all(count)) == "a1 b1 c1 -1 a2 b2 -2 a3 a4"

    def test_priority_decides_among_all_messages(self, driver: Driver) -> None:
        driver.configure(limit=100, group_limit=50)
        put(driver, "a1 a2 -1")
        put(driver, "b1 b2", priority=5)
        put(driver, "a3 c1", priority=9)
        assert one_by_one(driver) == "a3 c1 b1 b2 -1 a1 a2"

    def test_a_higher_priority_goes_before_a_group_that_has_waited(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1 b2 c1", limit=100)
        assert driver.take(1) == ["a1"]
        put(driver, "a9", priority=1)
        assert one_by_one(driver) == "a9 b1 c1 a2 b2"

    def test_a_new_group_joins_the_next_round(self, driver: Driver) -> None:
        limited(driver, "a1 a2 a3 b1 b2", limit=100)
        assert driver.take(1) == ["a1"]
        put(driver, "z1 z2")
        assert one_by_one(driver) == "b1 a2 b2 z1 a3 z2"

    def test_a_group_keeps_its_place_while_messages_come_and_go(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1 b2 b3", limit=100)
        (a1,) = driver.hold(1, HOUR)
        assert driver.take(3) == ["b1", "a2", "b2"]
        put(driver, "c1")
        driver.claim(0)
        driver.retry(a1, release=True)
        driver.edit("c1", group="x")
        assert one_by_one(driver) == "a1 b3 c1"

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

    def test_nobody_waits_for_more_than_two_messages_of_each_group(self, bare: Driver) -> None:
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
                assert not first or all(count <= 2 for count in others.values())
                served.append(group)
                bare.ack(*leases(claimed))

    def test_new_limits_line_up_what_is_ready(self, driver: Driver) -> None:
        put(driver, "a1 a2 a3", priority=2)
        put(driver, "b1 b2")
        assert driver.take(1) == ["a1"]  # this has made the others ready
        driver.configure(limit=9)
        assert one_by_one(driver) == "a2 a3 b1 b2"

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
        assert one_by_one(driver) == "a3 b2 d2 a2 d1 c1"
        driver.revive("c2")
        driver.wait(5)
        assert one_by_one(driver) == "b1 c2"

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
        assert bare.take(2) == ["a00001", "b"]
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

    def test_a_burst_delays_another_group_until_it_is_sorted(self, bare: Driver) -> None:
        bare.configure(limit=100)
        count = 5 * PROMOTE
        bare.put(*numbered(count, prefix="a"), group="a")
        put(bare, "b")
        claims = 0
        while (claimed := bare.claim(0)).behind:
            claims += 1
        assert (claims, claimed.next) == (5, 0)
        assert bare.take(3) == ["a00000", "b", "a00001"]

    def test_the_rest_of_a_burst_can_be_changed(self, bare: Driver) -> None:
        bare.configure(limit=100)
        count = 2 * PROMOTE + 5
        bare.put(*numbered(count, prefix="a"), group="a", at=START - 5)
        put(bare, "b1 c1 d1 e1")
        (lease,) = bare.hold(1, lease=HOUR)
        assert bare.cancel("b1")[0].done
        bare.edit("c1", group="d")
        bare.edit("d1", priority=3)
        bare.set_aside("e1")
        bare.ack(lease)
        line_up(bare)
        assert bare.counts().strays == 0
        assert bare.take(3) == ["d1", "a00001", "a00002"]

    def test_a_reply_says_that_the_queue_is_limited(self, driver: Driver) -> None:
        put(driver, "a1 a2")
        assert not driver.claim(1).limited
        driver.configure(group_rate=interval("9/m"))
        assert [driver.claim(1).limited for _ in "12"] == [True, True]
