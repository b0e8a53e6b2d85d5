# ruff: noqa: D102  (the name of each case says what it checks)
"""History and results: what a queue remembers of messages that have ended."""

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.ended import KEPT_ENDS, End
from bide.model.message import FORGET, LAPSED, Failure, Item
from bide.model.replies import Affected, Counts, Ends, Outcomes
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["EndCases"]


def end(how: str, by: str | None = None, moment: int = 0, attempt: int = 0, **more: object) -> End:
    """Return an end, `moment` milliseconds after the start."""
    fields: dict[str, object] = {
        "how": how,
        "moment": START + moment,
        "by": by,
        "due": START,
        "attempt": attempt,
    }
    if how == "acked":  # claimed when it was due
        fields["since"] = more.get("due", START)
    return msgspec.convert(fields | more, End)


def stored(desk: Desk) -> int:
    """Return how many bytes the queue takes."""
    return desk.ask(cmd.Count(desk.queue, stored=True), Counts).stored or 0


class EndCases:
    """What `history` and `result_ttl` promise."""

    def test_a_queue_remembers_nothing_unless_it_is_told_to(self, desk: Desk) -> None:
        desk.ack(desk.lease("a"))
        desk.put("b")
        desk.cancel("b", actor="ann")
        assert desk.ends("a") == desk.ends("b") == []
        desk.configure(history=HOUR)
        assert desk.ends("a") == []
        assert stored(desk) == 0

    def test_history_tells_how_each_message_ended_and_by_whom(self, desk: Desk) -> None:
        desk.configure(history=HOUR)
        lease = desk.lease("acked")
        desk.wait(5)
        desk.ack(lease)
        assert desk.ends("acked") == [end("acked", "w1", 5, 1)]
        desk.put("cancelled", at=START)
        desk.cancel("cancelled", actor="ann")
        assert desk.ends("cancelled") == [end("cancelled", "ann", 5)]
        desk.put("grouped", at=START, group="g", priority=3)
        desk.put("timed", at=START + HOUR)
        desk.ask(cmd.Cancel("q", where=cmd.Where(group="g"), actor="bob"), Affected)
        assert desk.ends("grouped") == [end("cancelled", "bob", 5)]
        desk.ask(cmd.Cancel("q", where=cmd.Where(after=START + 9), actor="bob"), Affected)
        assert desk.ends("timed") == [end("cancelled", "bob", 5, due=START + HOUR)]
        desk.put("purged", "swept", at=START)
        desk.ask(cmd.Purge("q", "ready", actor="ann"), Affected)
        assert desk.ends("purged") == desk.ends("swept") == [end("purged", "ann", 5)]
        desk.put("expired", at=START, expires=1)
        assert desk.take() == []
        assert desk.ends("expired") == [end("expired", None, 5)]
        assert desk.ends("unknown") == []

    def test_history_tells_how_messages_died(self, desk: Desk) -> None:
        desk.configure(history=HOUR)
        desk.bury(desk.lease("buried"), reason="bad")
        failures = (Failure(1, START, "w1", "bad", START),)
        assert desk.ends("buried") == [end("dead", "w1", 0, 1, failures=failures)]
        desk.retry(desk.lease("tried", attempts=1), reason="no")
        failures = (Failure(1, START, "w1", "no", START),)
        assert desk.ends("tried") == [end("dead", "w1", 0, 1, failures=failures)]
        desk.lease("released", attempts=1)
        desk.release("released", reason="hangs")
        failures = (Failure(1, START, "w1", "hangs", START),)
        assert desk.ends("released") == [end("dead", "w1", 0, 1, failures=failures)]
        desk.put("moved")
        desk.ask(cmd.Bury("q", reason="away", ids=["moved"], actor="ann"), Outcomes)
        failures = (Failure(0, START, "", "away"),)
        assert desk.ends("moved") == [end("dead", "ann", failures=failures)]
        desk.lease("lapsed", attempts=1)
        desk.wait(1_500)
        assert desk.take() == []
        failures = (Failure(1, START + 1_000, "w1", LAPSED, START),)
        assert desk.ends("lapsed") == [end("dead", "w1", 1_500, 1, failures=failures)]

    def test_a_revived_message_ends_once_more(self, desk: Desk) -> None:
        desk.configure(history=HOUR)
        desk.bury(desk.lease("a"), reason="bad")
        desk.wait(3)
        desk.revive("a")
        desk.ack(*leases(desk.claim()))
        failures = (Failure(1, START, "w1", "bad", START),)
        assert desk.ends("a") == [
            end("acked", "w1", 3, 1, failures=failures, due=START + 3),
            end("dead", "w1", 0, 1, failures=failures),
        ]
        desk.bury(desk.lease("b"))
        desk.ask(cmd.Purge("q", "dead", ids=["b"], actor="ann"), Outcomes)
        assert [(one.how, one.by) for one in desk.ends("b")] == [("purged", "ann"), ("dead", "w1")]

    def test_a_purge_of_what_has_ended_is_no_other_end(self, desk: Desk) -> None:
        desk.configure(history=HOUR, keep=HOUR)
        desk.ack(desk.lease("acked"))
        desk.put("expired", at=START, expires=0)
        desk.wait(1)
        assert desk.take() == []
        assert desk.purge("acked") == desk.purge("expired") == Affected(1)
        ends = {id: [one.how for one in desk.ends(id)] for id in ("acked", "expired")}
        assert ends == {"acked": ["acked"], "expired": ["expired"]}

    def test_ids_of_remembered_messages_are_free(self, desk: Desk) -> None:
        desk.configure(history=HOUR)
        for number in range(KEPT_ENDS + 2):
            desk.put("a", at=START + number)
            desk.cancel("a", actor=f"u{number}")
            desk.wait(1)
        ends = desk.ends("a")
        assert [one.by for one in ends] == [f"u{n}" for n in range(KEPT_ENDS + 1, 1, -1)]
        desk.put("a")
        reply = desk.ask(cmd.History("q", "a"), Ends)
        assert (reply.state, reply.ends) == ("ready", ends)

    def test_what_is_remembered_is_forgotten_in_time(self, desk: Desk) -> None:
        desk.configure(history=100)
        for id in ("a", "b"):
            desk.put(id)
            desk.cancel(id)
            desk.wait(60)
        assert (desk.ends("a"), len(desk.ends("b"))) == ([], 1)
        desk.put("c")  # a change: it forgets
        assert stored(desk) < 400
        desk.wait(40)
        assert desk.ends("b") == []
        desk.cancel("c")
        desk.configure(history=0)
        assert desk.ends("c") == []
        desk.configure(history=HOUR)
        assert desk.ends("c") == []
        assert stored(desk) == 0

    @pytest.mark.parametrize("setting", ["history", "result_ttl"])
    def test_a_millisecond_is_enough_to_remember_any_end(self, desk: Desk, setting: str) -> None:
        desk.configure(**{setting: 1})
        desk.lease("lapsed", attempts=1)
        desk.put("acked", "buried")
        acked, buried = leases(desk.claim(lease=HOUR))
        desk.wait(1_000)
        desk.ack(acked)
        desk.bury(buried)
        desk.put("cancelled", "purged")
        desk.cancel("cancelled")
        desk.purge("ready")
        desk.put("grouped", group="g")
        desk.cancel_where(group="g")
        desk.put("expired", at=START, expires=1)
        assert desk.take() == []
        ids = ["lapsed", "acked", "buried", "cancelled", "purged", "grouped", "expired"]
        ways = ["dead", "acked", "dead", "cancelled", "purged", "cancelled", "expired"]
        assert [[one.how for one in desk.ends(id)] for id in ids] == [[way] for way in ways]

    def test_it_is_forgotten_in_bounded_steps(self, bare: Desk) -> None:
        bare.configure(history=1)
        ids = [f"m{number}" for number in range(FORGET + 10)]
        bare.put(*ids)
        bare.cancel(*ids)
        full = stored(bare)
        bare.wait(1)
        bare.configure()
        assert stored(bare) < full / 50  # a shard of several may have forgotten all it had
        bare.configure()
        assert stored(bare) == 0

    def test_failures_take_room_while_the_message_is_there_and_while_they_are_remembered(
        self, desk: Desk
    ) -> None:
        desk.configure(history=HOUR)
        lease = desk.lease("a")
        desk.retry(lease, reason="x" * 1_000)
        assert 1_000 < stored(desk) < 2_000
        desk.ack(*leases(desk.claim(1)))
        assert 1_000 < stored(desk) < 2_000

    def test_results_are_kept_for_their_time(self, desk: Desk) -> None:
        desk.configure(result_ttl=100, keep=HOUR)
        held = [desk.lease(id) for id in ("a", "b", "c")]
        command = cmd.Ack("q", held, [b'{"total": 3}', None, b'"\xc3\xa9"'])
        assert all(desk.ask(command, Outcomes).outcomes)
        assert desk.ends("a") == [end("acked", "w1", 0, 1, result=b'{"total": 3}')]
        assert [desk.ends(id)[0].result for id in ("b", "c")] == [None, b'"\xc3\xa9"']
        desk.configure(history=HOUR)
        desk.wait(99)
        assert desk.ends("a")[0].result is not None
        desk.wait(1)
        assert desk.ends("a") == [end("acked", "w1", 0, 1)]
        desk.configure(result_ttl=0)
        assert len(desk.ends("a")) == 1

    def test_a_queue_without_result_ttl_keeps_no_results(self, desk: Desk) -> None:
        desk.configure(history=HOUR)
        desk.ask(cmd.Ack("q", [desk.lease("a")], [b"1"]), Outcomes)
        desk.configure(result_ttl=HOUR)
        assert desk.ends("a") == [end("acked", "w1", 0, 1)]

    def test_a_claim_tells_whether_the_queue_keeps_results(self, desk: Desk) -> None:
        desk.put("a", "b", "c")
        told = []
        for settings in ({"history": 1}, {"result_ttl": 1}, {"result_ttl": 0}):
            desk.configure(**settings)
            told.append(desk.claim(1).results)
        assert told == [False, True, False]

    def test_a_queue_with_results_alone_remembers_ends_without_failures(self, desk: Desk) -> None:
        desk.configure(result_ttl=HOUR)
        desk.bury(desk.lease("a"), reason="bad")
        assert desk.ends("a") == [end("dead", "w1", 0, 1)]

    @pytest.mark.parametrize("keep", [0, HOUR])
    def test_a_lost_lease_leaves_no_result(self, desk: Desk, keep: int) -> None:
        desk.configure(result_ttl=HOUR, keep=keep)
        good, lost = desk.lease("a"), desk.lease("b")
        desk.release("b")
        command = cmd.Ack("q", [lost, good, cmd.Lease("c", 1)], [b"1", b"2", b"3"])
        outcomes = desk.ask(command, Outcomes).outcomes
        assert [outcome.done for outcome in outcomes] == [False, True, False]
        assert [len(desk.ends(id)) for id in "abc"] == [1, 0, 0]
        assert desk.ends("a")[0].result == b"2"

    def test_acks_of_many_callers_keep_their_results(self, desk: Desk) -> None:
        desk.configure(result_ttl=HOUR)
        a, b, c = (desk.lease(id) for id in "abc")
        desk.batch(cmd.Ack("q", [a], [b"1"]), cmd.Ack("q", [b]), cmd.Ack("q", [c], [b"3"]))
        assert [desk.ends(id)[0].result for id in "abc"] == [b"1", None, b"3"]

    def test_ends_keep_to_a_budget(self, desk: Desk) -> None:
        desk.configure(result_ttl=HOUR)
        for _ in range(5):
            desk.ask(cmd.Ack("q", [desk.lease("a")], [b'"%s"' % (b"x" * 1_000)]), Outcomes)
            desk.wait(1)
        for budget, count in ((0, 1), (3_000, 2), (100_000, 5)):
            found = desk.ask(cmd.History("q", "a", budget), Ends)
            assert [one.moment - START for one in found.ends] == [4, 3, 2, 1, 0][:count]

    def test_settings_are_told(self, desk: Desk) -> None:
        settings = desk.configure(history=5, result_ttl=7)
        assert (settings.history, settings.result_ttl, settings.keep) == (5, 7, 0)
        desk.configure(keep=3)
        counts = desk.counts()
        assert (counts.history, counts.result_ttl, counts.keep) == (5, 7, 3)

    def test_what_is_remembered_counts_as_stored(self, desk: Desk) -> None:
        desk.configure(history=HOUR, result_ttl=HOUR)
        lease = desk.lease("a", failures=(Failure(1, START, "w", "x" * 2_000),))
        desk.ask(cmd.Ack("q", [lease], [b'"%s"' % (b"y" * 3_000)]), Outcomes)
        assert 5_000 < stored(desk) < 5_600
        desk.configure(history=0, result_ttl=0)
        desk.configure()
        assert stored(desk) == 0

    def test_a_deleted_queue_has_no_history(self, desk: Desk) -> None:
        desk.configure(history=HOUR)
        desk.put("a")
        desk.cancel("a")
        assert desk.delete().done
        desk.configure(history=HOUR)
        assert (desk.ends("a"), stored(desk)) == ([], 0)

    def test_history_is_of_one_queue(self, desk: Desk) -> None:
        for number, name in enumerate(("q", "q2")):
            one = desk.apart(name)
            one.configure(history=HOUR)
            one.put_items([Item("a", b"1")])
            one.cancel("a", actor=f"u{number}")
        assert desk.ends("a")[0].by == "u0"
        assert desk.apart("q2").ends("a")[0].by == "u1"
        assert desk.apart("q3").ends("a") == []
