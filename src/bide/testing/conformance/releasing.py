# ruff: noqa: D102  (what is promised stands in the name of each case)
"""Release: an operator ends leases, whoever has them."""

from bide.model.message import Failure
from bide.model.replies import Outcome
from bide.testing.conformance.desk import START, Desk, leases

__all__ = ["ReleaseCases"]


class ReleaseCases:
    """What ending a lease promises."""

    def test_a_released_message_is_ready_again_at_once(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.wait(3)
        assert desk.release("a", reason="hangs") == [Outcome("a", True, "ready", START)]
        message = desk.get("a")
        assert message.failures == (Failure(1, START + 3, "w1", "hangs"),)
        assert (message.attempt, message.due, message.holder) == (1, START, None)
        assert desk.ack(lease) == [Outcome("a", False, "ready", START)]
        assert desk.take() == ["a"]
        assert desk.ack(lease)[0].state == "leased"
        assert desk.counts().flow.retried == 1

    def test_the_last_attempt_that_is_released_is_dead(self, desk: Desk) -> None:
        lease = desk.lease("a", attempts=1)
        desk.wait(3)
        assert desk.release("a") == [Outcome("a", True, "dead", START, START + 3)]
        assert desk.get("a").failures[-1].reason == "released"
        assert not desk.ack(lease)[0]
        assert (desk.counts().flow.died, desk.counts().flow.retried) == (1, 0)

    def test_several_leases_of_one_claim_are_released_one_by_one(self, desk: Desk) -> None:
        desk.put("a", "b", "c")
        held = leases(desk.claim())
        assert all(desk.release("a", "c"))
        assert [bool(outcome) for outcome in desk.ack(*held)] == [False, True, False]
        assert desk.take() == ["a", "c"]
