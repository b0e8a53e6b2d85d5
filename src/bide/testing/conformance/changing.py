# ruff: noqa: D102  (the name of each case says what it checks)
"""Cancel, reschedule, edit, revive: changes of messages by id, and versions."""

from typing import Any

import msgspec
import pytest

from bide.model.message import IN_TRANSIT, Failure
from bide.model.replies import Outcome
from bide.testing.conformance.driver import HOUR, RICH, START, Driver, done, leases

CHANGES: list[dict[str, Any]] = [
    {"data": b'{"b": 2}'}, {"data": b"\xff", "json": False}, {"data": b"", "json": False},
    {"priority": 255}, {"priority": 0}, {"attempts": 9}, {"expires": 7}, {"expires": None},
    {"group": "gé"}, {"group": None}, {"headers": {"b": "c"}}, {"headers": {}}, {"headers": None},
    {"at": START + 9}, {"data": b"2", "priority": 1, "group": "h", "at": START + 1},
]  # fmt: skip
VERSIONED: dict[str, dict[str, Any]] = {
    "cancel": {}, "reschedule": {"at": START + HOUR}, "revive": {"delay": HOUR}, "purge_by_id": {},
}  # fmt: skip
"""The commands that take a version for each message, and what else they are given."""


class ChangeCases:
    """What these commands promise."""

    def test_reschedule_changes_the_due_time_and_nothing_else(self, driver: Driver) -> None:
        driver.put("a", priority=7, expires=20, group="g", delay=5)
        before = driver.get("a")
        assert not driver.reschedule("a", delay=9, if_due=START + 4)[0]
        moved = driver.reschedule("a", at=START - 3, if_due=START + 5)
        assert moved == [Outcome("a", True, "ready", START - 3)]
        moved = [Outcome("b", False), Outcome("a", True, "delayed", START + 100)]
        assert driver.reschedule("b", "a", delay=100) == moved
        assert driver.wake == START + 100
        driver.reschedule("b", delay=5)
        assert driver.wake is None
        assert driver.get("a") == msgspec.structs.replace(before, due=START + 100)
        assert driver.wait(120).take() == ["a"]

    def test_revive_gives_all_attempts_again(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=1), reason="no")
        due = driver.wait(9).now + 30
        assert driver.revive("a", delay=30) == [Outcome("a", True, "delayed", due)]
        assert driver.wake == due
        driver.shows("a", attempt=0, ended=None, error="no")

    # Versions.

    @pytest.mark.parametrize("change", ["cancel", "reschedule"])
    def test_a_version_and_a_due_time_must_both_be_the_same(
        self, driver: Driver, change: str
    ) -> None:
        driver.put("a", at=START + 50)
        seen = driver.get("a").version
        for condition in ({"if_version": seen, "if_due": START},
                          {"if_version": "0" * 16, "if_due": START + 50}):  # fmt: skip
            assert getattr(driver, change)("a", **condition) == [driver.refusal("a")]
        assert getattr(driver, change)("a", if_version=seen, if_due=START + 50)[0]

    def test_the_first_of_two_changes_ends_the_version(self, driver: Driver) -> None:
        driver.put("a", delay=9)
        both = driver.reschedule("a", "a", delay=50, if_version=driver.get("a").version)
        seen = driver.get("a").version
        both += driver.reschedule("a", "a", delay=60, versions=[seen, seen])
        wrong_first = ["0" * 16, driver.get("a").version]
        assert done(driver.reschedule("a", "a", delay=70, versions=wrong_first)) == [False, True]
        both += driver.edit("a", "a", data=b"2", json=True, if_version=driver.get("a").version)
        both += driver.edit("a", "a", data=b"2", json=False, if_version=driver.get("a").version)
        driver.shows("a", data=b"2", json=False)
        both += driver.replace("a", "a", data=b"3", if_version=driver.get("a").version)
        assert done(both) == [True, False] * 5
        driver.shows("a", data=b"3")

    @pytest.mark.parametrize("verb", VERSIONED)
    def test_each_message_may_have_a_version_of_its_own(self, driver: Driver, verb: str) -> None:
        for id in "abc":
            driver.put(id, at=START, group=f"g{id}", expires=HOUR, attempts=2)
        if verb in ("revive", "purge_by_id"):
            driver.bury(*driver.hold(3), reason="no")
        versions = [driver.get(id).version for id in "cbaa"]
        driver.edit("b", priority=7)
        fields, change = {**VERSIONED[verb], "versions": versions}, getattr(driver, verb)
        if verb in ("cancel", "reschedule"):
            assert not any(change(*"cbad", if_due=START + 1, **fields))
            fields["if_due"] = START
        outcomes = change(*"cbad", **fields)
        assert [one.id for one in outcomes] == [*"cbad"]
        assert done(outcomes) == [True, False, True, False]
        driver.shows("b", priority=7)
        after = None if verb in ("cancel", "purge_by_id") else "delayed"
        assert driver.state("a") == driver.state("c") == after

    @pytest.mark.parametrize("expires", [None, HOUR])
    def test_a_version_outlasts_attempts_and_revivals(
        self, driver: Driver, expires: int | None
    ) -> None:
        lease = driver.lease("a", priority=3, expires=expires, group="g", headers={"a": "b"})
        seen = driver.get("a").version
        driver.retry(lease, release=True)
        driver.claim()
        driver.wait(1_000)  # the lease lapses
        driver.retry(*driver.hold(), delay=40, reason="no")
        driver.wait(40)
        driver.retry(*driver.hold(), delay=50, release=True)
        driver.shows("a", due=driver.now + 50, planned=START, version=seen)
        for delay in (50, 40):  # the first dies after retries, the second after a revival
            driver.wait(delay).bury(*driver.hold())
            assert driver.page("dead").messages[0].version == seen
            assert driver.revive("a", delay=30)[0]
            due, kept = driver.now + 30, {"asked": START, "version": seen}
            driver.shows("a", due=due, planned=None, expires=expires, **kept)
            claimed = driver.wait(30).claim()
            assert [(m.asked, m.version) for m in claimed.messages] == [(START, seen)]
            driver.retry(*leases(claimed), delay=40)
            retried = driver.page("delayed").messages[0]
            assert (retried.planned, retried.version) == (due, seen)
            assert not driver.edit("a", data=b"3", if_version="0" * 16)[0]
            assert driver.edit("a", data=retried.data, if_version=seen)[0]
        assert driver.reschedule("a", delay=0, if_version=seen)[0]
        assert driver.shows("a", asked=None, planned=None, expires=expires).version != seen

    # Edit.

    def test_an_edit_changes_what_is_named_and_nothing_else(self, driver: Driver) -> None:
        failures = (Failure(1, START - 9, "w", "no"),)
        driver.put("b", delay=5, attempt=1, failures=failures, **RICH)
        for change in CHANGES:
            before = driver.get("b")
            (outcome,) = driver.edit("b", **change)
            after = driver.get("b")
            assert outcome == Outcome("b", True, "delayed", after.due)
            named = {name: value for name, value in change.items() if name != "at"}
            named["due"] = change.get("at", before.due)
            if "data" in change:
                named.setdefault("json", True)
            assert after == msgspec.structs.replace(before, **named), change
            assert after.version != before.version
        assert driver.edit("b", "unknown") == [outcome, Outcome("unknown", False)]
        assert driver.get("b") == after  # nothing was named

    def test_a_dead_letter_is_edited_and_stays_dead(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=1), reason="no")
        before = driver.get("a")
        change: dict[str, Any] = {"data": b"2", "attempts": 5, "group": "g", "priority": 2}
        edited = driver.wait(5).edit("a", **change)
        assert edited == [Outcome("a", True, "dead", before.due, before.ended)]
        after = driver.get("a")
        assert after == msgspec.structs.replace(before, **change)
        assert driver.edit("a", delay=5, data=b"3") == [driver.refusal("a")]
        assert driver.get("a") == after
        assert driver.scan("dead") == driver.scan(group="g") == ["a"]
        assert driver.revive("a")[0]
        assert driver.take() == ["a"]

    @pytest.mark.parametrize("by", ["move", "import"])
    def test_an_edit_leaves_what_is_in_transit(self, driver: Driver, by: str) -> None:
        driver.retry(driver.lease("a"), reason=f"{IN_TRANSIT}{by} w")
        assert driver.edit("a", data=b"2")[0]
        driver.set_aside("a", reason=f"{IN_TRANSIT}{by} x")
        assert driver.edit("a", data=b"3") == [driver.refusal("a")]
        driver.revive("a")
        assert driver.edit("a", data=b"4")[0]
        driver.set_aside("a", reason="no")
        assert driver.edit("a", data=b"5")[0]

    @pytest.mark.parametrize("by", ["edit", "replace"])
    def test_the_first_priority_of_a_queue_goes_before_an_earlier_due_time(
        self, driver: Driver, by: str
    ) -> None:
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
        driver.shows("a", planned=START, expires=30, due=START + 40)
        driver.edit("a", expires=100)
        driver.shows("a", version=version)
        assert driver.wait(101).take() == []
        driver.shows("a", state="expired")
