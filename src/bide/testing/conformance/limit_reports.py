# ruff: noqa: D102  (the name of each case says what it checks)
"""Reports: which limit holds a message, and when the last one let it go."""

from bide.model.replies import Limited
from bide.model.times import interval
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases
from bide.testing.conformance.limiting import put

__all__ = ["LimitReportCases"]


class LimitReportCases:
    """What `explain` and claims tell about limits."""

    def test_explain_tells_which_limit_holds_a_message(self, desk: Desk) -> None:
        desk.configure(limit=2, group_limit=1, rate=interval(1), group_rate=interval("1/m"))
        put(desk, "a1 a2 a3 b1")
        assert desk.explain("a3").limited is None
        assert desk.take() == ["a1"]
        told = desk.explain("a3")
        assert told.limited == Limited("group_limit", 1, 1)
        assert told.ahead == 1
        assert desk.explain("b1").limited == Limited("rate", 1_000_000, 1, START + 990)
        desk.wait(990)
        assert desk.explain("b1").limited is None
        (lease,) = leases(desk.claim())
        assert desk.explain("a2").limited == Limited("limit", 2, 2)
        desk.ack(lease)
        desk.wait(10)  # the lease of a1 is over
        desk.claim(0)
        until = START + 59_990
        desk.wait(1_000)
        assert desk.explain("a2").limited == Limited("group_rate", 60_000_000, 0, until)
        assert desk.explain("a1").ahead == 0
        assert desk.explain("a2").ahead == 1
        desk.put("z", delay=HOUR)
        assert desk.explain("z").limited is None
        desk.configure(limit=0, group_limit=0, rate=0, group_rate=0)
        assert desk.explain("a2").limited is None

    def test_a_claim_tells_when_the_limits_let_each_message_go(self, desk: Desk) -> None:
        desk.configure(limit=2, group_limit=1)
        put(desk, "a1 a2 b1 c1")
        claimed = desk.claim(lease=HOUR)
        assert (ids_of(claimed), claimed.freed) == (["a1", "b1"], [0, 0])
        desk.wait(30)
        desk.ack(*leases(claimed))
        desk.wait(5)
        put(desk, "d1")
        claimed = desk.claim(lease=HOUR)
        assert ids_of(claimed) == ["c1", "a2"]
        assert claimed.freed == [START + 30, START + 30]
        desk.wait(100)
        desk.ack(*leases(claimed))
        assert desk.claim().freed == [START + 135]

    def test_a_wider_limit_lets_messages_go_when_it_is_set(self, desk: Desk) -> None:
        desk.configure(limit=1)
        put(desk, "a1 a2")
        assert desk.take(lease=HOUR) == ["a1"]
        desk.wait(5)
        desk.configure(limit=2)
        desk.wait(5)
        assert desk.claim().freed == [START + 5]

    def test_a_lower_limit_lets_messages_go_when_the_last_lease_too_many_ends(
        self, desk: Desk
    ) -> None:
        desk.configure(limit=3)
        put(desk, "a1 a2 a3 a4")
        held = leases(desk.claim(lease=HOUR))
        desk.configure(limit=1)
        for lease in held:
            desk.wait(5)
            desk.ack(lease)
        assert desk.claim().freed == [START + 15]

    def test_where_no_limit_held_a_message_none_has_let_it_go(self, desk: Desk) -> None:
        desk.configure(limit=2, group_limit=2)
        put(desk, "a1 a2")
        held = desk.claim(1, lease=HOUR)
        desk.wait(5)
        desk.ack(*leases(held))
        assert desk.claim().freed == [0]
        other = desk.apart("other")
        other.configure(rate=interval(5))
        put(other, "a1 a2")
        assert other.claim().freed == [0]
        other.wait(300)
        assert other.claim().freed == [START + 190]

    def test_a_group_with_a_lease_was_held_by_its_rate(self, desk: Desk) -> None:
        desk.configure(group_rate=interval(1))
        put(desk, "a1")
        assert desk.take(lease=HOUR) == ["a1"]
        desk.wait(2_000)
        put(desk, "a2", at=START + 100)
        assert desk.claim().freed == [START + 990]

    def test_no_rate_has_held_a_group_that_was_idle(self, desk: Desk) -> None:
        desk.configure(group_rate=interval(1))
        put(desk, "a1")
        desk.ack(*leases(desk.claim()))
        put(desk, "a2")
        desk.wait(995)
        desk.claim(0)  # the rate allows a2
        desk.cancel("a2")
        desk.wait(5)
        put(desk, "a3", at=START + 100)
        assert desk.claim().freed == [0]
