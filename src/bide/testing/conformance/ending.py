# ruff: noqa: D102  (the name of each case says what it checks)
"""History and results: what a queue remembers of messages that have ended."""

from typing import Any

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.ended import KEPT_ENDS, End
from bide.model.message import FORGET, LAPSED, Failure
from bide.model.replies import Affected, Ends, Outcomes
from bide.testing.conformance.driver import HOUR, START, Driver

__all__ = ["EndCases"]


def end(how: str, by: str | None = None, moment: int = 0, attempt: int = 0, **more: object) -> End:
    """Return an end, `moment` milliseconds after the start."""
    fields: dict[str, Any] = {
        "how": how,
        "moment": START + moment,
        "by": by,
        "due": START,
        "attempt": attempt,
    }
    if how == "acked":  # claimed when it was due
        fields["since"] = more.get("due", START)
    return msgspec.convert(fields | more, End)


def failed(reason: str) -> tuple[Failure]:
    """Return the failures of a message whose first attempt failed at the start."""
    return (Failure(1, START, "w1", reason, START),)


class EndCases:
    """What `history` and `result_ttl` promise."""

    def test_a_queue_remembers_nothing_unless_it_is_told_to(self, driver: Driver) -> None:
        driver.ack(driver.lease("a"))
        driver.put("b")
        driver.cancel("b", actor="ann")
        assert driver.ends("a") == driver.ends("b") == []
        driver.configure(history=HOUR)
        assert driver.ends("a") == []
        assert driver.stored() == 0

    def test_history_tells_how_each_message_ended_and_by_whom(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        lease = driver.lease("acked")
        driver.wait(5)
        driver.ack(lease)
        driver.put("cancelled", at=START)
        driver.cancel("cancelled", actor="ann")
        driver.put("grouped", at=START, group="g", priority=3)
        driver.put("timed", at=START + HOUR)
        for rule in (cmd.Where(group="g"), cmd.Where(after=START + 9)):
            driver.ask(cmd.Cancel("q", where=rule, actor="bob"), Affected)
        driver.put("purged", "swept", at=START)
        driver.ask(cmd.Purge("q", "ready", actor="ann"), Affected)
        driver.put("expired", at=START, expires=1)
        assert driver.take() == []
        purged = [end("purged", "ann", 5)]
        ends = {
            "acked": [end("acked", "w1", 5, 1)], "cancelled": [end("cancelled", "ann", 5)],
            "grouped": [end("cancelled", "bob", 5)],
            "timed": [end("cancelled", "bob", 5, due=START + HOUR)], "purged": purged,
            "swept": purged, "expired": [end("expired", None, 5)], "unknown": [],
        }  # fmt: skip
        assert {id: driver.ends(id) for id in ends} == ends

    def test_history_tells_how_messages_died(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.bury(driver.lease("buried"), reason="bad")
        driver.retry(driver.lease("tried", attempts=1), reason="no")
        driver.lease("released", attempts=1)
        driver.release("released", reason="hangs")
        driver.put("moved")
        driver.ask(cmd.Bury("q", reason="away", ids=["moved"], actor="ann"), Outcomes)
        driver.lease("lapsed", attempts=1)
        driver.wait(1_500)
        assert driver.take() == []
        lapse = Failure(1, START + 1_000, "w1", LAPSED, START)
        ends = {
            "buried": end("dead", "w1", 0, 1, failures=failed("bad")),
            "tried": end("dead", "w1", 0, 1, failures=failed("no")),
            "released": end("dead", "w1", 0, 1, failures=failed("hangs")),
            "moved": end("dead", "ann", failures=(Failure(0, START, "", "away"),)),
            "lapsed": end("dead", "w1", 1_500, 1, failures=(lapse,)),
        }
        assert {id: driver.ends(id) for id in ends} == {id: [one] for id, one in ends.items()}

    def test_a_revived_message_ends_once_more(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.bury(driver.lease("a"), reason="bad")
        driver.wait(3)
        driver.revive("a")
        driver.ack(*driver.hold())
        assert driver.ends("a") == [
            end("acked", "w1", 3, 1, failures=failed("bad"), due=START + 3),
            end("dead", "w1", 0, 1, failures=failed("bad")),
        ]
        driver.bury(driver.lease("b"))
        driver.ask(cmd.Purge("q", "dead", ids=["b"], actor="ann"), Outcomes)
        told = [(one.how, one.by) for one in driver.ends("b")]
        assert told == [("purged", "ann"), ("dead", "w1")]

    def test_a_purge_of_what_has_ended_is_no_other_end(self, driver: Driver) -> None:
        driver.configure(history=HOUR, keep=HOUR)
        driver.ack(driver.lease("acked"))
        driver.put("expired", at=START, expires=0)
        driver.wait(1)
        assert driver.take() == []
        for how in ("acked", "expired"):
            assert driver.ask(cmd.Purge("q", how), Affected) == Affected(1)
            assert [one.how for one in driver.ends(how)] == [how]

    def test_ids_of_remembered_messages_are_free(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for number in range(KEPT_ENDS + 2):
            driver.put("a", at=START + number)
            driver.cancel("a", actor=f"u{number}")
            driver.wait(1)
        ends = driver.ends("a")
        assert [one.by for one in ends] == [f"u{n}" for n in range(KEPT_ENDS + 1, 1, -1)]
        driver.put("a")
        reply = driver.ask(cmd.History("q", "a"), Ends)
        assert (reply.state, reply.ends) == ("ready", ends)

    def test_what_is_remembered_is_forgotten_in_time(self, driver: Driver) -> None:
        driver.configure(history=100)
        for id in ("a", "b"):
            driver.put(id)
            driver.cancel(id)
            driver.wait(60)
        assert (driver.ends("a"), len(driver.ends("b"))) == ([], 1)
        driver.put("c")  # a change: it forgets
        assert driver.stored() < 400
        driver.wait(40)
        assert driver.ends("b") == []
        driver.cancel("c")
        for history in (0, HOUR):
            driver.configure(history=history)
            assert driver.ends("c") == []
        assert driver.stored() == 0

    @pytest.mark.parametrize("setting", ["history", "result_ttl"])
    def test_a_millisecond_is_enough_to_remember_any_end(
        self, driver: Driver, setting: str
    ) -> None:
        driver.configure(**{setting: 1})
        driver.lease("lapsed", attempts=1)
        driver.put("acked", "buried")
        acked, buried = driver.hold(lease=HOUR)
        driver.wait(1_000)
        driver.ack(acked)
        driver.bury(buried)
        driver.put("cancelled", "purged")
        driver.cancel("cancelled")
        driver.purge("ready")
        driver.put("grouped", group="g")
        driver.cancel_where(group="g")
        driver.put("expired", at=START, expires=1)
        assert driver.take() == []
        ways = {
            "lapsed": "dead", "acked": "acked", "buried": "dead", "cancelled": "cancelled",
            "purged": "purged", "grouped": "cancelled", "expired": "expired",
        }  # fmt: skip
        assert {id: [one.how for one in driver.ends(id)] for id in ways} == {
            id: [way] for id, way in ways.items()
        }

    def test_it_is_forgotten_in_bounded_steps(self, bare: Driver) -> None:
        bare.configure(history=1)
        ids = [f"m{number}" for number in range(FORGET + 10)]
        bare.put(*ids)
        bare.cancel(*ids)
        full = bare.stored()
        bare.wait(1)
        bare.configure()
        assert bare.stored() < full / 50  # a shard of several may have forgotten all it had
        bare.configure()
        assert bare.stored() == 0

    def test_results_are_kept_for_their_time(self, driver: Driver) -> None:
        driver.configure(result_ttl=100, keep=HOUR)
        results = [b'{"total": 3}', None, b'"\xc3\xa9"']
        held = [driver.lease(id) for id in "abc"]
        assert all(driver.ask(cmd.Ack("q", held, results), Outcomes).outcomes)
        assert [driver.ends(id)[0].result for id in "abc"] == results
        driver.configure(history=HOUR)
        driver.wait(99)
        assert driver.ends("a") == [end("acked", "w1", 0, 1, result=results[0])]
        driver.wait(1)
        assert driver.ends("a") == [end("acked", "w1", 0, 1)]
        driver.configure(result_ttl=0)
        assert len(driver.ends("a")) == 1

    def test_a_queue_without_result_ttl_keeps_no_results(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.ask(cmd.Ack("q", [driver.lease("a")], [b"1"]), Outcomes)
        driver.configure(result_ttl=HOUR)
        assert driver.ends("a") == [end("acked", "w1", 0, 1)]

    def test_a_claim_tells_whether_the_queue_keeps_results(self, driver: Driver) -> None:
        driver.put("a", "b", "c")
        for setting, told in (("history", False), ("result_ttl", True)):
            driver.configure(**{setting: 1})
            assert driver.claim(1).results == told
        driver.configure(result_ttl=0)
        assert not driver.claim(1).results

    def test_a_queue_with_results_alone_remembers_ends_without_failures(
        self, driver: Driver
    ) -> None:
        driver.configure(result_ttl=HOUR)
        driver.bury(driver.lease("a"), reason="bad")
        assert driver.ends("a") == [end("dead", "w1", 0, 1)]

    @pytest.mark.parametrize("keep", [0, HOUR])
    def test_a_lost_lease_leaves_no_result(self, driver: Driver, keep: int) -> None:
        driver.configure(result_ttl=HOUR, keep=keep)
        good, lost = driver.lease("a"), driver.lease("b")
        driver.release("b")
        command = cmd.Ack("q", [lost, good, cmd.Lease("c", 1)], [b"1", b"2", b"3"])
        outcomes = driver.ask(command, Outcomes).outcomes
        assert [outcome.done for outcome in outcomes] == [False, True, False]
        assert [[one.result for one in driver.ends(id)] for id in "abc"] == [[b"2"], [], []]

    def test_acks_of_many_callers_keep_their_results(self, driver: Driver) -> None:
        driver.configure(result_ttl=HOUR)
        a, b, c = (driver.lease(id) for id in "abc")
        driver.batch(cmd.Ack("q", [a], [b"1"]), cmd.Ack("q", [b]), cmd.Ack("q", [c], [b"3"]))
        assert [driver.ends(id)[0].result for id in "abc"] == [b"1", None, b"3"]

    def test_ends_keep_to_a_budget(self, driver: Driver) -> None:
        driver.configure(result_ttl=HOUR)
        for _ in range(5):
            driver.ask(cmd.Ack("q", [driver.lease("a")], [b'"%s"' % (b"x" * 1_000)]), Outcomes)
            driver.wait(1)
        for budget, count in ((0, 1), (3_000, 2), (100_000, 5)):
            found = driver.ask(cmd.History("q", "a", budget), Ends)
            assert [one.moment - START for one in found.ends] == [4, 3, 2, 1, 0][:count]

    def test_failures_and_results_count_as_stored_while_they_are_remembered(
        self, driver: Driver
    ) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        driver.retry(driver.lease("a"), reason="x" * 2_000)
        assert 2_000 < driver.stored() < 3_000
        driver.ask(cmd.Ack("q", driver.hold(1), [b'"%s"' % (b"y" * 3_000)]), Outcomes)
        assert 5_000 < driver.stored() < 5_600
        driver.configure(history=0, result_ttl=0)
        driver.configure()
        assert driver.stored() == 0

    def test_a_deleted_queue_has_no_history(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.put("a")
        driver.cancel("a")
        assert driver.delete().done
        driver.configure(history=HOUR)
        assert (driver.ends("a"), driver.stored()) == ([], 0)
