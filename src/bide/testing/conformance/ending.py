# ruff: noqa: D102  (the name of each case says what it checks)
"""History and results: what a queue remembers of messages that have ended."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.ended import KEPT_ENDS, End
from bide.model.message import FORGET, LAPSED, Failure
from bide.testing.conformance.driver import HOUR, START, Driver, done, numbered


def end(how: str, by: str | None = None, moment: int = 0, attempt: int = 0, **more: Any) -> End:
    """Return an end, `moment` milliseconds after the start; an ack of what was claimed when due."""
    since = more.get("due", START) if how == "acked" else None
    fields: dict[str, Any] = {"how": how, "by": by, "due": START, "attempt": attempt}
    fields |= {"moment": START + moment, "since": since} | more
    return msgspec.convert(fields, End)


EARLIER, LAPSE = START - 3, START + 1_000


def failed(reason: str) -> tuple[Failure]:
    """Return the failures of a message whose first attempt failed at the start."""
    return (Failure(1, START, "w1", reason, START),)


ENDINGS: dict[str, tuple[Callable[[Driver], object], End]] = {
    "ack": (lambda one: (lease := one.lease("a"), one.wait(5).ack(lease)),
            end("acked", "w1", 5, 1)),
    "bury": (lambda one: one.bury(one.lease("a"), reason="bad"),
             end("dead", "w1", 0, 1, failures=failed("bad"))),
    "retry": (lambda one: one.retry(one.lease("a", attempts=1), reason="no"),
              end("dead", "w1", 0, 1, failures=failed("no"))),
    "release": (lambda one: one.release(one.lease("a", attempts=1).id, reason="hangs"),
                end("dead", "w1", 0, 1, failures=failed("hangs"))),
    "lapse": (lambda one: (one.lease("a", attempts=1), one.wait(1_500).claim()),
              end("dead", "w1", 1_500, 1, failures=(Failure(1, LAPSE, "w1", LAPSED, START),))),
    "bury-by-id": (lambda one: (one.put("a"), one.set_aside("a", reason="away", actor="ann")),
                   end("dead", "ann", failures=(Failure(0, START, "", "away"),))),
    "cancel": (lambda one: (one.put("a", delay=5), one.cancel("a", actor="ann")),
               end("cancelled", "ann", due=START + 5)),
    "cancel-by-group": (lambda one: (one.put("a", at=EARLIER, group="g", priority=3),
                                     one.cancel_where(group="g", actor="bob")),
                        end("cancelled", "bob", due=EARLIER)),
    "cancel-by-time": (lambda one: (one.put("a", delay=9),
                                    one.cancel_where(after=START, actor="bob")),
                       end("cancelled", "bob", due=START + 9)),
    "purge": (lambda one: (one.put("b", "a", at=EARLIER), one.purge("ready", actor="ann")),
              end("purged", "ann", due=EARLIER)),
    "expiry": (lambda one: (one.put("a", expires=1), one.wait(5).claim()), end("expired", None, 5)),
}  # fmt: skip
"""Every way in which a message ends, and what is remembered of it."""


class EndCases:
    """What `history` and `result_ttl` promise."""

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_history_tells_how_a_message_ended(self, driver: Driver, ending: str) -> None:
        act, expected = ENDINGS[ending]
        driver.configure(history=HOUR)
        act(driver)
        assert (driver.ends("a"), driver.ends("unknown")) == ([expected], [])

    def test_a_revived_message_ends_once_more(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.bury(driver.lease("a"), reason="bad")
        driver.wait(3).revive("a")
        driver.ack(*driver.hold())
        assert driver.ends("a") == [
            end("acked", "w1", 3, 1, failures=failed("bad"), due=START + 3),
            end("dead", "w1", 0, 1, failures=failed("bad")),
        ]
        driver.bury(driver.lease("b"))
        driver.purge_by_id("b", actor="ann")
        ends = [(one.how, one.by) for one in driver.ends("b")]
        assert ends == [("purged", "ann"), ("dead", "w1")]

    def test_ids_of_remembered_messages_are_free(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for number in range(KEPT_ENDS + 2):
            driver.put("a", at=START + number)
            driver.cancel("a", actor=f"u{number}")
            driver.wait(1)
        ends = driver.ends("a")
        assert [one.by for one in ends] == [f"u{n}" for n in range(KEPT_ENDS + 1, 1, -1)]
        driver.put("a")
        reply = driver.history("a")
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
        assert driver.wait(40).ends("b") == []
        driver.cancel("c")
        for history in (0, HOUR):
            driver.configure(history=history)
            assert driver.ends("c") == []
        assert driver.stored() == 0

    def test_it_is_forgotten_in_bounded_steps(self, bare: Driver) -> None:
        bare.configure(history=1)
        ids = numbered(FORGET + 10)
        bare.put(*ids)
        bare.cancel(*ids)
        full = bare.stored()
        bare.wait(1).configure()
        assert bare.stored() < full / 50  # a shard of several may have forgotten all it had
        bare.configure()
        assert bare.stored() == 0

    def test_results_are_kept_for_their_time(self, driver: Driver) -> None:
        driver.configure(result_ttl=100, keep=HOUR)
        results = [b'{"total": 3}', None, b'"\xc3\xa9"']
        assert all(driver.ack(*[driver.lease(id) for id in "abc"], results=results))
        assert [driver.ends(id)[0].result for id in "abc"] == results
        driver.configure(history=HOUR)
        assert driver.wait(99).ends("a") == [end("acked", "w1", 0, 1, result=results[0])]
        assert driver.wait(1).ends("a") == [end("acked", "w1", 0, 1)]
        driver.configure(result_ttl=0)
        assert len(driver.ends("a")) == 1

    def test_a_queue_without_result_ttl_keeps_no_results(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.ack(driver.lease("a"), results=[b"1"])
        driver.configure(result_ttl=HOUR)
        assert driver.ends("a") == [end("acked", "w1", 0, 1)]

    def test_a_claim_tells_whether_the_queue_keeps_results(self, driver: Driver) -> None:
        driver.put("a", "b", "c")
        for setting, keeps in (({"history": 1}, False), ({"result_ttl": 1}, True),
                               ({"result_ttl": 0}, False)):  # fmt: skip
            driver.configure(**setting)
            assert driver.claim(1).results == keeps

    def test_results_alone_remember_ends_without_failures(self, driver: Driver) -> None:
        driver.configure(result_ttl=HOUR)
        driver.bury(driver.lease("a"), reason="bad")
        assert driver.ends("a") == [end("dead", "w1", 0, 1)]

    @pytest.mark.parametrize("keep", [0, HOUR])
    def test_a_lost_lease_leaves_no_result(self, driver: Driver, keep: int) -> None:
        driver.configure(result_ttl=HOUR, keep=keep)
        good, lost = driver.lease("a"), driver.lease("b")
        driver.release("b")
        outcomes = driver.ack(lost, good, cmd.Lease("c", 1), results=[b"1", b"2", b"3"])
        assert done(outcomes) == [False, True, False]
        assert [[one.result for one in driver.ends(id)] for id in "abc"] == [[b"2"], [], []]

    def test_acks_of_many_callers_keep_their_results(self, driver: Driver) -> None:
        driver.configure(result_ttl=HOUR)
        a, b, c, d = (driver.lease(id) for id in "abcd")
        driver.batch(cmd.Ack("q", [a], [b"1"]), cmd.Ack("q", [b, d]), cmd.Ack("q", [c], [b"3"]))
        assert [driver.ends(id)[0].result for id in "abcd"] == [b"1", None, b"3", None]

    def test_ends_keep_to_a_budget(self, driver: Driver) -> None:
        driver.configure(result_ttl=HOUR)
        for _ in range(5):
            driver.ack(driver.lease("a"), results=[b'"%s"' % (b"x" * 1_000)])
            driver.wait(1)
        for budget, count in ((0, 1), (3_000, 2), (100_000, 5)):
            found = driver.ends("a", max_bytes=budget)
            assert [one.moment - START for one in found] == [4, 3, 2, 1, 0][:count]

    def test_failures_and_results_count_while_they_are_remembered(self, driver: Driver) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        driver.retry(driver.lease("a"), reason="x" * 2_000)
        assert 2_000 < driver.stored() < 3_000
        driver.ack(*driver.hold(1), results=[b'"%s"' % (b"y" * 3_000)])
        assert 5_000 < driver.stored() < 5_600
        driver.configure(history=0, result_ttl=0)
        driver.configure()
        assert driver.stored() == 0
