# ruff: noqa: D102  (the name of each case says what it checks)
"""Queues: how long they remember acked and expired messages, and how they are deleted."""

from collections.abc import Callable

import pytest

from bide.model import commands as cmd
from bide.model.message import EXPIRED_KEEP, FORGET, STATES, Item
from bide.model.replies import Counts, Deleted, Forecasted, Outcome, Settings, Sizes, expect
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["QueueCases"]


class QueueCases:
    """What a queue keeps of messages that are gone, and what is left of a deleted queue."""

    def test_a_kept_message_is_remembered_with_its_id(self, desk: Desk) -> None:
        desk.configure(keep=HOUR)
        lease = desk.lease("a")
        desk.wait(10)
        assert desk.ack(lease) == [Outcome("a", True, "acked", START, START + 10)]
        message = desk.get("a")
        assert (message.state, message.attempt, message.ended) == ("acked", 1, START + 10)
        assert (message.holder, message.until) == (None, None)
        counts = desk.counts()
        assert (counts.kept, counts.sizes.total, counts.flow.acked) == (1, 0, 1)
        assert not desk.put("a")[0]

    def test_a_kept_message_is_forgotten_in_time(self, desk: Desk) -> None:
        desk.configure(keep=HOUR)
        desk.ack(desk.lease("a"))
        desk.wait(HOUR - 1)
        desk.put("b")
        assert desk.state("a") == "acked"
        desk.wait(1)
        assert desk.put("a")[0]
        assert desk.state("a") == "ready"

    @pytest.mark.parametrize("keep", [0, 2 * EXPIRED_KEEP])
    def test_expired_messages_are_remembered_a_day_or_as_long_as_the_queue_keeps(
        self, desk: Desk, keep: int
    ) -> None:
        desk.configure(keep=keep)
        desk.bring("a", "expired")
        desk.wait(max(keep, EXPIRED_KEEP) - 1)
        assert not desk.put("a")[0]
        desk.wait(1)
        assert desk.put("a")[0]

    def test_every_change_of_a_queue_forgets_what_is_over(self, desk: Desk) -> None:
        desk.configure(keep=5)
        changes: list[Callable[[], object]] = [
            lambda: desk.put("new"),
            lambda: desk.put("new", on_conflict="replace", data=b"2"),
            desk.claim, desk.cancel, desk.reschedule, desk.revive, desk.configure,
            desk.ack, desk.extend, desk.retry, desk.bury,
            lambda: desk.cancel_where(group="nobody"),
            lambda: desk.purge("dead"), desk.delete,
        ]  # fmt: skip
        for change in changes:
            desk.ack(desk.lease("a", priority=1))
            desk.wait(5)
            assert desk.counts().kept == 1
            change()
            assert desk.counts().kept == 0

    def test_keeping_less_forgets_sooner(self, desk: Desk) -> None:
        desk.configure(keep=HOUR)
        desk.ack(desk.lease("a"))
        desk.configure(keep=5)
        desk.wait(5)
        desk.claim()
        assert desk.counts().kept == 0

    def test_one_command_forgets_a_limited_number(self, bare: Desk) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(FORGET + 50)]
        bare.put(*ids)
        bare.ack(*leases(bare.claim(len(ids))))
        bare.wait(5)
        refusals = [outcome.done for outcome in bare.put(ids[0], ids[-1])]
        assert refusals == [True, False]
        assert bare.counts().kept == 50
        bare.claim(0)
        assert bare.counts().kept == 0

    # Delete.

    def test_a_queue_with_a_message_in_it_is_not_deleted(self, desk: Desk) -> None:
        for state in STATES:
            one = desk.apart(state)
            one.bring("a", state)
            before = one.counts()
            assert one.delete() == Deleted(False, before.sizes, before.kept)
            assert before.sizes.total + before.kept == 1
            assert one.counts() == before
            assert one.state("a") == state

    def test_an_empty_queue_is_deleted_with_its_settings_and_counters(self, desk: Desk) -> None:
        desk.ask(cmd.Configure("other"), Settings)
        desk.configure(paused=True, keep=5)
        desk.put("a", priority=3)
        desk.cancel("a")
        assert desk.delete() == Deleted(True)
        assert desk.queues() == ["other"]
        assert (desk.counts().sizes, desk.counts().flow.put) == (Sizes(), 0)
        assert desk.configure() == Settings(False, 0)
        assert desk.delete() == Deleted(True)

    def test_a_deleted_queue_is_made_again_by_the_next_put(self, desk: Desk) -> None:
        desk.put("a", delay=5)
        desk.put("b", delay=5)
        desk.cancel("a", "b")
        assert desk.delete() == Deleted(True)
        desk.batch(cmd.Configure("other"))  # it does not get what is put into q
        assert desk.put("a")[0]
        assert desk.counts().flow.put == 1
        assert desk.queues() == ["other", "q"]
        assert desk.ack(*leases(desk.claim()))[0]

    def test_a_queue_is_emptied_deleted_and_made_in_one_batch(self, desk: Desk) -> None:
        desk.put("a", delay=5)
        replies = desk.batch(
            cmd.Cancel("q", ["a"]), cmd.Delete("q"), cmd.Put("q", [Item("b", b"1", delay=9)]),
            cmd.Count("q", recount=True), cmd.Forecast("q", HOUR, 2),
        )  # fmt: skip
        assert replies[1] == Deleted(True)
        counts, forecast = expect(Counts, replies[3]), expect(Forecasted, replies[4])
        assert (counts.flow.put, counts.strays) == (1, 0)
        assert counts.recount == counts.sizes == Sizes(delayed=1)
        assert forecast.buckets == [1, 0]
