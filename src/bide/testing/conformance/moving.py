# ruff: noqa: D102  (the name of each case says what it checks)
"""Bury and purge by id, and puts that only revive: the commands of a move between stores."""

import pytest

from bide.model import commands as cmd
from bide.model.message import KEPT_FAILURES, Failure, Item
from bide.model.replies import Outcome, Outcomes
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["MoveCases"]


class MoveCases:
    """What the commands of a move promise."""

    @pytest.mark.parametrize("delay", [0, 50])
    def test_bury_by_id_makes_waiting_messages_dead_letters(self, desk: Desk, delay: int) -> None:
        desk.put("a", delay=delay, priority=3, group="g", expires=9, attempts=4)
        desk.wait(5)
        moment = START + 5
        assert desk.set_aside("a", reason="moved") == [
            Outcome("a", True, "dead", START + delay, moment)
        ]
        message = desk.get("a")
        assert (message.state, message.due, message.ended) == ("dead", START + delay, moment)
        assert (message.attempt, message.attempts) == (0, 4)
        assert (message.priority, message.group, message.expires) == (3, "g", 9)
        assert message.failures == (Failure(0, moment, "", "moved"),)
        assert desk.counts().flow.died == 1
        desk.wait(HOUR)
        assert desk.take() == []

    def test_bury_by_lease_and_by_id_in_one_command(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.put("b")
        command = cmd.Bury(desk.queue, [lease], "no", ["b", "a"])
        outcomes = desk.ask(command, Outcomes).outcomes
        assert [(o.id, o.done) for o in outcomes] == [("a", True), ("b", True), ("a", False)]

    def test_bury_by_id_remembers_the_last_failures(self, desk: Desk) -> None:
        failures = tuple(Failure(n, n, "w", "no") for n in range(KEPT_FAILURES))
        desk.put("a", failures=failures)
        desk.set_aside("a", reason="moved")
        assert desk.get("a").failures == (*failures[1:], Failure(0, START, "", "moved"))

    def test_bury_by_id_in_a_paused_queue(self, desk: Desk) -> None:
        desk.put("a")
        desk.configure(paused=True)
        assert desk.set_aside("a")[0]

    def test_purge_by_id_deletes_dead_letters(self, desk: Desk) -> None:
        desk.bring("a", "dead")
        desk.bring("b", "dead")
        assert desk.purge_by_id("a", "x") == [
            Outcome("a", True, due=START), Outcome("x", False),
        ]  # fmt: skip
        assert desk.scan() == ["b"]
        counts = desk.counts()
        assert (counts.flow.purged, counts.sizes.dead) == (1, 1)

    def test_a_put_that_revives_replaces_a_dead_letter(self, desk: Desk) -> None:
        desk.bring("a", "dead")
        item = Item("a", b"2", at=START + 7, priority=5, attempt=2, group="g")
        reply = desk.put_items([item], "revive")
        assert reply == Outcomes([Outcome("a", True, "delayed", START + 7)], wake=START + 7)
        message = desk.get("a")
        assert (message.data, message.priority, message.attempt) == (b"2", 5, 2)
        assert (message.group, message.failures, message.ended) == ("g", (), None)
        assert desk.counts().flow.revived == 1

    def test_a_put_that_revives_does_so_once(self, desk: Desk) -> None:
        desk.bring("a", "dead")
        for _ in range(2):
            desk.put("a", on_conflict="revive")
        desk.ack(*leases(desk.claim()))
        assert [o.done for o in desk.put("a", on_conflict="revive")] == [False]
        assert desk.scan() == []
