# ruff: noqa: D102  (the name of each case says what it checks)
"""Closed groups: what is put into them is refused, and what would wait in them is cancelled."""

import pytest

from bide.model import commands as cmd
from bide.model.message import IN_TRANSIT, Item
from bide.model.replies import ClosedGroup, GroupsClosed, Outcome
from bide.testing.conformance.driver import HOUR, START, Driver, done, numbered

DAY = 24 * HOUR


def close(driver: Driver, group: str, keep: int = DAY) -> ClosedGroup:
    """Close a group."""
    (closed,) = driver.ask(cmd.CloseGroup(driver.queue, group, keep), GroupsClosed).groups
    return closed


def reopen(driver: Driver, group: str) -> list[ClosedGroup]:
    """Open a group."""
    return driver.ask(cmd.ReopenGroup(driver.queue, group), GroupsClosed).groups


def listed(driver: Driver, **fields: object) -> GroupsClosed:
    """List closed groups."""
    command: cmd.ClosedGroups = cmd.ClosedGroups(driver.queue, **fields)  # type: ignore[arg-type]
    return driver.ask(command, GroupsClosed)


def refused(driver: Driver, id: str, keep: int = DAY) -> Outcome:
    """Return the outcome for a message whose group was closed just now."""
    return Outcome(id, False, "closed", until=driver.now + keep)


class ClosingCases:
    """Closed groups."""

    def test_a_put_into_a_closed_group_is_refused(self, driver: Driver) -> None:
        assert close(driver, "g") == ClosedGroup(START + DAY, "g")
        assert driver.put("a", group="g") == [refused(driver, "a")]
        assert done(driver.put("b", group="g2")) == [True]
        assert done(driver.put("c")) == [True]
        assert driver.counts().flow.put == 2

    def test_an_id_can_be_put_twice_into_different_groups(self, driver: Driver) -> None:
        close(driver, "g")
        items = [
            Item("a", b"1", group="g"),
            Item("a", b"2", group="g2"),
            Item("b", b"3", group="g"),
        ]
        assert driver.put_items(items) == [
            refused(driver, "a"),
            Outcome("a", True, "ready", driver.now),
            refused(driver, "b"),
        ]
        assert driver.get("a").data == b"2"

    def test_a_group_can_be_closed_before_the_first_put(self, driver: Driver) -> None:
        close(driver, "g")
        assert driver.queues() == [driver.queue]
        assert driver.put("a", delay=1_000, group="g") == [refused(driver, "a")]
        assert driver.counts().sizes.total == 0

    def test_a_message_that_is_there_is_kept_without_a_refusal(self, driver: Driver) -> None:
        held = driver.lease("a", group="g")
        close(driver, "g")
        assert driver.put("a", group="g") == [driver.refusal("a")]
        assert done(driver.ack(held)) == [True]

    def test_a_replacement_in_a_closed_group_is_refused(self, driver: Driver) -> None:
        driver.put("a", delay=HOUR, group="g2")
        close(driver, "g")
        assert driver.replace("a", group="g") == [refused(driver, "a")]
        assert driver.get("a").group == "g2"
        held = driver.lease("b", group="g2")
        assert driver.replace("b", delay=5, latest=10, group="g") == [refused(driver, "b")]
        assert done(driver.ack(held)) == [True]
        assert driver.state("b") is None

    def test_a_successor_of_a_closed_group_is_removed_with_the_lease(self, driver: Driver) -> None:
        for id in ("acked", "retried", "buried", "lapsed"):
            driver.put(id, group="g2")
        leases = {lease.id: lease for lease in driver.hold(lease=100)}
        driver.replace(*leases, delay=5, latest=10, group="g")
        close(driver, "g")
        assert done(driver.ack(leases["acked"])) == [True]
        assert driver.retry(leases["retried"]) == [Outcome("retried", True)]
        assert done(driver.bury(leases["buried"])) == [True]
        driver.wait(200)
        assert driver.take() == []
        assert [driver.state(id) for id in leases] == [None, None, "dead", None]
        assert driver.counts().flow.cancelled == 2

    def test_a_successor_of_another_group_follows(self, driver: Driver) -> None:
        held = driver.lease("a", group="g")
        driver.replace("a", delay=5, latest=10, group="g2")
        close(driver, "g")
        assert driver.retry(held)[0].state == "delayed"
        assert driver.get("a").group == "g2"

    @pytest.mark.parametrize("release", [False, True])
    def test_a_retry_into_a_closed_group_ends_as_cancelled(
        self, driver: Driver, release: bool
    ) -> None:
        driver.configure(history=HOUR)
        first, second = driver.lease("a", group="g"), driver.lease("b", group="g")
        close(driver, "g")
        assert driver.retry(first, release=release) == [Outcome("a", True)]
        assert driver.retry(second, delay=5, reason="no", release=release) == [Outcome("b", True)]
        assert [driver.state("a"), driver.state("b")] == [None, None]
        flow = driver.counts().flow
        assert (flow.cancelled, flow.retried) == (2, 0)
        (end,) = driver.ends("b")
        assert (end.how, end.by, end.failures[-1].reason) == ("cancelled", None, "no")

    def test_an_ack_and_a_dead_letter_are_as_ever(self, driver: Driver) -> None:
        acked, last, buried = (driver.lease(id, group="g", attempts=1) for id in "abc")
        close(driver, "g")
        assert done(driver.ack(acked)) == [True]
        assert driver.retry(last)[0].state == "dead"
        assert driver.bury(buried)[0].state == "dead"
        assert driver.counts().sizes.dead == 2

    def test_a_lapse_and_the_end_of_a_lease_end_as_cancelled(self, driver: Driver) -> None:
        driver.lease("a", group="g")
        driver.lease("b", group="g")
        close(driver, "g")
        assert driver.release("a") == [Outcome("a", True)]
        driver.wait(2_000)
        assert driver.take() == []
        assert driver.state("b") is None
        flow = driver.counts().flow
        assert (flow.cancelled, flow.lapsed, flow.retried) == (2, 1, 0)

    def test_a_revive_ends_as_cancelled(self, driver: Driver) -> None:
        driver.bury(driver.lease("a", group="g"))
        close(driver, "g")
        assert driver.revive("a") == [refused(driver, "a")]
        assert driver.state("a") is None
        assert (driver.counts().flow.cancelled, driver.counts().flow.revived) == (1, 0)
        assert driver.ends("a") == []

    def test_an_edit_or_a_reschedule_ends_as_cancelled(self, driver: Driver) -> None:
        driver.put("a", "b", delay=HOUR, group="g2")
        driver.put("c", delay=HOUR, group="g")
        close(driver, "g")
        assert driver.edit("a", group="g") == [refused(driver, "a")]
        assert done(driver.edit("b", group="g3")) == [True]
        assert driver.reschedule("c", delay=5) == [refused(driver, "c")]
        assert [driver.state(id) for id in "abc"] == [None, "delayed", None]

    def test_an_import_of_a_dead_letter_is_stored(self, driver: Driver) -> None:
        close(driver, "g")
        assert done(driver.put("a", group="g", died=START)) == [True]
        assert driver.edit("a", priority=1)[0].state == "dead"

    def test_a_message_that_arrives_by_a_move_ends_as_cancelled(self, driver: Driver) -> None:
        driver.put("a", delay=HOUR, group="g")
        close(driver, "g")
        # In the target of a move, a message is a dead letter with this mark until the last step,
        # a put that revives it.
        assert driver.set_aside("a", reason=f"{IN_TRANSIT}move x")[0].state == "dead"
        assert driver.put("a", on_conflict="revive", group="g") == [refused(driver, "a")]
        assert driver.state("a") is None
        flow = driver.counts().flow
        assert (flow.cancelled, flow.revived) == (1, 0)

    def test_a_claim_delivers_nothing_of_a_closed_group(self, driver: Driver) -> None:
        driver.put(*numbered(5), group="g")
        driver.put("late", group="g", expires=0)
        driver.put("b", group="g2")
        driver.wait(1)
        close(driver, "g")
        assert driver.take() == ["b"]
        counts = driver.counts()
        assert (counts.flow.cancelled, counts.flow.expired) == (6, 0)
        assert counts.sizes.total == 1

    def test_a_claim_of_a_limited_queue_delivers_nothing_of_a_closed_group(
        self, driver: Driver
    ) -> None:
        driver.configure(group_limit=1)
        driver.put("a", "b", group="g")
        driver.put("c", group="g2")
        driver.put("d", group="g", delay=5)
        close(driver, "g")
        assert driver.take() == ["c"]
        driver.wait(10)
        assert driver.take() == []
        assert driver.counts().flow.cancelled == 3

    def test_a_cancel_of_the_group_removes_what_waits(self, driver: Driver) -> None:
        driver.put("a", group="g", delay=HOUR)
        held = driver.lease("b", group="g")
        close(driver, "g")
        affected = driver.cancel_where(group="g", running=True)
        assert (affected.count, affected.stopping) == (1, ["b"])
        assert done(driver.retry(held)) == [True]
        assert driver.counts().sizes.total == 0

    def test_a_cancel_that_finds_the_end_of_a_lease_counts_once(self, driver: Driver) -> None:
        driver.lease("a", group="g")
        close(driver, "g")
        driver.wait(2_000)
        driver.cancel_where(group="g", running=True)
        assert driver.counts().flow.cancelled == 1
        assert driver.state("a") is None

    def test_a_revive_that_finds_the_end_of_a_lease_is_about_its_own_group(
        self, driver: Driver
    ) -> None:
        driver.lease("a", group="g2", attempts=1)
        driver.replace("a", delay=5, latest=10, group="g")
        close(driver, "g")
        driver.wait(2_000)
        assert done(driver.revive("a")) == [True]
        assert driver.take() == ["a"]

    def test_a_group_opens_by_itself(self, driver: Driver) -> None:
        close(driver, "g", keep=10)
        driver.wait(9)
        assert done(driver.put("a", group="g")) == [False]
        assert driver.count().closed == 1
        driver.wait(1)
        assert done(driver.put("a", group="g")) == [True]
        assert driver.count().closed == 0
        assert listed(driver).groups == []
        assert reopen(driver, "g") == []

    def test_the_later_of_two_times_holds(self, driver: Driver) -> None:
        close(driver, "g", keep=100)
        assert close(driver, "g", keep=10).until == START + 100
        assert close(driver, "g", keep=200).until == START + 200
        assert listed(driver).groups == [ClosedGroup(START + 200, "g")]

    def test_a_group_can_be_opened(self, driver: Driver) -> None:
        closed = close(driver, "g")
        assert reopen(driver, "g2") == []
        assert reopen(driver, "g") == [closed]
        assert reopen(driver, "g") == []
        assert done(driver.put("a", group="g")) == [True]
        assert driver.take() == ["a"]

    def test_closed_groups_are_listed_in_the_order_in_which_they_open(self, driver: Driver) -> None:
        groups = ["b", "a", "é", "a/1"]
        for group in groups:
            close(driver, group, keep=50)
        close(driver, "first", keep=20)
        close(driver.apart("q2"), "other")
        expected = [ClosedGroup(START + 20, "first")]
        expected += [ClosedGroup(START + 50, group) for group in sorted(groups)]
        assert listed(driver).groups == expected
        page = listed(driver, limit=2)
        assert (page.groups, page.more) == (expected[:2], True)
        rest = listed(driver, limit=3, after=page.groups[-1])
        assert (rest.groups, rest.more) == (expected[2:], False)
        assert driver.count().closed == 5
        driver.wait(20)
        assert listed(driver).groups == expected[1:]

    def test_groups_are_closed_for_one_queue(self, driver: Driver) -> None:
        close(driver, "g")
        assert done(driver.apart("q2").put("a", group="g")) == [True]
        assert listed(driver.apart("q3")).groups == []

    def test_a_deleted_queue_forgets_its_closed_groups(self, driver: Driver) -> None:
        other = driver.apart("other")
        close(driver, "g")
        close(other, "g")
        assert driver.delete().done
        assert done(driver.put("a", group="g")) == [True]
        assert [closed.group for closed in listed(other).groups] == ["g"]

    def test_marks_that_are_over_are_deleted(self, driver: Driver) -> None:
        for number in range(5):
            close(driver, f"g{number}", keep=5)
        driver.wait(5)
        driver.put("a")
        assert driver.counts().closed == 0
        assert done(driver.put("b", group="g1")) == [True]

    def test_a_batch_closes_between_two_puts(self, driver: Driver) -> None:
        first, closed, second = driver.batch(
            cmd.Put(driver.queue, [Item("a", b"1", group="g")]),
            cmd.CloseGroup(driver.queue, "g", 100),
            cmd.Put(driver.queue, [Item("b", b"1", group="g")]),
        )
        assert first.outcomes[0].done  # type: ignore[union-attr]
        assert closed == GroupsClosed([ClosedGroup(START + 100, "g")])
        assert second.outcomes == [refused(driver, "b", 100)]  # type: ignore[union-attr]
