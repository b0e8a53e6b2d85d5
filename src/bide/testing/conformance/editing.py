# ruff: noqa: D102  (the name of each case says what it checks)
"""Edit: changes of what is named of a message."""

from typing import Any

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.message import IN_TRANSIT
from bide.model.replies import Outcome, Outcomes
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["EditCases"]

EVERYTHING: dict[str, Any] = {
    "priority": 3, "attempts": 4, "expires": 50, "group": "g", "headers": {"a": "ü"},
}  # fmt: skip
CHANGES: list[dict[str, Any]] = [
    {"data": b'{"b": 2}'}, {"data": b"\xff", "json": False}, {"data": b"", "json": False},
    {"priority": 255}, {"priority": 0}, {"attempts": 9}, {"expires": 7}, {"expires": None},
    {"group": "gé"}, {"group": None}, {"headers": {"b": "c"}}, {"headers": {}}, {"headers": None},
    {"at": START + 9}, {"data": b"2", "priority": 1, "group": "h", "at": START + 1},
]  # fmt: skip


class EditCases:
    """What an edit promises."""

    def test_an_edit_changes_what_is_named_and_nothing_else(self, desk: Desk) -> None:
        desk.put("b", delay=5, **EVERYTHING)
        for change in CHANGES:
            before = desk.get("b")
            (outcome,) = desk.edit("b", **change)
            after = desk.get("b")
            assert outcome == Outcome("b", True, "delayed", after.due)
            named = {name: value for name, value in change.items() if name != "at"}
            named["due"] = change.get("at", before.due)
            if "data" in change:
                named.setdefault("json", True)
            assert after == msgspec.structs.replace(before, **named), change
            assert after.version != before.version

    def test_an_edit_that_names_nothing_changes_nothing(self, desk: Desk) -> None:
        desk.put("a", delay=5, **EVERYTHING)
        before = desk.get("a")
        assert desk.edit("a", "unknown") == [
            Outcome("a", True, "delayed", START + 5), Outcome("unknown", False),
        ]  # fmt: skip
        assert desk.get("a") == before

    def test_an_edit_keeps_the_attempts_and_failures_of_a_message(self, desk: Desk) -> None:
        desk.retry(desk.lease("a", attempts=3), reason="no")
        desk.edit("a", data=b"2", attempts=2, priority=1)
        message = desk.get("a")
        assert (message.attempt, message.error, message.data) == (1, "no", b"2")
        desk.retry(*leases(desk.claim()), reason="again")
        assert desk.state("a") == "dead"

    def test_a_dead_letter_is_edited_and_stays_dead(self, desk: Desk) -> None:
        desk.retry(desk.lease("a", attempts=1), reason="no")
        before = desk.get("a")
        desk.wait(5)
        died = before.ended
        assert desk.edit("a", data=b"2", attempts=5, group="g", priority=2) == [
            Outcome("a", True, "dead", before.due, died)
        ]
        after = desk.get("a")
        assert after == msgspec.structs.replace(
            before, data=b"2", attempts=5, group="g", priority=2
        )
        assert desk.edit("a", delay=5, data=b"3") == [desk.refusal("a")]
        assert desk.get("a") == after
        assert desk.scan("dead") == desk.scan(group="g") == ["a"]
        assert desk.revive("a")[0]
        assert desk.take() == ["a"]

    @pytest.mark.parametrize("by", ["move", "import"])
    def test_an_edit_leaves_what_is_in_transit(self, desk: Desk, by: str) -> None:
        desk.retry(desk.lease("a"), reason=f"{IN_TRANSIT}{by} w")
        assert desk.edit("a", data=b"2")[0]
        desk.set_aside("a", reason=f"{IN_TRANSIT}{by} x")
        assert desk.edit("a", data=b"3") == [desk.refusal("a")]
        desk.revive("a")
        assert desk.edit("a", data=b"4")[0]
        desk.set_aside("a", reason="no")
        assert desk.edit("a", data=b"5")[0]

    def test_an_edit_of_the_priority_changes_the_order_of_delivery(self, desk: Desk) -> None:
        desk.put("a", "b", "c")
        desk.edit("c", priority=9)
        desk.edit("b", priority=1)
        assert desk.take(1) == ["c"]
        desk.edit("a", priority=5)  # a claim has ranked those that are left
        desk.edit("b", priority=0)
        desk.put("d", priority=1)
        assert desk.take() == ["a", "d", "b"]

    def test_an_edit_of_the_due_time_wakes_and_moves(self, desk: Desk) -> None:
        desk.put("a", delay=HOUR)
        reply = desk.ask(cmd.Edit("q", ["b", "a"], delay=5, data=b"2"), Outcomes)
        assert reply == Outcomes(
            [Outcome("b", False), Outcome("a", True, "delayed", START + 5)], wake=START + 5
        )
        assert desk.edit("a", at=START - 3) == [Outcome("a", True, "ready", START - 3)]
        assert desk.forecast(1_000, 3).overdue == 1
        assert desk.take() == ["a"]

    def test_an_edit_of_what_a_claim_has_passed_over_is_found(self, desk: Desk) -> None:
        desk.put("a", "b", at=START - 9)
        assert desk.take(1) == ["a"]
        desk.edit("b", priority=200)
        assert desk.take() == ["b"]

    def test_an_edit_moves_a_message_to_another_group(self, desk: Desk) -> None:
        desk.put("a", "b", group="g", delay=5)
        desk.put("c", delay=5)
        desk.edit("a", group="h")
        desk.edit("c", group="h")
        desk.edit("b", group=None)
        assert desk.scan(group="g") == []
        assert sorted(desk.scan(group="h")) == ["a", "c"]
        assert desk.cancel_where(group="h").count == 2
        assert desk.scan() == ["b"]

    def test_an_edit_only_if_the_version_is_the_same(self, desk: Desk) -> None:
        desk.put("a", "b", at=START + 50)
        seen = desk.get("a").version
        assert desk.edit("a", data=b"2", if_version=seen)[0]
        mine = desk.get("a").version
        assert mine != seen
        assert desk.edit("a", data=b"3", if_version=seen) == [desk.refusal("a")]
        assert desk.edit("a", data=b"3", delay=9, if_version=mine)[0]
        assert desk.get("a").due == START + 9
        assert [bool(one) for one in desk.edit("a", "b", data=b"4", if_version=seen)] == [
            False, True,
        ]  # fmt: skip

    @pytest.mark.parametrize("change", ["edit", "reschedule", "revive"])
    def test_a_new_due_time_ends_what_a_retry_has_changed(self, desk: Desk, change: str) -> None:
        desk.retry(desk.lease("a", attempts=2, expires=100), delay=40)
        assert (desk.get("a").planned, desk.get("a").expires) == (START, 60)
        if change == "revive":
            desk.set_aside("a")
            desk.revive("a", delay=90)
        elif change == "edit":
            desk.edit("a", delay=90)
        else:
            desk.reschedule("a", delay=90)
        message = desk.get("a")
        assert (message.planned, message.expires, message.due) == (None, 100, START + 90)

    def test_an_edit_of_expires_counts_from_the_planned_due_time(self, desk: Desk) -> None:
        desk.retry(desk.lease("a", attempts=2, expires=100), delay=40)
        version = desk.get("a").version
        desk.edit("a", expires=70)
        message = desk.get("a")
        assert (message.planned, message.expires, message.due) == (START, 30, START + 40)
        desk.edit("a", expires=100)
        assert desk.get("a").version == version
        desk.wait(101)
        assert desk.take() == []
        assert desk.state("a") == "expired"

    def test_an_edit_adds_what_the_queue_had_not(self, desk: Desk) -> None:
        desk.put("a")
        desk.edit("a", expires=1, group="g", headers={"a": "b"})
        desk.wait(2)
        assert desk.take() == []
        assert desk.state("a") == "expired"
        assert desk.purge("expired").count == 1
        desk.put("a")
        assert desk.scan(group="g") == []
