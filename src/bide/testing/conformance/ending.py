# ruff: noqa: D102  (the name of each case says what it checks)
"""History and results: what a queue remembers of messages that have ended."""

import pytest

from bide.model import commands as cmd
from bide.model.ended import KEPT_ENDS, STOPPED_KEEP
from bide.model.message import FORGET, IN_TRANSIT, Failure
from bide.model.replies import Ends
from bide.testing.conformance.driver import HOUR, START, Driver, numbered


class EndCases:
    """What `history` and `result_ttl` promise."""

    forgotten_at_once = FORGET
    """About how many ends one change forgets at most: of several shards, so many of each."""

    def test_ids_of_remembered_messages_are_free(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for number in range(KEPT_ENDS + 2):
            driver.put("a", at=START + number)
            driver.cancel("a", actor=f"u{number}")
            driver.wait(1)
        ends = driver.ends("a")
        assert [end.by for end in ends] == [f"u{n}" for n in range(KEPT_ENDS + 1, 1, -1)]
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
        driver.configure(history=0)
        driver.wait(STOPPED_KEEP).configure()  # a queue without history keeps some ends so long
        for history in (0, HOUR):
            driver.configure(history=history)
            assert driver.ends("c") == []
        assert driver.stored() == 0

    def test_a_longer_history_brings_no_forgotten_end_back(self, driver: Driver) -> None:
        driver.configure(history=50)
        for step in (0, 40):
            driver.wait(step).put("a")
            driver.cancel("a")
        driver.wait(20).configure(history=HOUR)
        assert [end.moment for end in driver.ends("a")] == [START + 40]

    def test_the_shortest_history_has_every_kind_of_end(self, driver: Driver) -> None:
        driver.configure(history=1)
        a, b = (driver.lease(id) for id in "ab")
        driver.put("c", expires=0)
        driver.wait(1).claim()
        driver.put("d")
        driver.cancel_where(group=None)
        driver.ack(a)
        driver.bury(b)
        ends = ["acked", "dead", "expired", "cancelled"]
        assert [end.how for id in "abcd" for end in driver.ends(id)] == ends
        driver.wait(1)
        assert [driver.ends(id) for id in "abcd"] == [[]] * 4

    def test_it_is_forgotten_in_bounded_steps(self, bare: Driver) -> None:
        bare.configure(history=1)
        ids = numbered(3 * FORGET)
        bare.put(*ids)
        bare.cancel(*ids)
        left = bare.stored()
        bare.wait(1).configure()
        assert 0 < bare.stored() < left or len(ids) < self.forgotten_at_once
        while left := bare.stored():
            bare.configure()
            assert bare.stored() < left

    def test_a_purge_of_what_has_ended_is_no_other_end(self, driver: Driver) -> None:
        driver.configure(keep=HOUR, history=HOUR)
        driver.ack(driver.lease("a"))
        driver.put("b", expires=0)
        driver.wait(1).claim()
        driver.purge("acked")
        driver.purge("expired")
        assert [end.how for id in "ab" for end in driver.ends(id)] == ["acked", "expired"]

    def test_what_another_store_has_now_counts_as_moved(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.put("a", "b")
        driver.set_aside("a", "b")
        purge = cmd.Purge(driver.queue, "dead", ids=["a"], moved=True, actor="ann")
        assert all(driver.outcomes(purge))
        assert all(driver.outcomes(cmd.Purge(driver.queue, "dead", ids=["b"])))
        assert [driver.ends(id)[0].how for id in "ab"] == ["moved", "purged"]
        assert driver.ends("a")[0].by == "ann"
        assert [each.id for each in driver.ended(how="moved")] == ["a"]
        flow = driver.counts().flow
        assert (flow.put, flow.moved, flow.purged, flow.gone) == (2, 1, 1, 2)

    @pytest.mark.parametrize("rest", ["", ' "x"', "\\", '\\"]]'])
    def test_what_a_move_has_under_way_has_not_ended(self, driver: Driver, rest: str) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        mark = f"{IN_TRANSIT}move x{rest}"
        driver.put("a")
        driver.set_aside("a", reason=mark)  # as in the source, and as in the target:
        driver.put("b", died=START, failures=(Failure(0, START, "", mark),))
        assert [driver.history(id) for id in "ab"] == [Ends("delayed", [])] * 2
        assert {message.id for message in driver.page("dead").messages} == {"a", "b"}
        assert [driver.revive(id)[0].done for id in "ab"] == [True, True]
        assert driver.history("a") == Ends("ready", [])

    @pytest.mark.parametrize("before", ["not ", 'x "', '", "', '\\"'])
    def test_what_was_in_transit_says_so_first(self, driver: Driver, before: str) -> None:
        driver.configure(history=HOUR)
        driver.put("a")
        driver.set_aside("a", reason=f"{before}{IN_TRANSIT}move x")
        assert driver.history("a").state == "dead"

    def test_only_dead_letters_can_have_been_moved(self, driver: Driver) -> None:
        driver.put("a")
        assert not driver.outcomes(cmd.Purge(driver.queue, "dead", ids=["a"], moved=True))[0]
        assert (driver.counts().flow.moved, driver.counts().sizes.ready) == (0, 1)

    def test_a_queue_without_result_ttl_keeps_no_results(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.ack(driver.lease("a"), results=[b"1"])
        driver.configure(result_ttl=HOUR)
        assert [end.result for end in driver.ends("a")] == [None]

    def test_a_claim_tells_whether_the_queue_keeps_results(self, driver: Driver) -> None:
        driver.put("a", "b", "c")
        for setting, keeps in (
            ({"history": 1}, False),
            ({"result_ttl": 1}, True),
            ({"result_ttl": 0}, False),
        ):
            driver.configure(**setting)
            assert driver.claim(1).results == keeps

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
            ends = driver.ends("a", max_bytes=budget)
            assert [end.moment - START for end in ends] == [4, 3, 2, 1, 0][:count]

    def test_failures_and_results_count_while_they_are_remembered(self, driver: Driver) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        driver.retry(driver.lease("a"), reason="x" * 2_000)
        assert 2_000 < driver.stored() < 3_000
        driver.ack(*driver.hold(1), results=[b'"%s"' % (b"y" * 3_000)])
        assert 5_000 < driver.stored() < 5_600
        driver.configure(history=0, result_ttl=0)
        driver.wait(STOPPED_KEEP).configure()
        assert driver.stored() == 0
