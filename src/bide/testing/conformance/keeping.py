# ruff: noqa: D102  (what is promised stands in the name of each case)
"""Keeping: how long acked and expired messages are remembered, and that they are forgotten."""

from collections.abc import Callable

import pytest

from bide.model.message import EXPIRED_KEEP, FORGET
from bide.model.replies import Outcome
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["KeepCases"]


class KeepCases:
    """What a queue remembers of messages that are gone."""

    def test_what_is_kept_is_remembered_with_its_id(self, desk: Desk) -> None:
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

    def test_what_was_kept_is_forgotten_in_time(self, desk: Desk) -> None:
        desk.configure(keep=HOUR)
        desk.ack(desk.lease("a"))
        desk.wait(HOUR - 1)
        desk.put("b")
        assert desk.state("a") == "acked"
        desk.wait(1)
        assert desk.put("a")[0]
        assert desk.state("a") == "ready"

    @pytest.mark.parametrize("keep", [0, 2 * EXPIRED_KEEP])
    def test_expired_ones_are_remembered_a_day_or_as_long_as_the_queue_keeps(
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

    def test_a_crowd_is_forgotten_bit_by_bit(self, bare: Desk) -> None:
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
