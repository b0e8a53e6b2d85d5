# ruff: noqa: D102  (the name of each case says what it checks)
"""Queues: cancel and purge by rule, settings, how long ended messages are kept, delete."""

from collections.abc import Callable
from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.message import EXPIRED_KEEP, FORGET, State
from bide.model.replies import Affected, Counts, Deleted, Flow, Outcome, QueueSettings, Sizes
from bide.testing.conformance.driver import HOUR, START, Driver, done, numbered

FAR = 4_500_000_000_000  # 2112
RULES: list[tuple[dict[str, Any], str]] = [
    ({"group": "g"}, "bcd"),
    ({"group": "g", "after": START + 4}, "cd"),
    ({"group": "g", "before": START + 4}, "b"),
    ({"group": "none"}, ""),
    ({"after": START + 4, "before": START + 6}, "cd"),
    ({"before": START - 8}, "a"),
    ({"after": START - 9, "before": START}, "a"),
    ({"after": FAR, "before": FAR + 1}, "f"),
    ({"after": START}, "bcdefg"),
    ({"after": 0}, "abcdefg"),
]
"""Rules, and the messages that they match."""


class QueueCases:
    """What holds for the messages of a queue together, and for its settings."""

    # By rule.

    @pytest.mark.parametrize(("where", "gone"), RULES)
    def test_a_rule_cancels_matches(self, driver: Driver, where: dict[str, Any], gone: str) -> None:
        driver.configure(keep=HOUR)
        for id, settle in (("dead", driver.bury), ("acked", driver.ack)):
            settle(driver.lease(id, group="g"))
        driver.put("a", at=START - 9, priority=3)
        lease = driver.lease("held", group="g", at=START - 9, priority=9)  # this has ranked a
        driver.put("b", group="g")
        for number, (id, group) in enumerate(zip("cde", ("g", "g", "gg"), strict=True), 4):
            driver.put(id, group=group, delay=number)
        driver.put("f", at=FAR)
        driver.put("g", at=FAR + 1)
        assert driver.cancel_where(dry_run=True, **where) == Affected(len(gone))
        assert driver.cancel_where(**where) == Affected(len(gone))
        assert {*driver.scan()} == {*"abcdefg", "held", "dead", "acked"} - {*gone}
        assert driver.ack(lease)[0]

    @pytest.mark.parametrize("where", [{"group": "g"}, {"after": 0, "before": START + HOUR}])
    def test_a_rule_cancels_a_limited_number(self, bare: Driver, where: dict[str, Any]) -> None:
        count = 2 * cmd.BULK + 1
        bare.put(*numbered(count), group="g", delay=5)
        assert bare.cancel_where(dry_run=True, **where) == Affected(count)
        assert bare.counts().sizes.delayed == count
        for number, more in ((cmd.BULK, True), (cmd.BULK, True), (1, False), (0, False)):
            assert bare.cancel_where(**where) == Affected(number, more=more)
        assert bare.counts().flow.cancelled == count

    def test_a_dry_run_forgets_nothing(self, driver: Driver) -> None:
        driver.configure(keep=5)
        driver.ack(driver.lease("a"))
        assert driver.wait(9).cancel_where(dry_run=True, after=0) == Affected(0)
        assert driver.counts().kept == 1

    @pytest.mark.parametrize("died", [None, START])
    def test_purge_takes_a_limited_number(self, bare: Driver, died: int | None) -> None:
        bare.put(*numbered(cmd.BULK + 1), delay=5, died=died)
        state: State = "delayed" if died is None else "dead"
        assert bare.purge(state) == Affected(cmd.BULK, more=True)
        assert bare.purge(state) == Affected(1)
        assert bare.counts().flow.purged == cmd.BULK + 1

    def test_many_that_are_due_are_counted_without_those_of_other_queues(
        self, bare: Driver
    ) -> None:
        bare.put(*numbered(cmd.BULK + 1))
        for queue_driver in (bare, bare.apart("other")):
            queue_driver.put("later", "last", delay=5)
        assert bare.counts().sizes == Sizes(delayed=2, ready=cmd.BULK + 1)

    def test_purge_finds_a_dead_letter_beside_many_of_another_queue(self, bare: Driver) -> None:
        bare.apart("other").put(*numbered(cmd.BULK + 1), died=START)
        bare.put("z", died=START + 1)
        assert bare.purge("dead") == Affected(1)

    @pytest.mark.parametrize("state", ["ready", "delayed"])
    def test_purge_parts_due_and_delayed_messages(self, driver: Driver, state: State) -> None:
        for delay in (0, 1, 2):
            driver.put(f"in {delay} ms", delay=delay)
        driver.wait(1)
        assert driver.purge(state, START + HOUR).count == (2 if state == "ready" else 1)
        assert driver.counts().sizes.total == (1 if state == "ready" else 2)

    # Messages that are kept.

    @pytest.mark.parametrize("keep", [0, 2 * EXPIRED_KEEP])
    def test_expired_messages_are_kept_for_a_day_or_longer(self, driver: Driver, keep: int) -> None:
        driver.configure(keep=keep)
        driver.put("a", expires=1)
        assert driver.wait(2).take() == []
        assert not driver.wait(max(keep, EXPIRED_KEEP) - 1).put("a")[0]
        assert driver.wait(1).put("a")[0]

    def test_every_change_of_a_queue_forgets_what_is_over(self, driver: Driver) -> None:
        driver.configure(keep=HOUR)
        driver.ack(driver.lease("before"))
        driver.configure(keep=5)
        changes: list[Callable[[], object]] = [
            lambda: driver.put("new"),
            lambda: driver.replace("new", data=b"2"),
            driver.claim,
            driver.cancel,
            driver.reschedule,
            driver.revive,
            driver.configure,
            driver.ack,
            driver.extend,
            driver.retry,
            driver.bury,
            lambda: driver.cancel_where(group="nobody"),
            lambda: driver.purge("dead"),
            driver.delete,
        ]
        for change in changes:
            driver.ack(driver.lease("a", priority=1))
            assert driver.wait(5).counts().kept
            change()
            assert driver.counts().kept == 0

    def test_one_command_forgets_a_limited_number(self, bare: Driver) -> None:
        bare.configure(keep=5)
        ids = numbered(FORGET + 50)
        bare.put(*ids)
        bare.ack(*bare.hold(len(ids)))
        assert done(bare.wait(5).put(ids[0], ids[-1])) == [True, False]
        assert bare.counts().kept == 50
        bare.claim(0)
        assert bare.counts().kept == 0

    # Delete.

    def test_a_deleted_queue_leaves_nothing(self, driver: Driver) -> None:
        other, row = driver.apart("other"), cmd.Origin("shop", ["1"])
        for queue_driver in (driver, other):
            queue_driver.configure(paused=True, history=HOUR, keep=5)
            queue_driver.configure(paused=False)
            for id in "bc":  # each by itself: an engine may have a shorter way for it
                queue_driver.put(id, delay=5)
            queue_driver.cancel("b", "c")
            queue_driver.put("a", group="g", priority=3, origin=row)
            queue_driver.ack(*queue_driver.hold())
        assert driver.wait(5).delete() == Deleted(True)
        assert driver.queues() == ["other"]
        assert driver.counts() == Counts(Sizes(), Flow(), recount=Sizes(), strays=0)
        assert (driver.explain().pauses, driver.ends("a")) == ([], [])
        assert driver.put("d", group="g")[0]
        assert driver.put("a", group="g", origin=row)[0]
        assert driver.configure() == QueueSettings(paused=False, keep=0)
        assert driver.take() == ["d", "a"]
        assert driver.counts().flow == Flow(put=2)
        assert other.put("a", origin=row) == [Outcome("a", False, "forwarded")]
        assert len(other.ends("a")) == 1

    def test_a_queue_has_a_plan_for_what_is_overdue(self, driver: Driver) -> None:
        assert driver.configure(overdue="spread 10m").overdue == "spread 10m"
        assert driver.configure(keep=HOUR).overdue == driver.count().overdue == "spread 10m"
        assert driver.configure(overdue="").overdue == driver.count().overdue == ""
