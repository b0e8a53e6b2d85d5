# ruff: noqa: D102  (what is promised stands in the name of each case)
"""Delete: a queue goes with its settings and counters, if nothing is in it."""

from bide.model import commands as cmd
from bide.model.message import STATES, Item
from bide.model.replies import Counts, Deleted, Forecasted, Settings, Sizes
from bide.testing.conformance.desk import HOUR, Desk, leases

__all__ = ["DeleteCases"]


class DeleteCases:
    """Which queues can be deleted, and what is left of them."""

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
        counts, forecast = replies[3:]
        assert isinstance(counts, Counts)
        assert (counts.flow.put, counts.strays) == (1, 0)
        assert counts.recount == counts.sizes == Sizes(delayed=1)
        assert isinstance(forecast, Forecasted)
        assert forecast.buckets == [1, 0]
