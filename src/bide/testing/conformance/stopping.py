# ruff: noqa: D102  (the name of each case says what it checks)
"""Cancelling what workers hold, and what they report of their progress."""

from msgspec.structs import replace

from bide.model import commands as cmd
from bide.model.ended import STOPPED_KEEP
from bide.model.limits import BULK
from bide.model.message import Progress
from bide.model.replies import Outcome
from bide.testing.conformance.closing import close
from bide.testing.conformance.driver import HOUR, START, Driver, done, numbered


def stop(driver: Driver, id: str, *, actor: str | None = None) -> None:
    """Ask the worker of a message to stop."""
    (outcome,) = driver.cancel(id, running=True, actor=actor)
    assert (outcome.done, outcome.state, outcome.holder) == (False, "stopping", "w1")


class StopCases:
    """What `Cancel.running` and reports promise."""

    def test_a_worker_is_asked_to_stop(self, driver: Driver) -> None:
        lease = driver.lease("a")
        assert driver.cancel("a") == [driver.refusal("a")]
        assert driver.shows("a").stopping is None
        expected = replace(driver.refusal("a"), state="stopping")
        assert driver.cancel("a", running=True, actor="ann") == [expected]
        assert driver.shows("a", state="leased").stopping == "ann"
        driver.explains("a", state="leased", stopping="ann")
        assert driver.cancel("a", running=True, actor="bob") == [expected]
        assert driver.shows("a").stopping == "ann"
        (outcome,) = driver.extend(lease, lease=2_000)
        assert (outcome.done, outcome.state, outcome.until) == (True, "stopping", START + 2_000)
        assert driver.shows("a", until=START + 2_000).stopping == "ann"
        assert driver.counts().sizes.leased == 1

    def test_without_an_actor_nobody_is_named(self, driver: Driver) -> None:
        lease = driver.lease("a")
        stop(driver, "a")
        assert driver.get("a").stopping == ""
        driver.retry(lease)
        assert [end.by for end in driver.ends("a")] == [None]

    def test_what_waits_is_cancelled_at_once(self, driver: Driver) -> None:
        driver.put("a")
        driver.put("b", at=START + HOUR)
        assert done(driver.cancel("a", "b", "c", running=True)) == [True, True, False]
        assert driver.counts().flow.cancelled == 2

    def test_conditions_hold_for_what_runs_too(self, driver: Driver) -> None:
        driver.lease("a")
        assert driver.cancel("a", running=True, if_due=START + 1) == [driver.refusal("a")]
        assert driver.cancel("a", running=True, if_version="f" * 16) == [driver.refusal("a")]
        assert driver.get("a").stopping is None
        version = driver.get("a").version
        (outcome,) = driver.cancel("a", running=True, if_due=START, if_version=version)
        assert outcome.state == "stopping"

    def test_any_end_but_an_ack_counts_as_cancelled(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        ids = ["retried", "released", "buried", "ended", "lapsed"]
        retried, released, buried, _, _ = (driver.lease(id) for id in ids)
        for id in ids:
            stop(driver, id, actor="ann")
        assert done(driver.retry(retried, delay=5, reason="no")) == [True]
        assert done(driver.retry(released, release=True)) == [True]
        assert done(driver.bury(buried)) == [True]
        assert done(driver.release("ended")) == [True]
        assert driver.wait(1_000).take() == []
        for id in ids:
            assert driver.state(id) is None
            assert [(end.how, end.by, end.attempt) for end in driver.ends(id)] == [
                ("cancelled", "ann", 1)
            ]
        flow = driver.counts().flow
        assert (flow.cancelled, flow.lapsed, flow.retried, flow.died) == (5, 1, 0, 0)

    def test_an_ack_in_time_counts(self, driver: Driver) -> None:
        lease = driver.lease("a")
        stop(driver, "a")
        assert done(driver.ack(lease)) == [True]
        assert [end.how for end in driver.ends("a")] == ["acked"]
        flow = driver.counts().flow
        assert (flow.acked, flow.cancelled) == (1, 0)

    def test_after_the_lease_no_ack_counts(self, driver: Driver) -> None:
        lease = driver.lease("a", attempts=5)
        stop(driver, "a")
        assert done(driver.wait(1_000).ack(lease)) == [False]
        assert [end.how for end in driver.ends("a")] == ["cancelled"]
        assert driver.counts().flow.cancelled == 1

    def test_after_the_lease_a_cancel_is_done(self, driver: Driver) -> None:
        for id in "abcde":
            driver.lease(id)
        for id in "abcd":
            stop(driver, id)
        version = driver.get("d").version
        driver.wait(1_000)
        # The leases of a to d are over: the first command that meets such a message cancels it.
        assert driver.cancel("a", running=True) == [Outcome("a", True, due=START)]
        assert driver.cancel("b") == [Outcome("b", True, due=START)]
        outcomes = driver.cancel("c", "c", if_due=START)
        assert outcomes == [Outcome("c", True, due=START), Outcome("c", False)]
        # Who names a version means a message that is there, and this one is gone.
        assert driver.cancel("d", if_version=version) == [Outcome("d", False)]
        assert done(driver.cancel("a", "b", "c", "d", running=True)) == [False] * 4
        # Nobody has asked for e to stop: it is ready again, and is cancelled as such.
        assert driver.cancel("e", running=True) == [Outcome("e", True, due=START)]
        flow = driver.counts().flow
        assert (flow.cancelled, flow.lapsed) == (5, 5)

    def test_after_the_lease_a_cancel_of_another_time_is_not_done(self, driver: Driver) -> None:
        driver.lease("a")
        stop(driver, "a")
        driver.wait(1_000)
        assert driver.cancel("a", running=True, if_due=START + 1) == [Outcome("a", False)]
        assert driver.state("a") is None
        assert driver.counts().flow.cancelled == 1

    def test_after_the_lease_nothing_but_a_cancel_is_done(self, driver: Driver) -> None:
        for id in "abcd":
            driver.lease(id)
            stop(driver, id)
        driver.wait(1_000)
        assert done(driver.reschedule("a", delay=5)) == [False]
        assert done(driver.release("b")) == [False]
        assert done(driver.revive("c")) == [False]
        assert done(driver.set_aside("d")) == [False]
        assert [driver.state(id) for id in "abcd"] == [None] * 4

    def test_after_the_lease_its_id_is_free(self, driver: Driver) -> None:
        driver.lease("a")
        stop(driver, "a")
        driver.wait(1_000)
        assert done(driver.put("a", on_conflict="revive")) == [False]
        driver.lease("b")
        stop(driver, "b")
        driver.wait(1_000)
        assert done(driver.put("b", data=b"2")) == [True]
        assert driver.shows("b", state="ready", data=b"2").stopping is None
        assert driver.counts().flow.cancelled == 2

    def test_another_claim_of_the_id_is_not_stopped(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.retry(lease)
        (again,) = driver.hold()
        stop(driver, "a")
        assert done(driver.extend(lease)) == [False]
        assert [outcome.state for outcome in driver.extend(again)] == ["stopping"]

    def test_every_queue_remembers_for_a_while_how_it_ended(self, driver: Driver) -> None:
        a, b, c = (driver.lease(id) for id in "abc")
        for id in "ab":
            stop(driver, id, actor="ann")
        driver.ack(a, b, c)
        assert [[end.how for end in driver.ends(id)] for id in "abc"] == [["acked"], ["acked"], []]
        driver.wait(STOPPED_KEEP)
        assert [driver.ends(id) for id in "abc"] == [[], [], []]
        driver.configure()
        assert driver.stored() == 0

    def test_a_successor_is_removed(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.replace("a", data=b"2", latest=HOUR)
        stop(driver, "a")
        assert driver.get("a").successor is None
        driver.retry(lease)
        assert driver.state("a") is None

    def test_a_successor_of_what_is_stopping_takes_its_place(self, driver: Driver) -> None:
        lease = driver.lease("a")
        stop(driver, "a")
        driver.replace("a", data=b"2", delay=5, latest=HOUR)
        driver.bury(lease)
        assert driver.shows("a", state="delayed", data=b"2").stopping is None
        flow = driver.counts().flow
        assert (flow.put, flow.cancelled, flow.died) == (2, 1, 0)

    def test_by_a_rule(self, driver: Driver) -> None:
        driver.put("a", "b", group="g")
        driver.put("c", group="h")
        assert driver.take() == ["a", "b", "c"]
        driver.put("d", group="g", at=START + 1)
        driver.put("e")
        assert driver.cancel_where(group="g", dry_run=True, running=True).count == 3
        assert driver.cancel_where(group="g", dry_run=True).count == 1
        reply = driver.cancel_where(group="g", running=True)
        assert (reply.count, sorted(reply.stopping), reply.more) == (1, ["a", "b"], False)
        assert driver.cancel_where(group="g", running=True).stopping == []
        assert driver.cancel_where(group="g", dry_run=True, running=True).count == 0
        assert driver.get("c").stopping is None
        assert driver.cancel_where(after=START, before=START + 1, running=True).stopping == ["c"]

    def test_by_a_rule_what_has_lapsed_is_cancelled(self, driver: Driver) -> None:
        driver.lease("a", group="g")
        driver.wait(1_000)
        reply = driver.cancel_where(group="g", running=True)
        assert (reply.count, reply.stopping) == (1, [])
        assert driver.state("a") is None

    def test_by_a_rule_what_has_lapsed_in_a_closed_group_has_ended(self, driver: Driver) -> None:
        driver.lease("a", group="g")
        close(driver, "g")
        driver.wait(1_000)
        reply = driver.cancel_where(group="g", running=True)
        assert (reply.count, reply.stopping) == (0, [])
        assert driver.state("a") is None
        assert driver.counts().flow.cancelled == 1

    def test_by_a_rule_many(self, bare: Driver) -> None:
        bare.put(*numbered(BULK + 5), group="g")
        assert len(bare.take(BULK + 5)) == BULK + 5
        first = bare.cancel_where(group="g", running=True)
        assert (len(first.stopping), first.count, first.more) == (BULK, 0, True)
        last = bare.cancel_where(group="g", running=True)
        assert (len(last.stopping), last.count, last.more) == (5, 0, False)

    def test_in_a_limited_queue_its_place_is_free_again(self, driver: Driver) -> None:
        driver.configure(limit=1)
        lease = driver.lease("a")
        driver.put("b")
        stop(driver, "a")
        assert driver.take() == []
        driver.retry(lease)
        assert driver.take() == ["b"]

    # Reports.

    def test_a_worker_reports_how_far_it_has_come(self, driver: Driver) -> None:
        lease = driver.lease("a")
        until = driver.get("a").until
        assert driver.get("a").progress is None
        assert done(driver.wait(5).report(lease, done=40)) == [True]
        first = Progress(40, 100, "rows", START + 5)
        assert driver.shows("a", state="leased", until=until).progress == first
        driver.explains("a", progress=first, extended=0)
        assert done(driver.wait(5).report(lease, lease=2_000, done=50)) == [True]
        driver.shows("a", progress=replace(first, done=50, moment=START + 10), until=START + 2_010)
        driver.extend(lease)
        assert driver.shows("a").progress == replace(first, done=50, moment=START + 10)
        assert [message.progress for message in driver.messages("leased")] == [
            replace(first, done=50, moment=START + 10)
        ]
        driver.explains("a", extended=2)

    def test_a_report_ends_with_its_lease(self, driver: Driver) -> None:
        lease = driver.lease("a")
        driver.report(lease, done=40)
        driver.retry(lease)
        assert driver.get("a").progress is None
        (lease,) = driver.hold()
        assert driver.get("a").progress is None
        driver.report(lease, done=40)
        assert driver.wait(1_000).take() == ["a"]
        assert driver.get("a").progress is None
        assert done(driver.report(lease, done=50)) == [False]

    def test_a_report_tells_the_worker_to_stop(self, driver: Driver) -> None:
        lease = driver.lease("a")
        stop(driver, "a")
        assert [outcome.state for outcome in driver.report(lease, done=40)] == ["stopping"]
        assert driver.get("a").stopping == ""

    def test_reports_of_several(self, driver: Driver) -> None:
        a, b = (driver.lease(id) for id in "ab")
        reports = [None, Progress(1)]
        driver.outcomes(cmd.Extend(driver.queue, [a, b], None, reports))
        assert driver.get("a").progress is None
        assert driver.get("b").progress == Progress(1, moment=START)
