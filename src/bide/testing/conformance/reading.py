# ruff: noqa: D102  (the name of each case says what it checks)
"""Find, scan, count, forecast, queues: the commands that only read."""

import pytest

from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.message import STATES, State
from bide.model.replies import Counts, Flow, Forecasted, Page, Sizes
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases

__all__ = ["ReadCases"]


def furnish(desk: Desk) -> None:
    """Put three messages in each state, named by it, some ready ones weighed already."""
    desk.configure(keep=HOUR)
    desk.put("expired1", "expired2", "expired3", expires=0, at=START - 9)
    desk.put("acked1", "acked2", "acked3", at=START - 8)
    desk.ack(*leases(desk.claim(3)))
    desk.put("dead1", "dead2", "dead3", at=START - 7)
    desk.bury(*leases(desk.claim(3)))
    desk.put("leased1", "leased2", "leased3", at=START - 6)
    desk.claim(3)
    desk.put("ready1", "ready2", at=START - 5)
    desk.put("heavy", priority=9)
    assert desk.take(1) == ["heavy"]
    desk.cancel("heavy")
    desk.put("ready3")
    desk.put("delayed1", "delayed2", "delayed3", delay=HOUR, group="g")


class ReadCases:
    """What these commands promise."""

    # Find.

    def test_a_scan_by_the_beginning_of_ids(self, desk: Desk) -> None:
        ids = ["a", "a-1", "a-2", "a.", "b", "A", "a%"]
        ids += ["\ud7ffx", "\ue000", "\U0010ffff", "é", "éa"]
        desk.put(*ids, delay=5)
        desk.bring("a-3", "dead")
        ids.append("a-3")
        for prefix in ("a", "a-", "a-1", "a%", "\ud7ff", "\U0010ffff", "é", "z", ""):
            for limit in (2, 500):
                pages = desk.pages(prefix=prefix, limit=limit)
                found = [id for page in pages for id in ids_of(page)]
                assert sorted(found) == sorted(id for id in ids if id.startswith(prefix))

    def test_find_answers_in_the_order_of_the_ids(self, desk: Desk) -> None:
        desk.put("a", "b")
        found = desk.find("b", "x", "a", "b")
        assert [m and m.id for m in found] == ["b", None, "a", "b"]
        assert desk.find() == []

    def test_a_message_is_ready_at_its_due_time_without_a_command(self, desk: Desk) -> None:
        desk.put("a", delay=5)
        desk.wait(4)
        assert desk.state("a") == "delayed"
        assert (desk.scan("delayed"), desk.scan("ready")) == (["a"], [])
        desk.wait(1)
        assert desk.state("a") == "ready"
        assert (desk.scan("delayed"), desk.scan("ready")) == ([], ["a"])

    # Scan.

    def test_a_scan_of_a_state_finds_it_whole_in_order(self, desk: Desk) -> None:
        furnish(desk)
        for state in STATES:
            expected = [f"{state}{number}" for number in (1, 2, 3)]
            for limit in (1, 2, 3, 4, 100):  # the heavy one is still held
                assert [id for id in desk.scan(state, limit) if id != "heavy"] == expected
        everything = [f"{state}{number}" for state in STATES for number in (1, 2, 3)]
        for limit in (1, 5, 18, 19, 20):
            assert sorted(desk.scan(None, limit)) == sorted([*everything, "heavy"])
        following = [f"ready{n}" for n in (1, 2, 3)] + [f"delayed{n}" for n in (1, 2, 3)]
        for limit in (1, 2, 3, 7):
            assert desk.scan("next", limit) == following

    def test_a_scan_keeps_the_order_of_each_state(self, desk: Desk) -> None:
        desk.put("later", delay=9)
        desk.put("light", delay=5)
        desk.put("heavy", delay=5, priority=1)
        assert desk.scan("delayed") == desk.scan("next") == ["heavy", "light", "later"]
        desk.wait(9)
        desk.put("top", priority=255)
        assert desk.take(1) == ["top"]
        assert desk.scan("ready") == ["heavy", "light", "later"]
        claimed = leases(desk.claim())
        desk.extend(claimed[0], lease=9_000)
        assert desk.scan("leased") == ["later", "light", "top", "heavy"]
        desk.bury(claimed[2])
        desk.wait(1)
        desk.bury(claimed[0])
        assert desk.scan("dead") == ["later", "heavy"]

    def test_scans_by_group_find_the_group(self, desk: Desk) -> None:
        desk.put("z", "a", group="g", delay=7)
        desk.put("x", group="h")
        desk.put("k", group="g")
        assert set(desk.scan(group="g")) == set(desk.scan(limit=1, group="g")) == {"z", "a", "k"}
        assert desk.scan("delayed", group="g") == ["z", "a"]
        assert desk.scan("next", group="g") == ["k", "z", "a"]
        assert desk.scan(group="nobody") == []
        assert desk.scan(group="g", after=START + 1) == ["z", "a"]
        assert desk.scan(group="g", after=START, before=START + 7) == ["k"]

    @pytest.mark.parametrize("state", ["delayed", "next"])
    def test_scans_by_due_take_from_after_until_before_in_rank_order(
        self, desk: Desk, state: State
    ) -> None:
        for number in (5, 2, 6, 3, 1, 4):
            desk.put(f"m{number}", delay=number)
        assert desk.scan(state, after=START + 2, before=START + 4) == ["m2", "m3"]
        assert desk.scan(state, 1, after=START + 5) == ["m5", "m6"]
        assert desk.scan(state, before=START + 1) == []

    def test_a_scan_of_all_by_due_finds_every_state(self, desk: Desk) -> None:
        desk.put("later", delay=9)
        for number in (1, 2, 3, 4):
            desk.put(f"m{number}", at=START - number)
        held = leases(desk.claim(2))
        desk.bury(held[0])
        assert set(desk.scan(after=START - 4, before=START - 1)) == {"m2", "m3", "m4"}
        assert set(desk.scan(limit=1, before=START)) == {"m1", "m2", "m3", "m4"}
        assert desk.scan(after=START) == ["later"]

    def test_a_scan_of_ready_by_due(self, desk: Desk) -> None:
        for number in (3, 2, 1):
            desk.put(f"m{number}", at=START - number)
        assert desk.scan("ready", after=START - 2) == ["m2", "m1"]
        assert desk.scan("ready", before=START - 2) == ["m3"]

    def test_a_scan_yields_each_message_once_while_others_come_and_go(self, desk: Desk) -> None:
        desk.put(*(f"m{number}" for number in range(9)), delay=5)
        first = desk.page(limit=4)
        names = {message.id for message in first.messages}
        rest = [f"m{number}" for number in range(9) if f"m{number}" not in names]
        desk.cancel(*sorted(names)[:2])
        desk.reschedule(rest[0], sorted(names)[2], delay=0)
        desk.take(1)
        second = desk.page(cursor=first.cursor, limit=100)
        assert sorted(message.id for message in second.messages) == rest
        assert second.cursor is None

    def test_a_cursor_stays_valid_though_its_message_is_gone(self, desk: Desk) -> None:
        desk.put("a", "b", "c", "d", delay=5)
        page = desk.page("delayed", limit=2)
        desk.cancel("b", "c")
        (last,) = desk.page("delayed", page.cursor).messages
        assert last.id == "d"

    def test_a_full_last_page_may_be_followed_by_an_empty_one_only(self, desk: Desk) -> None:
        desk.put("a", "b", delay=5)
        page = desk.page("delayed", limit=2)
        assert len(page.messages) == 2
        if page.cursor is not None:
            assert desk.page("delayed", page.cursor, limit=2) == Page([], None)

    def test_an_invalid_cursor_is_refused(self, desk: Desk) -> None:
        desk.put("a")
        for state in (None, "ready", "next", "dead"):
            for cursor in ("", "nonsense", "1.2", "0.-1.3", "0.1.2.3"):
                with pytest.raises(InvalidArgument, match="cursor"):
                    desk.page(state, cursor)

    # Count.

    def test_counts_tell_what_is_where(self, desk: Desk) -> None:
        furnish(desk)
        counts = desk.counts()
        assert counts.sizes == Sizes(delayed=3, ready=3, leased=4, dead=3)
        assert counts.flow == Flow(put=19, acked=3, expired=3, died=3)
        assert (counts.kept, counts.keep, counts.paused) == (6, HOUR, False)

    def test_counts_without_a_recount_are_the_same(self, desk: Desk) -> None:
        furnish(desk)
        counts = desk.ask(cmd.Count("q"), Counts)
        assert (counts.recount, counts.strays) == (None, None)
        audited = desk.counts()
        assert (counts.sizes, counts.flow, counts.oldest) == (
            audited.sizes, audited.flow, audited.oldest,
        )  # fmt: skip

    def test_stored_bytes_are_those_of_all_messages(self, desk: Desk) -> None:
        def stored() -> int:
            return desk.ask(cmd.Count("q", stored=True), Counts).stored or 0

        assert stored() == 0
        furnish(desk)
        before = stored()
        assert 0 < before <= 19 * 400  # a few bytes each, and up to 200 more
        text = "é" * 50  # two bytes each, wherever it stands
        desk.put(text, text * 2, data=b"x" * 1_000, json=False, headers={"h": text}, group=text)
        least = 2 * (1_000 + 100 + len('{"h":""}') + 100) + 300
        assert least <= stored() - before <= least + 2 * 200
        desk.cancel(text, text * 2)
        assert stored() == before
        assert desk.counts().stored is None

    def test_stored_bytes_of_a_queue_that_is_not_there(self, desk: Desk) -> None:
        assert desk.ask(cmd.Count("q", stored=True), Counts) == Counts(Sizes(), Flow(), stored=0)

    def test_oldest_is_the_earliest_due_time_of_ready_messages(self, desk: Desk) -> None:
        assert desk.counts().oldest is None
        desk.put("later", delay=5)
        assert desk.counts().oldest is None
        desk.put("a", at=START - 5, priority=3)
        desk.put("b", at=START - 9)
        assert desk.counts().oldest == START - 9
        desk.put("heavy", priority=9)
        assert desk.take(1) == ["heavy"]  # now the others are weighed
        assert desk.counts().oldest == START - 9
        desk.cancel("b")
        assert desk.counts().oldest == START - 5
        desk.put("c", at=START - 7)
        assert desk.counts().oldest == START - 7

    def test_a_lapsed_lease_counts_as_leased_until_a_command_meets_it(self, desk: Desk) -> None:
        desk.lease("a")
        desk.wait(1_000)
        assert desk.counts().sizes.leased == 1
        desk.claim(0)
        assert desk.counts().sizes.leased == 0

    # Forecast.

    def test_a_forecast_counts_by_buckets_that_end_at_their_edge(self, desk: Desk) -> None:
        for number, delay in enumerate((0, 1, 10, 11, 20, 30, 31)):
            desk.put(f"m{number}", delay=delay)
        assert desk.forecast(10, 3) == Forecasted(START, 1, [2, 2, 1], 1)

    def test_a_forecast_counts_what_is_due_as_overdue(self, desk: Desk) -> None:
        desk.put("a", "b")
        desk.put("heavy", priority=1)
        assert desk.take(1) == ["heavy"]
        desk.put("c", at=START - 1)
        assert desk.forecast(10, 2) == Forecasted(START, 3, [0, 0], 0)

    def test_a_forecast_counts_only_waiting_messages(self, desk: Desk) -> None:
        furnish(desk)
        assert desk.forecast(HOUR // 2, 2) == Forecasted(START, 3, [0, 3], 0)

    def test_buckets_of_an_hour_or_more_begin_on_whole_hours(self, desk: Desk) -> None:
        start = START - START % HOUR
        assert start < START - 1
        for bucket in (HOUR, 3 * HOUR // 2, 2 * HOUR, 24 * HOUR):
            one = desk.apart(str(bucket))
            one.put("past", at=start + 1)
            edges = [start + bucket * number for number in range(1, 5)]
            for edge in edges:
                one.put(f"at {edge}", at=edge)
                one.put(f"behind {edge}", at=edge + 1)
            assert one.forecast(bucket, 3) == Forecasted(start, 1, [1, 2, 2], 3)

    def test_a_forecast_by_hours_follows_every_change(self, desk: Desk) -> None:
        furnish(desk)
        desk.put("a", "b", "c", "d", "e", delay=3 * HOUR, group="h")
        desk.cancel("a")
        desk.reschedule("b", delay=5 * HOUR)
        desk.put("c", on_conflict="replace", delay=7 * HOUR)
        desk.set_aside("d")
        desk.revive("dead1", delay=2 * HOUR)
        desk.put("gone", delay=HOUR, died=START)
        (held,) = leases(desk.claim(1))
        desk.retry(held, delay=4 * HOUR)
        told = desk.forecast(HOUR, 8)
        start = START - START % HOUR
        assert told == Forecasted(start, 2, [0, 3, 1, 1, 1, 1, 0, 1], 0)
        desk.wait(3 * HOUR)
        told = desk.forecast(HOUR, 8)
        assert (told.overdue, told.buckets, told.later) == (7, [0, 1, 1, 0, 1, 0, 0, 0], 0)
        desk.cancel_where(after=START)
        assert desk.forecast(HOUR, 8).buckets == [0] * 8

    # Queues.

    def test_queues_are_named_sorted_and_by_prefix(self, desk: Desk) -> None:
        for name in ("b", "a/x", "a", "a/y", "ab", "A"):
            desk.batch(cmd.Configure(name))
        assert desk.queues() == ["A", "a", "a/x", "a/y", "ab", "b"]
        assert desk.queues("a/") == ["a/x", "a/y"]
        assert desk.queues("a/x") == ["a/x"]
        assert desk.queues("%") == desk.queues("a_") == desk.queues("*") == []

    def test_a_queue_stays_when_it_is_empty(self, desk: Desk) -> None:
        desk.put("a")
        desk.cancel("a")
        assert desk.queues() == ["q"]
