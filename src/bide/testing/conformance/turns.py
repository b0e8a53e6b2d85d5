# ruff: noqa: D102  (the name of each case says what it checks)
"""Turns: in a limited queue groups take turns, and order holds within each."""

import random
from collections import Counter
from typing import Any

from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.rank import GAP, PROMOTE
from bide.model.replies import Claimed
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases
from bide.testing.conformance.limiting import put

__all__ = ["TurnCases"]


def one_by_one(desk: Desk, **fields: Any) -> str:
    """Claim messages one at a time until none comes; return them in their order."""
    found = []
    while taken := desk.take(1, **fields):
        found += taken
    return " ".join(found)


class TurnCases:
    """How a limited queue chooses."""

    def test_groups_take_turns(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "a1 a2 a3 a4 b1 b2 c1 -1 -2")
        assert one_by_one(desk, lease=HOUR) == "a1 b1 c1 -1 a2 b2 -2 a3 a4"

    def test_groups_enter_in_the_order_in_which_their_messages_are_due(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "c1 a1 b1 c2")
        put(desk, "d1", at=START - 1)
        put(desk, "-1 e1", priority=1)
        assert one_by_one(desk, lease=HOUR) == "d1 -1 e1 c1 a1 b1 c2"

    def test_groups_that_enter_between_two_deliveries_do_so_in_their_order(
        self, desk: Desk
    ) -> None:
        desk.configure(limit=100)
        put(desk, "d1 d2 d3 c1", attempts=9)
        first = desk.claim(1, lease=HOUR)
        put(desk, "z1")
        desk.claim(0)
        put(desk, "y1 y2", delay=HOUR)
        desk.reschedule("y1")
        desk.edit("z1", group="x")
        desk.claim(0)
        desk.retry(*leases(first), release=True)  # d has waited since before
        put(desk, "z2 b1 -1")
        # Entered: d and c; then d was served; then x, y, z, b and none; d comes behind all of them
        assert one_by_one(desk, lease=HOUR) == "c1 z1 y1 z2 b1 -1 d1 d2 d3"

    def test_a_group_of_expired_messages_leaves_its_turn_to_the_next_group(
        self, desk: Desk
    ) -> None:
        desk.configure(limit=100)
        put(desk, "a1", expires=1)
        put(desk, "b1 b2 c1")
        desk.wait(2)
        assert desk.take(2) == ["b1", "c1"]

    def test_many_expired_messages_leave_room_for_others(self, bare: Desk) -> None:
        """Together they are more than a claim examines, and less than it may bring."""
        bare.configure(limit=2 * PROMOTE)
        count = PROMOTE * 2 // 3
        bare.put(*[f"a{number}" for number in range(count)], expires=1)
        bare.put(*[f"b{number}" for number in range(count)])
        while bare.claim(0).behind:
            pass
        bare.wait(2)
        found: list[str] = []
        while taken := bare.take(PROMOTE):
            found += taken
        assert found == [f"b{number}" for number in range(count)]

    def test_a_group_whose_line_becomes_empty_enters_anew(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "c1 b1 a1", attempts=9)
        desk.claim(0)
        desk.reschedule("c1", delay=1)
        desk.wait(1)
        desk.claim(0)
        desk.edit("b1", group="a")
        put(desk, "b2")
        assert one_by_one(desk, lease=HOUR) == "b1 c1 b2 a1"

    def test_a_group_that_has_leases_only_enters_anew(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "a1 a2", attempts=9)
        held = leases(desk.claim(lease=HOUR))
        put(desk, "b1")
        assert desk.take(lease=HOUR) == ["b1"]
        put(desk, "c1")
        desk.claim(0)
        desk.retry(held[0], release=True)
        assert one_by_one(desk, lease=HOUR) == "c1 a1"

    def test_many_groups_enter_one_behind_the_other(self, bare: Desk) -> None:
        """More than come before the group that was served last."""
        bare.configure(limit=20_000)
        count = GAP + PROMOTE
        put(bare, "a1 a2 a3")
        assert bare.take(1) == ["a1"]
        ids = [f"m{number:04}" for number in reversed(range(count))]
        bare.put_items([Item(id, b"1", group=id) for id in ids])
        while bare.claim(0).behind:
            pass
        served = bare.take(count + 2)
        assert [id for id in served if id[0] == "m"] == ids
        assert served.index("a2") == GAP - 1

    def test_one_claim_gives_a_message_of_each_group_in_turn(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "a1 a2 a3 b1 b2 c1")
        assert desk.take(5) == ["a1", "b1", "c1", "a2", "b2"]

    def test_a_group_that_comes_later_waits_for_no_backlog(self, bare: Desk) -> None:
        bare.configure(limit=1)
        bare.put(*[f"a{number}" for number in range(100)], group="a")
        (lease,) = leases(bare.claim())
        put(bare, "b1")
        bare.ack(lease)
        claimed = bare.claim()
        assert ids_of(claimed) == ["b1"]
        put(bare, "b2 c1")
        for id in ("a1", "b2", "c1", "a2"):  # a was served before b2 and c1 came
            bare.ack(*leases(claimed))
            claimed = bare.claim()
            assert ids_of(claimed) == [id]

    def test_nobody_waits_for_more_than_one_message_of_each_other_group(self, bare: Desk) -> None:
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

    def test_within_a_group_priority_and_due_time_decide(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "a3", at=START - 1)
        put(desk, "a2", at=START - 2)
        put(desk, "a1", priority=9)
        put(desk, "b2 b1", at=START - 9)
        assert one_by_one(desk) == "b2 a1 b1 a2 a3"

    def test_new_limits_line_up_what_is_ready(self, desk: Desk) -> None:
        put(desk, "a1 a2 a3", priority=2)
        put(desk, "b1 b2")
        assert desk.take(1) == ["a1"]  # this has made the others ready
        desk.configure(limit=9)
        assert one_by_one(desk) == "a2 b1 a3 b2"

    def test_without_limits_the_order_is_that_of_the_queue(self, desk: Desk) -> None:
        desk.configure(limit=1)
        put(desk, "a1 a2 a3 b1 b2")
        assert desk.take() == ["a1"]
        desk.configure(limit=0)
        assert desk.take() == ["a2", "a3", "b1", "b2"]
        desk.configure(group_limit=1)
        assert desk.take() == []
        desk.wait(1_000)
        desk.claim(0)
        desk.counts()

    def test_changes_of_what_waits_keep_the_lines(self, desk: Desk) -> None:
        desk.configure(limit=100)
        put(desk, "a1 a2 a3 b1 b2 c1 c2 d1 d2", attempts=2)
        desk.claim(0)  # this has lined them up
        desk.cancel("a1")
        desk.reschedule("b1", delay=5)
        desk.edit("c1", group="a")
        desk.edit("a3", priority=5)
        desk.put("d1", group="b", on_conflict="replace")
        desk.set_aside("c2")
        assert desk.counts().strays == 0
        # b2 and d2 stayed where they were; d1 has taken its place again behind b2
        assert one_by_one(desk, lease=HOUR) == "a3 b2 d2 a2 d1 c1"
        desk.revive("c2")
        desk.wait(5)
        assert one_by_one(desk) == "c2 b1"
        assert desk.counts().strays == 0

    def test_rules_and_purges_keep_the_lines(self, desk: Desk) -> None:
        desk.configure(group_limit=100)
        put(desk, "a1 a2 b1 b2")
        desk.claim(0)
        desk.cancel_where(group="a")
        put(desk, "a3", at=START - 5)
        desk.claim(0)
        desk.purge("ready", before=START - 1)
        assert desk.counts().strays == 0
        assert one_by_one(desk) == "b1 b2"

    def test_a_full_reply_leaves_the_rest_in_line(self, desk: Desk) -> None:
        desk.configure(limit=100)
        for id in ("a1", "a2", "b1"):
            desk.put(id, group=id[0], data=b"x" * 600, json=False)
        claimed = desk.ask(cmd.Claim("q", 9, 1_000, "w", 1_500), Claimed)
        assert ids_of(claimed) == ["a1", "b1"]
        assert desk.take() == ["a2"]

    def test_a_backlog_is_lined_up_by_several_claims(self, bare: Desk) -> None:
        bare.configure(limit=10)
        count = 2 * PROMOTE + 5
        bare.put(*[f"a{number:05}" for number in range(count)], group="a", delay=1)
        bare.put("b", group="b", delay=2)
        bare.wait(10)
        assert (one := bare.claim(1)).behind
        assert ids_of(one) == ["a00000"]
        assert bare.claim(0).behind
        last = bare.claim(0)
        assert (last.behind, last.next) == (False, 0)
        assert bare.take(2) == ["b", "a00001"]
        assert not bare.claim(1).behind
        assert bare.counts().sizes.total == count + 1

    def test_a_claim_that_finds_nothing_in_line_yet_is_to_be_repeated(self, bare: Desk) -> None:
        count = 3 * PROMOTE
        bare.put(*[f"a{number:05}" for number in range(count)], group="a", at=START - 5)
        bare.put("b", group="b", at=START - 4)
        bare.put("x", priority=1)
        for _ in range(4):
            bare.claim(1, lease=HOUR)  # this makes them ready
        bare.configure(group_limit=1)
        while not (claimed := bare.claim(1)).messages:
            assert (claimed.behind, claimed.next) == (True, 0)
        assert ids_of(claimed) == ["b"]

    def test_a_backlog_that_is_ready_is_lined_up_by_several_claims(self, bare: Desk) -> None:
        count = 3 * PROMOTE
        bare.put(*[f"a{number:05}" for number in range(count)], group="a")
        bare.put("a", priority=1)
        for _ in range(3):
            bare.claim(1)  # this makes them ready
        bare.configure(limit=5)
        bare.put("b", group="b")
        while (claimed := bare.claim(0)).behind:
            assert claimed.messages == []
        assert bare.counts().strays == 0
        assert set(bare.take(3)) == {"b", "a00002"}
        bare.cancel("a03000")
        assert bare.cancel_where(group="a").count == 1_000
        assert bare.counts().strays == 0
        bare.configure(limit=0)
        assert len(bare.take(5)) == 5
