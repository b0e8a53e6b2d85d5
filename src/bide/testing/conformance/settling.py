# ruff: noqa: D102  (the name of each case says what it checks)
"""Ack, extend, retry, bury, release: by lease; and bury, release and purge by id."""

from typing import Any

import pytest

from bide.model.message import KEPT_FAILURES, Failure
from bide.model.replies import Outcome
from bide.testing.conformance.driver import HOUR, START, Driver


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
    def test_extend_moves_the_lapse_and_nothing_else(self, driver: Driver, length: int) -> None:
        lease = driver.lease("a")
        end = driver.wait(600).now + length
        extended = [Outcome("a", True, "leased", START, end, "w1")]
        assert driver.extend(lease, lease=length) == extended
        assert (driver.get("a").attempt, driver.claim().next) == (1, length)
        assert driver.wait(length - 1).take() == []
        assert driver.extend(lease, lease=1) == extended
        (failure,) = driver.wait(1).claim().messages[0].failures
        assert failure.moment == end

    def test_retry_delays_and_stores_the_reason(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.wait(5)
        delayed = [Outcome("a", True, "delayed", START + 305)]
        assert driver.retry(lease, delay=300, reason="no luck") == delayed
        assert driver.wake == START + 305
        failures = (Failure(1, START + 5, "w1", "no luck", START),)
        driver.shows("a", failures=failures, attempt=1, holder=None, until=None)
        assert driver.wait(299).take() == []
        assert driver.wait(1).claim().messages[0].attempt == 2

    def test_a_retry_does_not_put_off_expiry(self, driver: Driver) -> None:
        for id, expires, delay in (("a", 500, 400), ("b", 501, 400), ("c", 100, 200)):
            driver.retry(driver.lease(id, expires=expires), delay=delay)
        assert driver.wait(501).take() == ["b"]
        assert driver.scan("expired") == ["a", "c"]

    def test_a_long_reason_is_cut(self, driver: Driver) -> None:
        driver.retry(driver.lease("a"), reason="x" * 9_000)
        assert len(driver.get("a").failures[0].reason) == 8_192

    @pytest.mark.parametrize("delay", [0, 40])
    def test_a_returned_message_counts_no_attempt(self, driver: Driver, delay: int) -> None:
        lease = driver.lease("a", attempts=1, expires=100)
        driver.wait(5).put("b")
        due = driver.now + delay if delay else START
        returned = Outcome("a", True, "delayed" if delay else "ready", due)
        assert driver.retry(lease, delay=delay, release=True) == [returned]
        assert driver.wake == due
        driver.shows("a", attempt=0, failures=(), expires=START + 100 - due)
        assert driver.counts().flow.retried == 0
        assert driver.ack(lease) == [driver.refusal("a")]
        assert driver.take(1) == ["b" if delay else "a"]
        assert driver.wait(delay).take(1) == ["a" if delay else "b"]

    # Release: an operator ends leases of any worker.

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_a_released_message_is_ready_or_dead(self, driver: Driver, attempts: int) -> None:
        lease = driver.lease("a", attempts=attempts)
        moment = driver.wait(3).now
        dead = Outcome("a", True, "dead", START, moment)
        released = [dead if attempts == 1 else Outcome("a", True, "ready", START)]
        assert driver.release("a", reason="hangs") == released
        failures = (Failure(1, moment, "w1", "hangs", START),)
        driver.shows("a", failures=failures, attempt=1, due=START, holder=None)
        assert driver.ack(lease) == [driver.refusal("a")]
        assert driver.take() == (["a"] if attempts == 2 else [])
        assert driver.ack(lease) == [driver.refusal("a")]

    # Bury and purge by id: the commands of a move between stores.

    @pytest.mark.parametrize("delay", [0, 50])
    def test_bury_by_id_makes_a_dead_letter(self, driver: Driver, delay: int) -> None:
        failures = tuple(Failure(number, number, "w", "no") for number in range(KEPT_FAILURES))
        kept: dict[str, Any] = {"priority": 3, "group": "g", "expires": 9, "attempts": 4}
        driver.put("a", delay=delay, failures=failures, **kept)
        driver.configure(paused=True)
        due, moment = START + delay, driver.wait(5).now
        assert driver.set_aside("a", reason="moved") == [Outcome("a", True, "dead", due, moment)]
        failures = (*failures[1:], Failure(0, moment, "", "moved"))
        driver.shows("a", due=due, ended=moment, attempt=0, failures=failures, **kept)
        driver.configure(paused=False)
        assert driver.wait(HOUR).take() == []

    def test_bury_by_lease_and_by_id_in_one_command(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.put("b")
        outcomes = driver.bury(lease, reason="no", ids=["b", "a"])
        assert [(o.id, o.done) for o in outcomes] == [("a", True), ("b", True), ("a", False)]

    def test_purge_by_id_deletes_dead_letters(self, driver: Driver) -> None:
        driver.bring("a", "dead")
        driver.bring("b", "dead")
        purged = [Outcome("a", True, due=START), Outcome("x", False)]
        assert driver.purge_by_id("a", "x") == purged
        assert driver.scan() == ["b"]
