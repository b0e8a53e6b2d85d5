# ruff: noqa: D102  (the name of each case says what it checks)
"""Ack, extend, retry, bury, release: by lease; and bury, release and purge by id."""

from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.message import KEPT_FAILURES, Failure
from bide.model.replies import Outcome, Outcomes
from bide.testing.conformance.driver import HOUR, START, Driver

__all__ = ["SettleCases"]


class SettleCases:
    """What these commands promise."""

    @pytest.mark.parametrize("keep", [0, HOUR])
    def test_ack_makes_the_message_leave_once(self, driver: Driver, keep: int) -> None:
        driver.configure(keep=keep)
        lease = driver.lease("a")
        driver.wait(999)  # one tick before the lapse is in time
        assert driver.ack(lease)[0]
        again = driver.ack(lease)[0]
        assert (again.done, again.state) == (False, "acked" if keep else None)
        counts = driver.counts()
        assert (counts.flow.acked, counts.sizes.total, counts.kept) == (1, 0, bool(keep))

    @pytest.mark.parametrize("length", [10, 3_000])
    def test_extend_moves_the_lapse_and_keeps_the_token_and_the_attempt(
        self, driver: Driver, length: int
    ) -> None:
        lease = driver.lease("a")
        driver.wait(600)
        end = driver.now + length
        extended = [Outcome("a", True, "leased", START, end, "w1")]
        assert driver.extend(lease, lease=length) == extended
        assert (driver.get("a").attempt, driver.claim().next) == (1, length)
        driver.wait(length - 1)
        assert driver.take() == []
        assert driver.extend(lease, lease=1) == extended
        driver.wait(1)
        (failure,) = driver.claim().messages[0].failures
        assert failure.moment == end

    def test_retry_delays_and_stores_the_reason(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.wait(5)
        reply = driver.ask(cmd.Retry("q", [lease], 300, "no luck"), Outcomes)
        assert reply == Outcomes([Outcome("a", True, "delayed", START + 305)], wake=START + 305)
        message = driver.get("a")
        assert message.failures == (Failure(1, START + 5, "w1", "no luck", START),)
        assert (message.attempt, message.holder, message.until) == (1, None, None)
        driver.wait(299)
        assert driver.take() == []
        driver.wait(1)
        assert driver.claim().messages[0].attempt == 2

    def test_retry_of_the_last_attempt_makes_a_dead_letter(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=2))
        driver.wait(7)
        dead = [Outcome("a", True, "dead", START, START + 7)]
        assert driver.retry(*driver.hold(), delay=9, reason="no") == dead
        assert [failure.attempt for failure in driver.get("a").failures] == [1, 2]

    def test_a_retry_does_not_put_off_expiry(self, driver: Driver) -> None:
        for id, expires, delay in (("a", 500, 400), ("b", 501, 400), ("c", 100, 200)):
            driver.retry(driver.lease(id, expires=expires), delay=delay)
        driver.wait(501)
        assert driver.take() == ["b"]
        assert driver.scan("expired") == ["a", "c"]

    def test_a_long_reason_is_cut(self, driver: Driver) -> None:
        driver.retry(driver.lease("a"), reason="x" * 9_000)
        assert len(driver.get("a").failures[0].reason) == 8_192

    @pytest.mark.parametrize("delay", [0, 40])
    def test_a_returned_message_counts_no_attempt_and_keeps_when_it_expires(
        self, driver: Driver, delay: int
    ) -> None:
        lease = driver.lease("a", attempts=1, expires=100)
        driver.wait(5)
        driver.put("b")
        due = driver.now + delay if delay else START
        returned = Outcome("a", True, "delayed" if delay else "ready", due)
        reply = driver.ask(cmd.Retry("q", [lease], delay, release=True), Outcomes)
        assert reply == Outcomes([returned], wake=due)
        message = driver.get("a")
        assert (message.attempt, message.failures) == (0, ())
        assert (message.due + (message.expires or 0), driver.counts().flow.retried) == (
            START + 100,
            0,
        )
        assert driver.ack(lease) == [driver.refusal("a")]
        assert driver.take(1) == ["b" if delay else "a"]
        driver.wait(delay)
        assert driver.take(1) == ["a" if delay else "b"]

    def test_bury_makes_a_dead_letter_whatever_attempts_are_left(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.wait(3)
        assert driver.bury(lease, reason="bad") == [Outcome("a", True, "dead", START, START + 3)]
        message = driver.get("a")
        assert message.failures == (Failure(1, START + 3, "w1", "bad", START),)
        assert (message.attempt, message.ended, message.holder) == (1, START + 3, None)
        driver.wait(HOUR)
        assert driver.take() == []

    @pytest.mark.parametrize("verb", [cmd.Ack, cmd.Bury, cmd.Extend])
    def test_settling_for_good_wakes_no_worker(
        self, driver: Driver, verb: type[cmd.Ack | cmd.Bury | cmd.Extend]
    ) -> None:
        assert driver.ask(verb("q", [driver.lease("a")]), Outcomes).wake is None

    # Release: an operator ends leases of any worker.

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_a_released_message_is_ready_again_at_once_or_dead_after_its_last_attempt(
        self, driver: Driver, attempts: int
    ) -> None:
        lease = driver.lease("a", attempts=attempts)
        driver.wait(3)
        moment = START + 3
        expected = Outcome("a", True, "ready", START)
        if attempts == 1:
            expected = Outcome("a", True, "dead", START, moment)
        assert driver.release("a", reason="hangs") == [expected]
        message = driver.get("a")
        assert message.failures == (Failure(1, moment, "w1", "hangs", START),)
        assert (message.attempt, message.due, message.holder) == (1, START, None)
        assert driver.ack(lease) == [driver.refusal("a")]
        assert driver.take() == (["a"] if attempts == 2 else [])
        assert driver.ack(lease) == [driver.refusal("a")]

    def test_several_leases_of_one_claim_are_released_one_by_one(self, driver: Driver) -> None:
        driver.put("a", "b", "c")
        held = driver.hold()
        assert all(driver.release("a", "c"))
        assert [bool(outcome) for outcome in driver.ack(*held)] == [False, True, False]
        assert driver.take() == ["a", "c"]

    # Bury and purge by id: the commands of a move between stores.

    @pytest.mark.parametrize("delay", [0, 50])
    def test_bury_by_id_makes_waiting_messages_dead_letters(
        self, driver: Driver, delay: int
    ) -> None:
        failures = tuple(Failure(number, number, "w", "no") for number in range(KEPT_FAILURES))
        fields: dict[str, Any] = {
            "priority": 3,
            "group": "g",
            "expires": 9,
            "attempts": 4,
            "failures": failures,
        }
        driver.put("a", delay=delay, **fields)
        driver.configure(paused=True)
        driver.wait(5)
        due, moment = START + delay, START + 5
        assert driver.set_aside("a", reason="moved") == [Outcome("a", True, "dead", due, moment)]
        message = driver.get("a")
        assert (message.due, message.ended, message.attempt) == (due, moment, 0)
        fields["failures"] = (*failures[1:], Failure(0, moment, "", "moved"))
        assert {name: getattr(message, name) for name in fields} == fields
        driver.configure(paused=False)
        driver.wait(HOUR)
        assert driver.take() == []

    def test_bury_by_lease_and_by_id_in_one_command(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.put("b")
        outcomes = driver.ask(cmd.Bury("q", [lease], "no", ["b", "a"]), Outcomes).outcomes
        assert [(o.id, o.done) for o in outcomes] == [("a", True), ("b", True), ("a", False)]

    def test_purge_by_id_deletes_dead_letters(self, driver: Driver) -> None:
        driver.bring("a", "dead")
        driver.bring("b", "dead")
        purged = [Outcome("a", True, due=START), Outcome("x", False)]
        assert driver.purge_by_id("a", "x") == purged
        assert driver.scan() == ["b"]
