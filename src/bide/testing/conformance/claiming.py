# ruff: noqa: D102  (the name of each case says what it checks)
"""Claim: which messages a worker gets, and when."""

from typing import Any

import pytest

from bide.model.rank import PROMOTE
from bide.model.replies import Pause
from bide.testing.conformance.driver import HOUR, START, Driver, numbered

ORDERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "due": [("late", {"at": START - 2}), ("early", {"at": START - 9})],
    "ties": [(f"m{number}", {"at": START}) for number in range(24, -1, -1)],
    "first": [("light", {"at": START - 9}), ("heavy", {"at": START, "priority": 1})],
    "tie": [("light", {"at": START}), ("heavy", {"at": START, "priority": 200})],
    "backlog": [
        ("old", {"at": START - 50}),
        ("older", {"at": START - 90}),
        ("heavy", {"at": START - 1, "priority": 1}),
        ("top", {"at": START, "priority": 255}),
    ],
    "numbers": [(f"p{n}", {"at": START, "priority": n}) for n in (9, 100, 20, 255, 0)],
}
"""Messages that are due, in the order in which they are put."""


class ClaimCases:
    """What a claim promises."""

    def test_never_one_tick_early(self, driver: Driver) -> None:
        driver.put("a", delay=100)
        assert driver.wait(99).take() == []
        assert driver.wait(1).take() == ["a"]

    def test_a_message_is_late_only_after_the_moment_of_its_expiry(self, driver: Driver) -> None:
        driver.put("a", expires=10)
        assert driver.wait(10).take() == ["a"]
        driver.put("b", expires=10)
        assert driver.wait(11).take() == []
        assert driver.state("b") == "expired"

    def test_a_paused_queue_hands_out_nothing_until_it_resumes(self, driver: Driver) -> None:
        driver.put("a")
        driver.configure(paused=True)
        assert driver.take() == []
        driver.configure(paused=False)
        assert driver.wake == driver.now
        assert driver.take() == ["a"]

    @pytest.mark.parametrize(
        "end", [{"paused_for": 100}, {"paused_until": START + 100}], ids=lambda end: next(iter(end))
    )
    def test_a_pause_ends_by_itself_at_its_time(self, driver: Driver, end: dict[str, int]) -> None:
        driver.put("a")
        paused = driver.configure(paused=True, **end)
        assert (paused.paused, paused.paused_until) == (True, START + 100)
        counts = driver.wait(99).count()
        assert (counts.paused, counts.paused_until) == (True, START + 100)
        claimed = driver.claim()
        assert (claimed.messages, claimed.next) == ([], 1)
        counts = driver.wait(1).count()
        assert (counts.paused, counts.paused_until) == (False, None)
        assert driver.take() == ["a"]
        settled = driver.configure()
        assert (settled.paused, settled.paused_until) == (False, None)

    def test_the_end_of_a_pause_can_be_changed(self, driver: Driver) -> None:
        driver.put("a")
        driver.configure(paused=True)
        assert driver.claim().next is None
        assert driver.configure(paused=True, paused_for=50).paused_until == START + 50
        assert driver.wake == START + 50
        assert driver.wait(10).configure(paused=True, paused_for=90).paused_until == START + 100
        assert driver.wait(60).claim().next == 30
        endless = driver.configure(paused=True)
        assert (endless.paused, endless.paused_until) == (True, None)
        assert driver.wait(HOUR).take() == []
        past = driver.configure(paused=True, paused_until=START)
        assert (past.paused, past.paused_until) == (False, None)
        assert driver.wake == driver.now
        assert driver.take() == ["a"]

    def test_a_pause_with_an_end_is_resumed_before(self, driver: Driver) -> None:
        driver.put("a")
        driver.configure(paused=True, paused_for=HOUR, actor="ann")
        assert driver.explain("a").pauses == [Pause(START, START + HOUR, "ann")]
        assert not driver.wait(5).configure(paused=False).paused
        assert driver.explain("a").pauses == [Pause(START, START + 5, "ann")]
        assert driver.wake == driver.now
        assert driver.take() == ["a"]

    def test_a_pause_that_has_ended_by_itself_is_a_pause_of_the_past(self, driver: Driver) -> None:
        driver.configure(paused=True, paused_for=10, actor="ann")
        driver.wait(20).configure(paused=False)
        assert driver.explain().pauses == [Pause(START, START + 10, "ann")]
        driver.configure(paused=True, paused_for=10, actor="bob")
        driver.wait(20).configure(paused=True, actor="eve")
        assert driver.explain().pauses == [
            Pause(START, START + 10, "ann"),
            Pause(START + 20, START + 30, "bob"),
            Pause(START + 40, None, "eve"),
        ]
        assert driver.count().paused

    def test_a_lease_is_over_at_its_very_end(self, driver: Driver) -> None:
        driver.put("a")
        leases = driver.hold()
        assert not driver.wait(1_000).ack(*leases)[0]
        leases = driver.hold()
        assert driver.wait(999).ack(*leases)[0]

    @pytest.mark.parametrize("order", ORDERS)
    def test_order_is_by_priority_then_due_time_then_puts(self, driver: Driver, order: str) -> None:
        puts = ORDERS[order]
        expected = sorted(puts, key=lambda put: (-put[1].get("priority", 0), put[1]["at"]))
        for count in (1, 2, 30):  # claims one by one rank a backlog; one claim takes it all
            own_driver = driver.apart(f"{order}-{count}")
            for id, fields in puts:
                own_driver.put(id, **fields)
            assert own_driver.take_all(count) == [id for id, _ in expected]

    def test_one_claim_ranks_a_limited_number(self, bare: Driver) -> None:
        bare.put(*numbered(PROMOTE - 1), at=START - 9)
        bare.put("last", at=START - 8, priority=254)
        bare.put("beyond", at=START - 7, priority=255)
        # The first claim ranks as far as "last" only.
        assert [bare.take(1) for _ in range(3)] == [["last"], ["beyond"], ["m00000"]]

    def test_one_claim_returns_its_messages_by_priority(self, bare: Driver) -> None:
        bare.put("late", at=START - 9, expires=0)
        bare.put(*numbered(PROMOTE - 1), at=START - 9)
        bare.put("far", at=START - 8, priority=255)
        # The claim meets the late one first: it may read twice, and further the second time.
        assert bare.take(2) in (["far", "m00000"], ["m00000", "m00001"])

    def test_a_large_claim_ranks_as_many_as_it_takes(self, bare: Driver) -> None:
        """It looks for the highest priority among more than `PROMOTE` due messages."""
        bare.put(*numbered(PROMOTE + 200), at=START - 9)
        bare.put("far", at=START - 8, priority=1)
        bare.put("further", at=START - 7)
        taken = bare.take(PROMOTE + 201)
        assert (taken[0], len(taken)) == ("far", PROMOTE + 201)

    def test_one_claim_collects_a_limited_number_of_lapses(self, bare: Driver) -> None:
        bare.put(*numbered(PROMOTE + 10), attempts=1)
        bare.take(PROMOTE + 10)
        bare.wait(1_000)  # all leases are over
        for following, dead in ((0, PROMOTE), (None, PROMOTE + 10)):
            assert bare.claim(5).next == following  # 0: there is more to do at once
            assert bare.counts().sizes.dead == dead

    def test_one_claim_expires_a_limited_number(self, bare: Driver) -> None:
        bare.put(*numbered(PROMOTE + 5), at=START - 9, expires=1)
        bare.put("good")
        assert bare.claim(1).next == 0  # there is more to do at once
        assert bare.counts().flow.expired == PROMOTE
        assert bare.take(1) == ["good"]
