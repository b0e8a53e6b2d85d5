# ruff: noqa: D102  (the name of each case says what it checks)
"""Explain: what an engine knows about the place of a message."""

from bide.model.message import LAPSED, STATES, Failure
from bide.model.rank import PROMOTE
from bide.model.replies import AHEAD, PAUSES, Explained, Pause
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["ExplainCases"]


class ExplainCases:
    """What it promises."""

    def test_what_is_not_there_is_explained_by_nothing(self, desk: Desk) -> None:
        assert desk.explain("a") == desk.explain() == Explained(START)
        assert desk.queues() == []
        desk.put("b")
        assert desk.explain("a") == desk.explain() == Explained(START)

    def test_it_agrees_with_the_message_in_every_state(self, desk: Desk) -> None:
        for state in STATES:
            one = desk.apart(state)
            one.bring("a", state)
            told, seen = one.explain("a"), one.get("a")
            assert told.state == seen.state == state
            for name in ("due", "planned", "priority", "attempt", "attempts", "holder", "until",
                         "ended"):  # fmt: skip
                assert getattr(told, name) == getattr(seen, name)
            assert told.failure == (seen.failures[-1] if seen.failures else None)
            assert told.ahead == (0 if state == "ready" else None)
            assert told.since == (one.now if state == "leased" else None)

    def test_a_lease_tells_since_when_and_how_often_it_was_extended(self, desk: Desk) -> None:
        desk.put("a", "b", attempts=3)
        desk.wait(3)
        first = leases(desk.claim(holder="host one:7"))[0]
        assert desk.explain("a").since == START + 3
        for times in (1, 2):
            desk.wait(2)
            desk.extend(first, lease=1_000)
            told = desk.explain("a")
            assert (told.since, told.extended, told.holder) == (START + 3, times, "host one:7")
            assert told.until == desk.now + 1_000
        assert desk.explain("b").extended == 0
        desk.retry(first, reason="no")
        told = desk.explain("a")
        assert (told.state, told.since, told.extended, told.holder) == ("ready", None, 0, None)
        assert told.failure == Failure(1, desk.now, "host one:7", "no", START + 3)
        desk.wait(1_000)  # the other lease ends
        assert desk.take() == ["b", "a"]
        told = desk.explain("a")
        assert (told.since, told.extended) == (desk.now, 0)
        assert desk.explain("b").failure == Failure(
            1, START + 1_003, "host one:7", LAPSED, START + 3
        )

    def test_a_retry_keeps_the_time_that_was_planned(self, desk: Desk) -> None:
        desk.retry(desk.lease("a"), delay=5, reason="later")
        told = desk.explain("a")
        assert (told.state, told.due, told.planned) == ("delayed", START + 5, START)
        desk.wait(5)
        told = desk.explain("a")
        assert (told.state, told.attempt, told.ahead) == ("ready", 1, 0)

    def test_ahead_is_the_order_of_delivery(self, desk: Desk) -> None:
        desk.put("c", delay=3)
        desk.put("a", "b", delay=2)
        desk.put("heavy", delay=4, priority=1)
        desk.put("top", delay=4, priority=255)
        desk.put("later", delay=HOUR, priority=255)
        desk.wait(5)
        order = ["heavy", "a", "b", "c"]
        assert [desk.explain(id).ahead for id in ["top", *order]] == [0, 1, 2, 3, 4]
        assert desk.explain("later").ahead is None
        assert desk.take(1) == ["top"]  # this has made the others ready
        assert [desk.explain(id).ahead for id in order] == [0, 1, 2, 3]
        desk.put("d", at=desk.now - 4)
        desk.put("e", priority=1)
        order = ["heavy", "e", "d", "a", "b", "c"]
        assert [desk.explain(id).ahead for id in order] == [0, 1, 2, 3, 4, 5]
        assert [desk.take(1) for _ in order] == [[id] for id in order]

    def test_only_so_many_ahead_are_counted(self, bare: Desk) -> None:
        desk = bare
        desk.put(*(f"{number:04}" for number in range(5 * PROMOTE)))
        wanted = [0, 5, AHEAD - 1, AHEAD, AHEAD + 1, AHEAD + 2]
        expected = [min(number, AHEAD + 1) for number in wanted]
        assert [desk.explain(f"{number:04}").ahead for number in wanted] == expected
        desk.wait(1)
        desk.put("top", priority=1)
        assert desk.explain("top").ahead == AHEAD + 1  # a claim does not look so far
        desk.put("older", at=START - 1)
        assert [desk.explain(id).ahead for id in ("older", "0005")] == [0, 6]

    def test_a_queue_remembers_its_last_pauses(self, desk: Desk) -> None:
        desk.put("a")
        desk.configure(paused=True, actor="ann")
        assert desk.explain("a").pauses == [Pause(START, None, "ann")]
        desk.wait(2)
        desk.configure(paused=True, actor="bob")  # it is paused already
        assert desk.explain().pauses == [Pause(START, None, "ann")]
        desk.configure(paused=False, actor="bob")
        desk.configure(paused=False)
        desk.configure(keep=HOUR)
        first = Pause(START, START + 2, "ann")
        assert desk.explain("a").pauses == [first]
        pauses = []
        for _ in range(PAUSES):
            desk.wait(1)
            desk.configure(paused=True, actor="bob")
            pauses.append(Pause(desk.now, desk.now + 1, "bob"))
            desk.wait(1)
            desk.configure(paused=False)
        assert desk.explain().pauses == pauses
        assert desk.apart("another").explain().pauses == []
        desk.configure(keep=0)
        desk.cancel("a")
        assert desk.delete().done
        desk.put("a")
        assert desk.explain("a").pauses == []
