# ruff: noqa: D102  (the name of each case says what it checks)
"""Ack, extend, retry, bury, release: the commands that end or extend a lease."""

import pytest

from bide.model import commands as cmd
from bide.model.message import Failure
from bide.model.replies import Outcome, Outcomes
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["SettleCases"]

every = pytest.mark.parametrize("verb", [cmd.Ack, cmd.Extend, cmd.Retry, cmd.Bury])


class SettleCases:
    """What these commands promise."""

    # Ack.

    def test_ack_makes_the_message_leave(self, desk: Desk) -> None:
        assert desk.ack(desk.lease("a")) == [Outcome("a", True)]
        assert desk.state("a") is None
        counts = desk.counts()
        assert (counts.flow.acked, counts.sizes.total, counts.kept) == (1, 0, 0)

    @pytest.mark.parametrize("keep", [0, HOUR])
    def test_ack_twice_is_refused(self, desk: Desk, keep: int) -> None:
        desk.configure(keep=keep)
        lease = desk.lease("a")
        assert desk.ack(lease)[0]
        again = desk.ack(lease)[0]
        assert not again
        assert again.state == ("acked" if keep else None)
        assert desk.counts().flow.acked == 1

    def test_one_tick_before_the_lapse_is_in_time(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.wait(999)
        assert desk.ack(lease)[0]

    # Extend.

    def test_extend_moves_the_lapse_and_keeps_the_token(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.wait(600)
        assert desk.extend(lease, lease=2_000) == [
            Outcome("a", True, "leased", START, START + 2_600, "w1")
        ]
        desk.wait(1_999)
        assert desk.take() == []
        assert desk.extend(lease)[0]
        assert desk.ack(lease)[0]

    def test_extend_can_shorten(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.extend(lease, lease=10)
        desk.wait(10)
        assert desk.take() == ["a"]

    def test_an_extended_lease_lapses_at_its_new_end(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.extend(lease, lease=3_000)
        assert desk.claim().next == 3_000
        desk.wait(3_000)
        assert desk.claim().messages[0].failures[0].moment == START + 3_000

    def test_extend_counts_no_attempt(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.extend(lease)
        assert desk.get("a").attempt == 1

    # Retry.

    def test_retry_delays_and_stores_the_reason(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.wait(5)
        assert desk.retry(lease, delay=300, reason="no luck") == [
            Outcome("a", True, "delayed", START + 305)
        ]
        message = desk.get("a")
        assert message.failures == (Failure(1, START + 5, "w1", "no luck", START),)
        assert (message.attempt, message.holder, message.until) == (1, None, None)
        desk.wait(299)
        assert desk.take() == []
        desk.wait(1)
        assert desk.claim().messages[0].attempt == 2
        assert desk.counts().flow.retried == 1

    def test_retry_of_the_last_attempt_makes_a_dead_letter(self, desk: Desk) -> None:
        desk.put("a", attempts=2)
        desk.retry(*leases(desk.claim()))
        desk.wait(7)
        assert desk.retry(*leases(desk.claim()), delay=9, reason="no") == [
            Outcome("a", True, "dead", START, START + 7)
        ]
        flow = desk.counts().flow
        assert (flow.retried, flow.died) == (1, 1)
        assert [failure.attempt for failure in desk.get("a").failures] == [1, 2]

    def test_a_retry_does_not_put_off_expiry(self, desk: Desk) -> None:
        desk.retry(desk.lease("a", expires=500), delay=400)
        desk.retry(desk.lease("b", expires=501), delay=400)
        desk.wait(501)
        assert desk.take() == ["b"]
        assert desk.state("a") == "expired"

    def test_a_retry_beyond_expiry_expires(self, desk: Desk) -> None:
        desk.retry(desk.lease("a", expires=100), delay=200)
        desk.wait(200)
        assert desk.take() == []
        assert desk.state("a") == "expired"

    def test_a_long_reason_is_cut(self, desk: Desk) -> None:
        desk.retry(desk.lease("a"), reason="x" * 9_000)
        assert len(desk.get("a").failures[0].reason) == 8_192

    def test_retry_wakes_at_the_next_attempt(self, desk: Desk) -> None:
        lease = desk.lease("a")
        reply = desk.ask(cmd.Retry("q", [lease], delay=40), Outcomes)
        assert reply.wake == START + 40

    def test_release_counts_no_attempt_and_keeps_the_due_time(self, desk: Desk) -> None:
        desk.put("a", attempts=1)
        lease = leases(desk.claim())[0]
        desk.wait(5)
        desk.put("b")
        reply = desk.ask(cmd.Retry("q", [lease], release=True), Outcomes)
        assert reply == Outcomes([Outcome("a", True, "ready", START)], wake=START)
        message = desk.get("a")
        assert (message.attempt, message.failures) == (0, ())
        assert desk.take() == ["a", "b"]
        assert desk.counts().flow.retried == 0

    def test_release_with_a_delay_counts_no_attempt_and_waits(self, desk: Desk) -> None:
        desk.put("a", attempts=1, expires=100)
        lease = leases(desk.claim())[0]
        desk.wait(5)
        reply = desk.ask(cmd.Retry("q", [lease], delay=40, release=True), Outcomes)
        assert reply == Outcomes([Outcome("a", True, "delayed", START + 45)], wake=START + 45)
        message = desk.get("a")
        assert (message.attempt, message.failures, message.expires) == (0, (), 55)
        assert desk.counts().flow.retried == 0
        assert desk.take() == []
        desk.wait(40)
        assert desk.take() == ["a"]

    def test_a_released_lease_is_over(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.retry(lease, release=True)
        assert desk.ack(lease) == [Outcome("a", False, "ready", START)]

    # Bury.

    def test_bury_makes_a_dead_letter_whatever_attempts_are_left(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.wait(3)
        assert desk.bury(lease, reason="bad") == [Outcome("a", True, "dead", START, START + 3)]
        message = desk.get("a")
        assert message.failures == (Failure(1, START + 3, "w1", "bad", START),)
        assert (message.attempt, message.ended, message.holder) == (1, START + 3, None)
        counts = desk.counts()
        assert (counts.flow.died, counts.sizes.dead) == (1, 1)
        desk.wait(HOUR)
        assert desk.take() == []

    def test_settling_for_good_wakes_no_worker(self, desk: Desk) -> None:
        for verb in (cmd.Ack, cmd.Bury, cmd.Extend):
            lease = desk.lease(verb.__name__)
            assert desk.ask(verb("q", [lease]), Outcomes).wake is None

    # Release: an operator ends leases of any worker.

    def test_a_released_message_is_ready_again_at_once(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.wait(3)
        assert desk.release("a", reason="hangs") == [Outcome("a", True, "ready", START)]
        message = desk.get("a")
        assert message.failures == (Failure(1, START + 3, "w1", "hangs", START),)
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
