# ruff: noqa: D102  (the name of each case says what it checks)
"""Put: new messages, known ids, replacing, importing."""

from typing import Any

import pytest

from bide.model.message import Failure, Item, State
from bide.model.replies import Outcome, Outcomes
from bide.model.times import to_datetime
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["PutCases"]

GIVEN: dict[str, Any] = {
    "data": b'"x"',
    "json": False,
    "priority": 9,
    "expires": 50,
    "attempts": 3,
    "group": "g",
    "headers": {"a": "b"},
    "attempt": 2,
    "failures": (Failure(1, 2, "w", "no"),),
}
"""What can be given with a message beside its moment."""

PLAIN: dict[str, Any] = {name: getattr(Item("a", b"1"), name) for name in GIVEN}


class PutCases:
    """What a put promises."""

    def test_a_delay_counts_from_the_stores_now(self, desk: Desk) -> None:
        assert desk.put("a", delay=250) == [Outcome("a", True, "delayed", START + 250)]

    def test_a_due_time_is_stored_as_given(self, desk: Desk) -> None:
        assert desk.put("a", at=START + 7) == [Outcome("a", True, "delayed", START + 7)]

    def test_a_due_time_in_the_past_is_ready_at_once(self, desk: Desk) -> None:
        assert desk.put("a", at=START - HOUR) == [Outcome("a", True, "ready", START - HOUR)]
        assert desk.take() == ["a"]

    def test_a_due_time_of_0_is_valid(self, desk: Desk) -> None:
        desk.put("a", at=0)
        assert desk.get("a").due == 0
        assert desk.take() == ["a"]

    def test_all_fields_come_back(self, desk: Desk) -> None:
        desk.put("a", data=b"[2]", at=START + 5, priority=9, expires=50, attempts=3, group="g",
                 headers={"trace": "1"})  # fmt: skip
        message = desk.get("a")
        assert (message.id, message.queue, message.body, message.json) == ("a", "q", [2], True)
        assert (message.due, message.priority, message.expires) == (START + 5, 9, 50)
        assert (message.attempt, message.attempts, message.failures) == (0, 3, ())
        assert (message.group, message.headers) == ("g", {"trace": "1"})
        assert (message.holder, message.until, message.ended) == (None, None, None)

    def test_each_field_alone_comes_back(self, desk: Desk) -> None:
        # An engine may know a shorter way for simple puts into a queue it has met before.
        for known in (0, 2):
            for field, value in GIVEN.items():
                one = desk.apart(f"{field}{known}")
                for number in range(known):
                    one.put(f"m{number}", at=START + HOUR)
                assert one.put("a", **{field: value})[0]
                message = one.get("a")
                assert {name: getattr(message, name) for name in PLAIN} == {**PLAIN, field: value}
                assert one.take() == ["a"]

    def test_outcomes_come_in_the_order_of_the_items(self, desk: Desk) -> None:
        desk.put("b")
        outcomes = desk.put("c", "b", "a")
        assert [(o.id, o.done) for o in outcomes] == [("c", True), ("b", False), ("a", True)]

    def test_an_id_is_free_again_when_its_message_is_gone(self, desk: Desk) -> None:
        lease = desk.lease("a", priority=7, expires=50, group="g", headers={"h": "1"})
        desk.retry(lease, reason="no")
        desk.cancel("a")
        desk.put("a")
        message = desk.get("a")
        assert (message.priority, message.expires, message.group) == (0, None, None)
        assert (message.attempt, message.failures, message.headers) == (0, (), None)

    def test_an_id_twice_in_one_put_is_stored_once(self, desk: Desk) -> None:
        items = [Item("a", b"1"), Item("a", b"2")]
        outcomes = desk.put_items(items).outcomes
        assert [outcome.done for outcome in outcomes] == [True, False]
        assert outcomes[1] == desk.refusal("a")
        assert desk.get("a").body == 1
        assert desk.counts().flow.put == 1

    def test_wake_is_the_earliest_due_time_that_was_stored(self, desk: Desk) -> None:
        desk.put("old", delay=1)
        items = [Item("old", b"1"), Item("b", b"1", delay=30), Item("c", b"1", delay=20)]
        assert desk.put_items(items).wake == START + 20

    def test_a_put_that_stored_nothing_wakes_no_worker(self, desk: Desk) -> None:
        desk.put("a")
        assert desk.put_items([Item("a", b"1")]).wake is None
        assert desk.put_items([]) == Outcomes([])

    # Replacing.

    @pytest.mark.parametrize("state", ["delayed", "ready", "dead"])
    def test_replace_changes_everything_in_place(self, desk: Desk, state: State) -> None:
        desk.bring("a", state)
        assert desk.put("a", on_conflict="replace", data=b"2", delay=9, priority=3, attempts=2) == [
            Outcome("a", True, "delayed", desk.now + 9)
        ]
        message = desk.get("a")
        assert (message.body, message.priority, message.attempts) == (2, 3, 2)
        assert (message.attempt, message.failures, message.ended) == (0, (), None)
        assert desk.counts().flow.put == 1

    def test_each_outcome_of_a_replace_is_that_of_its_message(self, desk: Desk) -> None:
        desk.put("held")
        (lease,) = leases(desk.claim(1))
        desk.put("a", "c", "e")
        moments = {"a": -1, "new": 20, "c": 30, "held": 40, "other": 50, "e": 60}
        items = [Item(id, b"2", at=START + moment) for id, moment in moments.items()]
        assert desk.put_items(items, "replace").outcomes == [
            Outcome("a", True, "ready", START - 1),
            Outcome("new", True, "delayed", START + 20),
            Outcome("c", True, "delayed", START + 30),
            Outcome("held", False, "leased", START, START + 1_000, "w1"),
            Outcome("other", True, "delayed", START + 50),
            Outcome("e", True, "delayed", START + 60),
        ]
        assert desk.ack(lease)[0]

    def test_replace_of_a_dead_letter_revives_it(self, desk: Desk) -> None:
        desk.bring("a", "dead")
        desk.put("a", on_conflict="replace")
        assert desk.counts().flow.revived == 1
        assert desk.take() == ["a"]

    def test_a_replaced_message_keeps_its_place_among_equals(self, desk: Desk) -> None:
        desk.put("a", "b", "c")
        desk.put("a", on_conflict="replace", data=b"2")
        assert desk.take() == ["a", "b", "c"]

    def test_an_id_twice_in_one_replace_ends_as_the_last(self, desk: Desk) -> None:
        items = [Item("a", b"1", delay=5), Item("b", b"1"), Item("a", b"2", delay=9)]
        outcomes = desk.put_items(items, "replace")
        assert [outcome.due for outcome in outcomes.outcomes] == [START + 5, START, START + 9]
        assert desk.get("a").body == 2
        assert desk.counts().flow.put == 2

    def test_a_replaced_message_changes_its_group(self, desk: Desk) -> None:
        desk.put("a", group="old")
        desk.put("a", on_conflict="replace", group="new")
        assert desk.scan(group="old") == []
        assert desk.cancel_where(group="new").count == 1

    @pytest.mark.parametrize("state", ["delayed", "ready", "dead"])
    def test_replace_only_if_the_version_is_the_same(self, desk: Desk, state: State) -> None:
        desk.bring("a", state)
        seen = desk.get("a").version
        new = {"on_conflict": "replace", "at": desk.get("a").due}
        wrong = desk.put("a", data=b"9", if_version="0" * 16, **new)
        assert wrong == [desk.refusal("a")]
        assert desk.put("a", data=b"2", if_version=seen, **new)[0].done
        assert (desk.get("a").body, desk.counts().flow.put) == (2, 1)
        # The moment is the same, and yet whoever saw what was there before is too late.
        assert desk.put("a", data=b"3", if_version=seen, **new) == [desk.refusal("a")]
        assert desk.put("a", data=b"3", if_version=desk.get("a").version, **new)[0].done

    def test_replace_with_a_version_of_an_unknown_id_stores_nothing(self, desk: Desk) -> None:
        for count, other in enumerate(("b", "c", "d")):
            put = desk.put("a", on_conflict="replace", if_version="0" * 16)
            assert put == [Outcome("a", False)]
            assert desk.counts().flow.put == count
            desk.put(other)

    # When a message was first put.

    def test_a_message_tells_when_it_was_put(self, desk: Desk) -> None:
        desk.put("a")
        desk.put("b", "c", delay=5, group="g", headers={"x": "y"})
        desk.wait(3)
        desk.put("d")
        assert [m.created for m in desk.find("a", "b", "c", "d") if m] == [START] * 3 + [START + 3]
        assert [m.created for m in desk.page("ready").messages] == [START, START + 3]
        assert [m.created for m in desk.claim().messages] == [START, START + 3]
        assert desk.get("a").created_at == to_datetime(START)

    @pytest.mark.parametrize("before", ["delayed", "ready", "dead"])
    def test_a_replacement_keeps_when_its_id_was_first_put(self, desk: Desk, before: State) -> None:
        desk.bring("a", before)
        desk.wait(5)
        desk.put("a", on_conflict="replace", data=b"2", delay=9, group="g")
        assert desk.get("a").created == START
        desk.wait(5)
        desk.put("a", on_conflict="replace", data=b"3")
        assert (desk.get("a").body, desk.get("a").created) == (3, START)

    def test_no_change_of_a_message_changes_when_it_was_put(self, desk: Desk) -> None:
        desk.put("a", attempts=2)
        desk.wait(1)
        desk.put("a", data=b"2")
        desk.reschedule("a", delay=1)
        desk.edit("a", data=b"3", priority=3)
        desk.wait(1)
        desk.retry(*leases(desk.claim(lease=5)))
        desk.wait(1)
        assert desk.claim(lease=5).messages[0].created == START
        desk.wait(5)  # the lease expires, and its last attempt
        assert desk.state("a") == "leased"
        assert desk.claim().died
        assert desk.get("a").created == START
        desk.revive("a", delay=1)
        assert desk.get("a").created == START
        assert desk.counts().flow.put == 1

    @pytest.mark.parametrize("how", ["ack", "cancel", "purge"])
    def test_a_put_after_the_end_of_a_message_is_a_new_message(self, desk: Desk, how: str) -> None:
        match how:
            case "ack":
                desk.ack(desk.bring("a", "leased"))
            case "cancel":
                desk.bring("a", "delayed")
                desk.cancel("a")
            case "purge":
                desk.bring("a", "dead")
                desk.purge("dead")
        desk.wait(7)
        desk.put("a", on_conflict="replace")
        assert desk.get("a").created == START + 7

    # Importing.

    @pytest.mark.parametrize("died", [None, START - 5])
    def test_an_import_keeps_when_messages_were_first_put(
        self, desk: Desk, died: int | None
    ) -> None:
        new: dict[str, Any] = {"died": died, "at": START, "group": "g"}
        desk.put_items([Item("a", b"1", created=START - 9, **new), Item("b", b"1", **new)])
        desk.put("c", created=START - 7)
        desk.put("unknown", created=0)
        assert [m and m.created for m in desk.find("a", "b", "c", "unknown")] == [
            START - 9, START, START - 7, None
        ]  # fmt: skip
        desk.wait(5)
        desk.put("a", "b", "unknown", on_conflict="replace")
        desk.put("c", created=START - 8, on_conflict="replace")
        assert [m and m.created for m in desk.find("a", "b", "c", "unknown")] == [
            START - 9, START, START - 8, None
        ]  # fmt: skip

    def test_an_import_keeps_attempts_and_failures(self, desk: Desk) -> None:
        failures = (
            Failure(1, START - 9, "w9", "no"),
            Failure(2, START - 5, "w8", "no!", START - 7),
        )
        desk.put("a", attempt=2, failures=failures, attempts=3)
        message = desk.claim().messages[0]
        assert (message.attempt, message.failures) == (3, failures)

    def test_an_import_of_a_dead_letter_is_a_dead_letter(self, desk: Desk) -> None:
        died = START - HOUR
        outcomes = desk.put_items([Item("a", b"1", at=5, died=died)])
        assert outcomes == Outcomes([Outcome("a", True, "dead", 5, died)])
        assert desk.get("a").ended == died
        assert desk.take() == []
        counts = desk.counts()
        assert (counts.sizes.dead, counts.flow.put, counts.flow.died) == (1, 1, 1)

    def test_an_import_of_a_dead_letter_replaces_what_waits(self, desk: Desk) -> None:
        desk.put("a")
        desk.put("a", on_conflict="replace", at=5, died=START)
        assert desk.state("a") == "dead"
        assert desk.counts().flow.died == 1

    def test_an_import_twice_changes_nothing(self, desk: Desk) -> None:
        items = [Item("a", b"1", delay=9, attempt=1), Item("b", b"1", at=5, died=6)]
        desk.put_items(items)
        before = desk.find("a", "b")
        assert [o.done for o in desk.put_items(items).outcomes] == [False, False]
        assert desk.find("a", "b") == before
