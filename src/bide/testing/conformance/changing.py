# ruff: noqa: D102  (the name of each case says what it checks)
"""Changes of messages by id, and versions."""

import pytest

from bide.model import commands as cmd
from bide.model.message import IN_TRANSIT, KEPT_FAILURES, LAPSED, REASON_LENGTH, Failure
from bide.model.replies import Claimed, Outcome
from bide.testing.conformance.driver import HOUR, START, Driver, done, leases


class ChangeCases:
    """What these commands promise."""

    def test_revive_gives_all_attempts_again(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=1), reason="no")
        due = driver.wait(9).now + 30
        assert driver.revive("a", delay=30) == [Outcome("a", True, "delayed", due)]
        assert driver.wake == due
        driver.shows("a", attempt=0, ended=None, error="no")

    def test_a_long_reason_is_cut(self, driver: Driver) -> None:
        # One message for each command that takes a reason.
        reason, ids = "ü" * (REASON_LENGTH + 9), ["retry", "bury", "release", "aside"]
        held_leases = [driver.lease(id) for id in ids[:2]]
        driver.lease(ids[2])
        driver.put(ids[3])
        driver.retry(held_leases[0], reason=reason)
        driver.bury(held_leases[1], reason=reason)
        driver.release(ids[2], reason=reason)
        driver.set_aside(ids[3], reason=reason)
        for id in ids:
            assert driver.get(id).error == reason[:REASON_LENGTH]

    def test_the_last_failures_are_kept_in_their_order(self, driver: Driver) -> None:
        driver.put("a", attempts=KEPT_FAILURES + 5)
        for number in range(1, KEPT_FAILURES + 4):
            driver.retry(*driver.hold(), reason=f"no {number}")
        kept = driver.get("a").failures
        assert [failure.attempt for failure in kept] == list(range(4, KEPT_FAILURES + 4))
        assert [failure.reason for failure in kept] == [f"no {each.attempt}" for each in kept]

    @pytest.mark.parametrize("data", [b"", b"\xff\0", b'"x"'])
    def test_an_edit_gives_a_message_any_body(self, driver: Driver, data: bytes) -> None:
        driver.put("a", delay=5)
        for json in (False, True) if data.startswith(b'"') else (False,):
            assert driver.edit("a", data=data, json=json, group="gé")[0]
            driver.shows("a", data=data, json=json, group="gé")

    def test_the_first_of_two_changes_ends_the_version(self, driver: Driver) -> None:
        driver.put("a", delay=9)
        # Each command names the message twice, with the version that it has before.
        outcomes = driver.reschedule("a", "a", delay=50, if_version=driver.get("a").version)
        version = driver.get("a").version
        outcomes += driver.reschedule("a", "a", delay=60, versions=[version, version])
        wrong_first = ["0" * 16, driver.get("a").version]
        assert done(driver.reschedule("a", "a", delay=70, versions=wrong_first)) == [False, True]
        version = driver.get("a").version
        outcomes += driver.edit("a", "a", data=b"2", json=True, if_version=version)
        version = driver.get("a").version
        outcomes += driver.edit("a", "a", data=b"2", json=False, if_version=version)
        driver.shows("a", data=b"2", json=False)
        version = driver.get("a").version
        outcomes += driver.replace("a", "a", data=b"3", if_version=version)
        assert done(outcomes) == [True, False] * 5
        driver.shows("a", data=b"3")

    def test_a_release_remembers_its_reason_and_counts_no_attempt(self, driver: Driver) -> None:
        lease = driver.lease("a", attempts=1)
        assert driver.retry(lease, release=True, delay=50, reason="nobody knows it")[0].done
        first = Failure(0, driver.now, "w1", "nobody knows it")
        driver.shows("a", state="delayed", attempt=0, failures=(first,), planned=START)
        driver.wait(50).retry(*driver.hold(), release=True, reason="nor now")
        second = Failure(0, driver.now, "w1", "nor now")
        driver.shows("a", state="ready", attempt=0, failures=(first, second))
        driver.retry(*driver.hold(), release=True)
        driver.shows("a", state="ready", attempt=0, failures=(first, second))
        driver.retry(*driver.hold(), reason="it failed")
        assert [failure.attempt for failure in driver.page("dead").messages[0].failures] == [
            0,
            0,
            1,
        ]

    def test_the_lease_of_one_holder_ends_and_those_of_others_stay(self, driver: Driver) -> None:
        held, ids = {}, ["a", "b", "c"]
        for id, holder in zip(ids, ["w1", "w2", "w1"], strict=True):
            driver.put(id)
            claimed = driver.ask(cmd.Claim(driver.queue, 1, HOUR, holder), Claimed)
            (held[id],) = leases(claimed)
        assert done(driver.release(*ids, "unknown", reason=LAPSED, holder="w3")) == [False] * 4
        refused = driver.refusal("b")
        assert refused.holder == "w2"
        outcomes = driver.release(*ids, reason=LAPSED, holder="w1")
        assert outcomes == [
            Outcome("a", True, "ready", START),
            refused,
            Outcome("c", True, "ready", START),
        ]
        failure = Failure(1, driver.now, "w1", LAPSED, driver.now)
        driver.shows("a", state="ready", attempt=1, failures=(failure,), holder=None)
        driver.shows("b", state="leased", attempt=1, failures=(), holder="w2")
        assert done(driver.ack(held["a"], held["b"], held["c"])) == [False, True, False]
        assert (driver.counts().flow.retried, driver.counts().flow.lapsed) == (2, 0)
        assert done(driver.release("a", holder="w1")) == [False]  # nobody holds it any more

    def test_a_holder_whose_lease_is_over_is_not_taken_for_the_next_one(
        self, driver: Driver
    ) -> None:
        driver.lease("a")
        driver.wait(1_000)  # the lease lapses
        driver.ask(cmd.Claim(driver.queue, 1, HOUR, "w2"), Claimed)
        assert driver.release("a", holder="w1") == [driver.refusal("a")]
        assert done(driver.release("a", holder="w2")) == [True]
        assert [failure.holder for failure in driver.get("a").failures] == ["w1", "w2"]

    @pytest.mark.parametrize("expires", [None, HOUR])
    def test_a_version_outlasts_attempts(self, driver: Driver, expires: int | None) -> None:
        lease = driver.lease("a", priority=3, expires=expires, group="g", headers={"a": "b"})
        version = driver.get("a").version
        driver.retry(lease, release=True)
        driver.claim()
        driver.wait(1_000)  # the lease lapses
        driver.retry(*driver.hold(), delay=40, reason="no")
        driver.wait(40)
        driver.retry(*driver.hold(), delay=50, release=True)
        driver.shows("a", due=driver.now + 50, planned=START, version=version)
        for delay in (50, 40):  # the first dies after retries, the second after a revival
            driver.wait(delay).bury(*driver.hold())
            assert driver.page("dead").messages[0].version == version
            assert driver.revive("a", delay=30)[0]
            due, kept = driver.now + 30, {"asked": START, "version": version}
            driver.shows("a", due=due, planned=None, expires=expires, **kept)
            claimed = driver.wait(30).claim()
            assert [(m.asked, m.version) for m in claimed.messages] == [(START, version)]
            driver.retry(*leases(claimed), delay=40)
            retried = driver.page("delayed").messages[0]
            assert (retried.planned, retried.version) == (due, version)
            assert not driver.edit("a", data=b"3", if_version="0" * 16)[0]
            assert driver.edit("a", data=retried.data, if_version=version)[0]
        assert driver.reschedule("a", delay=0, if_version=version)[0]
        assert driver.shows("a", asked=None, planned=None, expires=expires).version != version

    @pytest.mark.parametrize("by", ["move", "import"])
    def test_an_edit_leaves_what_is_in_transit(self, driver: Driver, by: str) -> None:
        driver.retry(driver.lease("a"), reason=f"{IN_TRANSIT}{by} w")
        assert driver.edit("a", data=b"2")[0]  # it is no dead letter
        driver.set_aside("a", reason=f"{IN_TRANSIT}{by} x")
        assert driver.edit("a", data=b"3") == [driver.refusal("a")]
        driver.revive("a")
        assert driver.edit("a", data=b"4")[0]
        driver.set_aside("a", reason="no")
        assert driver.edit("a", data=b"5")[0]  # a dead letter, but not in transit

    def test_an_edit_of_what_is_due_at_another_time_changes_nothing(self, driver: Driver) -> None:
        driver.put("a", "b", at=START + 9)
        driver.set_aside("b")
        assert driver.edit("a", "b", "c", priority=3, if_due=START) == [
            driver.refusal("a"),
            driver.refusal("b"),
            Outcome("c", False),
        ]
        assert done(driver.edit("a", "b", priority=3, if_due=START + 9)) == [True, True]

    @pytest.mark.parametrize("by", ["edit", "replace"])
    def test_a_first_priority_goes_before_a_due_time(self, driver: Driver, by: str) -> None:
        driver.put("a", at=START - 9)
        driver.put("b", at=START - 5)
        if by == "edit":
            driver.edit("b", priority=1)
        else:
            driver.put("b", at=START - 5, priority=1, on_conflict="replace")
        assert driver.take(1) == ["b"]

    def test_an_edit_of_expires_counts_from_the_planned_due_time(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=2, expires=100), delay=40)
        version = driver.get("a").version
        driver.edit("a", expires=70)
        # It is due 40 ms later than planned, so 70 ms from then on are 30 ms from the due time on.
        driver.shows("a", planned=START, expires=30, due=START + 40)
        driver.edit("a", expires=100)
        driver.shows("a", version=version)  # all is as it was at first
        assert driver.wait(101).take() == []
        driver.shows("a", state="expired")

    def test_a_postponed_message_keeps_its_planned_time_and_its_version(
        self, driver: Driver
    ) -> None:
        driver.put("a", "b", at=START, expires=100)
        version = driver.wait(30).get("a").version
        outcomes = driver.postpone("a", "b", "none", dues=[START + 90, START + 60, START])
        assert outcomes == [
            Outcome("a", True, "delayed", START + 90),
            Outcome("b", True, "delayed", START + 60),
            Outcome("none", False),
        ]
        assert driver.wake == START + 60
        driver.shows("a", due=START + 90, planned=START, expires=10, version=version)
        driver.postpone("a", dues=[START + 40])
        driver.shows("a", due=START + 40, planned=START, expires=60, version=version)
        driver.postpone("a", dues=[START])
        driver.shows("a", state="ready", due=START, planned=None, expires=100, version=version)
        driver.postpone("a", dues=[START + 90])
        assert driver.wait(59).take() == ["b"]
        assert driver.wait(12).take() == []
        driver.shows("a", state="expired", planned=START)

    def test_a_message_is_postponed_only_if_it_is_due_as_it_was_seen(self, driver: Driver) -> None:
        driver.put("a", "b", "a2", at=START + 5)
        driver.reschedule("b", at=START + 7)
        twice = ["a", "b", "a2", "a2"]
        seen = [START + 5, START + 5, START + 5, START + 5]
        outcomes = driver.postpone(*twice, dues=[START + 9] * 4, if_dues=seen)
        assert done(outcomes) == [True, False, True, False]
        driver.lease("held")
        driver.put("dead")
        driver.set_aside("dead", reason="no")
        assert driver.postpone("held", "dead", dues=[0, 0]) == [
            driver.refusal("held"),
            driver.refusal("dead"),
        ]

    def test_a_postponed_message_gets_a_priority_and_another_version(self, driver: Driver) -> None:
        driver.put("a", at=START - 9, priority=5)
        driver.put("b", at=START - 5, priority=2)
        driver.claim(0)
        version = driver.get("a").version
        assert driver.postpone("a", dues=[START - 9], priority=1)[0]
        assert driver.shows("a", priority=1, state="ready", planned=None).version != version
        assert driver.take(1) == ["b"]
        driver.postpone("a", dues=[START - 9], priority=5)
        driver.shows("a", priority=5, version=version)
