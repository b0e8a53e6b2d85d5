# ruff: noqa: D102  (the name of each case says what it checks)
"""Debounce: puts with `latest`, and the successors of leased messages."""

from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Counts, Died, Outcome, Outcomes
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["DebounceCases"]

RICH: dict[str, Any] = {
    "data": b'"x"', "json": False, "priority": 9, "expires": 50, "attempts": 3, "group": "g",
    "headers": {"a": "b"},
}  # fmt: skip


def put(desk: Desk, data: bytes = b"1", delay: int = 50, latest: int = 200, **more: Any) -> Outcome:
    """Put the message `a`, due after a quiet time of `delay`."""
    fields = {"on_conflict": "replace", "data": data, "delay": delay, "latest": latest, **more}
    (outcome,) = desk.put("a", **fields)
    return outcome


def held(desk: Desk, lease: int = 1_000, **fields: Any) -> cmd.Lease:
    """Put the message `a`, and claim it."""
    desk.put("a", group="old", **fields)
    (one,) = leases(desk.claim(1, lease))
    return one


class DebounceCases:
    """What holds for puts with `latest`."""

    def test_each_put_moves_the_due_time_but_never_past_the_latest(self, desk: Desk) -> None:
        dues = []
        for number in range(6):
            outcome = put(desk, b"%d" % number)
            assert outcome.done
            assert outcome.state in ("delayed", "ready")
            assert outcome.due == desk.get("a").due
            dues.append((outcome.due or 0) - START)
            desk.wait(40)
        assert dues == [50, 90, 130, 170, 200, 200]
        message = desk.get("a")
        assert (message.body, message.created, message.state) == (5, START, "ready")
        assert put(desk, b"6") == Outcome("a", True, "ready", START + 200)
        assert desk.claim().messages[0].body == 6
        assert desk.counts().flow.put == 1

    def test_latest_counts_from_the_first_put_since_the_id_was_free(self, desk: Desk) -> None:
        put(desk)
        desk.wait(40)
        desk.cancel("a")
        assert put(desk, delay=300).due == START + 240

    def test_latest_of_a_message_of_unknown_age_counts_from_that_put(self, desk: Desk) -> None:
        desk.put("a", created=0, delay=HOUR)
        desk.wait(7)
        assert put(desk, delay=300).due == START + 207
        assert desk.get("a").created == START + 7

    def test_several_are_put_at_once(self, desk: Desk) -> None:
        desk.put("b", delay=9)
        desk.wait(3)
        items = [
            Item("a", b"1", delay=9, latest=5), Item("b", b"2", delay=9, latest=5),
            Item("c", b"3", delay=9), Item("a", b"4", delay=4, latest=9),
        ]  # fmt: skip
        assert desk.put_items(items, "replace") == Outcomes(
            [
                Outcome("a", True, "delayed", START + 8),
                Outcome("b", True, "delayed", START + 5),
                Outcome("c", True, "delayed", START + 12),
                Outcome("a", True, "delayed", START + 7),
            ],
            START + 5,
        )
        assert [m and m.data for m in desk.find("a", "b", "c")] == [b"4", b"2", b"3"]

    # While a worker holds the message.

    def test_a_put_while_the_message_is_leased_is_stored_as_its_successor(self, desk: Desk) -> None:
        lease = held(desk)
        desk.wait(10)
        before = desk.get("a")
        outcome = put(desk, **RICH)
        assert outcome == Outcome(
            "a", True, "leased", START, START + 1_000, "w1", successor=START + 60
        )
        after = desk.get("a")
        assert (after.data, after.group, after.version) == (b"1", "old", before.version)
        assert after.successor == Item("a", at=START + 60, created=START + 10, **RICH)
        (scanned,) = desk.page("leased").messages
        assert scanned == after
        assert desk.page().messages == [after]
        assert desk.explain("a").successor == START + 60
        assert desk.counts().sizes.total == 1
        assert desk.take() == []
        assert desk.extend(lease, lease=2_000)[0].done
        assert desk.get("a").successor == after.successor

    def test_the_newest_successor_stays_and_counts_from_the_first(self, desk: Desk) -> None:
        held(desk)
        desk.wait(10)
        for number in range(5):
            put(desk, b"%d" % number, group=f"g{number}")
            desk.wait(45)
        found = desk.get("a").successor
        assert found is not None
        assert (found.data, found.at, found.created) == (b"4", START + 210, START + 10)
        assert found.group == "g4"

    def test_other_puts_are_refused_and_leave_the_successor(self, desk: Desk) -> None:
        held(desk)
        put(desk, b"2")
        seen = desk.get("a")
        for more in ({"on_conflict": "keep"}, {"on_conflict": "replace"},
                     {"on_conflict": "revive"},
                     {"on_conflict": "replace", "latest": 5, "if_version": seen.version},
                     {"on_conflict": "replace", "latest": 5, "died": START}):  # fmt: skip
            assert desk.put("a", data=b"9", **more) == [desk.refusal("a")]
            assert desk.get("a") == seen

    @pytest.mark.parametrize("keep", [0, HOUR])
    def test_after_an_ack_the_successor_is_a_new_message(self, desk: Desk, keep: int) -> None:
        desk.configure(keep=keep, history=HOUR)
        lease = held(desk)
        desk.wait(10)
        put(desk, **RICH)
        desk.wait(5)
        assert desk.ack(lease) == [Outcome("a", True, "delayed", START + 60)]
        message = desk.get("a")
        assert (message.data, message.json, message.priority) == (b'"x"', False, 9)
        assert (message.expires, message.attempts, message.attempt) == (50, 3, 0)
        assert (message.group, message.headers, message.failures) == ("g", {"a": "b"}, ())
        assert (message.due, message.created, message.successor) == (START + 60, START + 10, None)
        assert [end.how for end in desk.ends("a")] == ["acked"]
        counts = desk.counts()
        assert (counts.flow.put, counts.flow.acked, counts.kept) == (2, 1, 0)
        assert desk.scan(group="old") == []
        assert desk.scan(group="g") == ["a"]
        assert desk.take() == []
        desk.wait(45)
        assert desk.take() == ["a"]
        assert desk.scan("leased") == ["a"]

    def test_an_ack_of_several_says_of_each_what_follows(self, desk: Desk) -> None:
        desk.put("a", "b", "c")
        held = leases(desk.claim())
        desk.put("a", "c", on_conflict="replace", delay=5, latest=9)
        reply = desk.ask(cmd.Ack("q", held), Outcomes)
        assert reply.outcomes == [
            Outcome("a", True, "delayed", START + 5), Outcome("b", True),
            Outcome("c", True, "delayed", START + 5),
        ]  # fmt: skip
        assert reply.wake == START + 5
        assert desk.counts().sizes.delayed == 2

    def test_a_successor_whose_time_has_come_is_delivered_at_once(self, desk: Desk) -> None:
        lease = held(desk)
        put(desk, b"2", priority=3)
        desk.wait(60)
        assert desk.ack(lease) == [Outcome("a", True, "ready", START + 50)]
        (message,) = desk.claim().messages
        assert (message.body, message.attempt, message.failures) == (2, 1, ())

    @pytest.mark.parametrize("attempts", [1, 2])
    @pytest.mark.parametrize("how", ["retry", "later", "release", "return", "bury", "lapse"])
    def test_however_the_lease_ends_the_successor_takes_the_place(
        self, desk: Desk, how: str, attempts: int
    ) -> None:
        lease = held(desk, attempts=attempts)
        desk.wait(10)
        put(desk, b"2")
        desk.wait(5)
        follows = Outcome("a", True, "delayed", START + 60)
        match how:
            case "retry":
                assert desk.retry(lease) == [follows]
            case "later":
                assert desk.retry(lease, delay=9_000) == [follows]
            case "release":
                assert desk.release("a") == [follows]
            case "return":
                assert desk.retry(lease, release=True) == [follows]
            case "bury":
                assert desk.bury(lease) == [follows]
            case "lapse":
                desk.wait(1_000)
                claimed = desk.claim()
                assert claimed.died == []
                assert [m.body for m in claimed.messages] == [2]
        message = desk.get("a")
        assert (message.body, message.created, message.failures) == (2, START + 10, ())
        assert (message.attempts, message.planned, message.group) == (10, None, None)
        died = how == "bury" or (attempts == 1 and how != "return")
        flow = desk.counts().flow
        assert (flow.put, flow.died, flow.revived) == (1, died, died)
        assert desk.scan(group="old") == []

    @pytest.mark.parametrize("verb", ["find", "put", "cancel", "ack", "scan"])
    def test_a_lapsed_lease_is_followed_by_whatever_command_comes(
        self, desk: Desk, verb: str
    ) -> None:
        lease = held(desk, lease=20, attempts=1)
        put(desk, b"2")
        desk.wait(30)
        match verb:
            case "put":
                assert put(desk, b"3") == Outcome("a", True, "delayed", START + 80)
                assert desk.get("a").created == START
            case "cancel":
                assert desk.cancel("a") == [Outcome("a", True, due=START + 50)]
                assert desk.counts().flow.cancelled == 1
            case "ack":
                assert desk.ack(lease) == [Outcome("a", False, "delayed", START + 50)]
            case _:  # a read changes nothing
                message = desk.get("a") if verb == "find" else desk.page("leased").messages[0]
                assert (message.state, message.successor is None) == ("leased", False)

    def test_a_claim_tells_of_the_dead_but_of_none_that_has_a_successor(self, desk: Desk) -> None:
        desk.put("a", "b", attempts=1)
        desk.claim(lease=20)
        put(desk, b"2", delay=HOUR, latest=HOUR)
        desk.wait(30)
        assert desk.claim().died == [Died("b", 1, "w1")]
        assert desk.state("a") == "delayed"

    def test_a_cancel_removes_the_successor(self, desk: Desk) -> None:
        lease = held(desk)
        put(desk, b"2")
        assert desk.cancel("a", if_due=START) == [desk.refusal("a")]
        assert desk.cancel("a", if_version=desk.get("a").version) == [desk.refusal("a")]
        refused = desk.refusal("a")
        assert desk.cancel("a") == [
            Outcome("a", False, "leased", START, refused.until, "w1", successor=START + 50)
        ]
        assert desk.get("a").successor is None
        assert desk.cancel("a") == [refused]
        assert desk.ack(lease) == [Outcome("a", True)]
        assert desk.find("a") == [None]
        assert desk.counts().flow.put == 1

    def test_what_names_no_id_or_changes_unheld_messages_leaves_successors(
        self, desk: Desk
    ) -> None:
        held(desk)
        put(desk, b"2", group="g")
        before = desk.get("a")
        assert desk.cancel_where(after=0).count == 0
        assert desk.cancel_where(group="g").count == 0
        assert desk.scan(group="g") == []
        assert desk.edit("a", data=b"3") == [desk.refusal("a")]
        assert desk.reschedule("a", delay=5) == [desk.refusal("a")]
        assert desk.set_aside("a") == [desk.refusal("a")]
        assert desk.purge("leased").count == 0
        assert not desk.delete().done
        assert desk.get("a") == before

    def test_successors_of_other_queues_and_ids_stay(self, desk: Desk) -> None:
        other = desk.apart("other")
        lease, twin = held(desk), held(other)
        put(desk, b"2")
        put(other, b"3")
        desk.put("b")
        (b,) = leases(desk.claim())
        assert desk.ack(b) == [Outcome("b", True)]
        desk.ack(lease)
        assert (desk.get("a").body, other.get("a").body) == (2, 1)
        other.ack(twin)
        assert (desk.get("a").body, other.get("a").body) == (2, 3)

    def test_the_bytes_of_successors_are_counted(self, desk: Desk) -> None:
        held(desk)
        before = desk.ask(cmd.Count("q", stored=True), Counts).stored or 0
        put(desk, b'"%s"' % (b"x" * 5_000))
        after = desk.ask(cmd.Count("q", stored=True), Counts).stored or 0
        assert 5_000 <= after - before <= 5_300
