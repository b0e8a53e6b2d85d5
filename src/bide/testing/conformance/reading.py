# ruff: noqa: D102  (the name of each case says what it checks)
"""Find, scan, count, forecast, queues: the commands that only read; and budgets of replies."""

from typing import Any

import pytest
from msgspec.structs import replace

from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.message import STATES, Item
from bide.model.replies import Counts, Flow, Forecasted, Found, Sizes
from bide.testing.conformance.driver import HOUR, START, Driver, ids_of, numbered

KIB = 1024
LARGE: dict[str, Any] = {"data": b"x" * KIB, "json": False}
IDS = [f"m{number}" for number in range(10)]


def stock(driver: Driver, **fields: Any) -> None:
    """Put ten messages of a KiB each."""
    driver.put(*IDS, **LARGE, **fields)


class ReadCases:
    """What these commands promise."""

    # Scan.

    def test_a_scan_by_the_beginning_of_ids(self, driver: Driver) -> None:
        ids = ["a", "a-1", "a-2", "a.", "b", "A", "a%", "\ud7ffx", "\ue000", "\U0010ffff"]
        ids += ["é", "éa"]
        driver.put(*ids, delay=5)
        driver.bring("a-3", "dead")
        ids.append("a-3")
        for prefix in ("a", "a-", "a-1", "a%", "\ud7ff", "\U0010ffff", "é", "z", ""):
            for limit in (2, 500):
                expected = sorted(id for id in ids if id.startswith(prefix))
                assert sorted(driver.found(prefix=prefix, limit=limit)) == expected

    def test_a_scan_of_a_state_finds_it_whole_in_order(self, driver: Driver) -> None:
        driver.furnish()
        for state in STATES:
            for limit in (1, 2, 3, 4, 100):
                assert driver.scan(state, limit) == [f"{state}{number}" for number in (1, 2, 3)]
        for limit in (1, 5, 17, 18, 19):
            everything = {f"{state}{number}" for state in STATES for number in (1, 2, 3)}
            assert (len(found := driver.scan(None, limit)), {*found}) == (18, everything)
        following = [f"{state}{n}" for state in ("ready", "delayed") for n in (1, 2, 3)]
        for limit in (1, 2, 3, 7):
            assert driver.scan("next", limit) == following

    def test_a_scan_keeps_the_order_of_each_state(self, driver: Driver) -> None:
        driver.put("later", delay=9)
        driver.put("light", delay=5)
        driver.put("heavy", delay=5, priority=1)
        assert driver.scan("delayed") == driver.scan("next") == ["heavy", "light", "later"]
        driver.wait(9).put("top", priority=255)
        assert driver.take(1) == ["top"]
        assert driver.scan("ready") == ["heavy", "light", "later"]
        held = driver.hold()
        driver.extend(held[0], lease=9_000)
        assert driver.scan("leased") == ["later", "light", "top", "heavy"]
        driver.bury(held[2])
        driver.wait(1).bury(held[0])
        assert driver.scan("dead") == ["later", "heavy"]

    def test_a_scan_yields_each_message_once_while_others_come_and_go(self, driver: Driver) -> None:
        driver.put(*IDS, delay=5)
        first = driver.page(limit=4)
        names = sorted(ids_of(first))
        rest = [id for id in IDS if id not in names]
        driver.cancel(*names[:2])
        driver.reschedule(rest[0], names[2], delay=0)
        driver.take(1)
        second = driver.page(cursor=first.cursor, limit=100)
        assert (sorted(ids_of(second)), second.cursor) == (rest, None)

    def test_an_invalid_cursor_is_refused(self, driver: Driver) -> None:
        driver.put("a")
        for state in (None, "ready", "next", "dead"):
            for cursor in ("", "nonsense", "1.2", "0.-1.3", "0.1.2.3"):
                with pytest.raises(InvalidArgument, match="cursor"):
                    driver.page(state, cursor)

    # Count.

    def test_counts_tell_what_is_where(self, driver: Driver) -> None:
        driver.furnish()
        sizes = Sizes(delayed=3, ready=3, leased=3, dead=3)
        flow = Flow(put=18, acked=3, expired=3, died=3)
        counts = Counts(sizes, flow, kept=6, keep=HOUR, oldest=START - 5)
        assert driver.count() == counts
        assert driver.counts() == replace(counts, recount=sizes, strays=0)

    def test_stored_bytes_are_those_of_all_messages(self, driver: Driver) -> None:
        driver.furnish()
        before = driver.stored()
        assert 0 < before <= 18 * 400  # a few bytes each, and up to 200 more
        text = "é" * 50  # two bytes each, in every field
        big: dict[str, Any] = {"data": b"x" * 1_000, "json": False}
        driver.put(text, text * 2, headers={"h": text}, group=text, **big)
        least = 2 * (1_000 + 100 + len('{"h":""}') + 100) + 300
        assert least <= driver.stored() - before <= least + 2 * 200
        driver.cancel(text, text * 2)
        assert driver.stored() == before

    def test_oldest_is_the_earliest_due_time_of_ready_messages(self, driver: Driver) -> None:
        other = driver.apart("other")
        other.put("b", at=START - 99)
        other.lease("heavy", priority=9)  # this has ranked the message of the other queue
        assert driver.counts().oldest is None
        driver.put("later", delay=5)
        assert driver.counts().oldest is None
        driver.put("a", at=START - 5, priority=3)
        driver.put("b", at=START - 9)
        assert driver.counts().oldest == START - 9
        driver.lease("heavy", priority=9)  # this has ranked the others
        assert driver.counts().oldest == START - 9
        driver.cancel("b")
        assert driver.counts().oldest == START - 5
        driver.put("c", at=START - 7)
        assert driver.counts().oldest == START - 7

    def test_counts_of_a_large_backlog_are_exact(self, bare: Driver) -> None:
        def waiting() -> tuple[int, int]:
            sizes = bare.count().sizes
            return sizes.delayed, sizes.ready

        many, hour = 1_100, START // HOUR * HOUR + HOUR
        bare.put(*numbered(many, prefix="old"), at=START - 2 * HOUR)
        bare.put("soon", delay=100)
        bare.put("edge", at=hour)
        bare.put("later", at=hour + 1)
        assert waiting() == (3, many)
        bare.put(*numbered(many, prefix="now"))
        assert waiting() == (3, 2 * many)
        bare.put(*numbered(many, prefix="soon"), delay=200)
        assert waiting() == (3 + many, 2 * many)
        bare.lease("heavy", priority=9, at=START - 3 * HOUR)  # this has ranked some of the others
        assert waiting() == (3 + many, 2 * many)
        assert bare.wait(100).counts().oldest == START - 2 * HOUR
        assert waiting() == (2 + many, 2 * many + 1)
        bare.cancel(*numbered(9, prefix="old"))
        bare.wait(hour - bare.now)
        assert waiting() == (1, 3 * many - 7)
        assert bare.wait(1).counts().sizes == Sizes(ready=3 * many - 6, leased=1)

    # Forecast.

    def test_a_forecast_counts_by_buckets_that_end_at_their_edge(self, driver: Driver) -> None:
        for number, delay in enumerate((0, 1, 10, 11, 20, 30, 31)):
            driver.put(f"m{number}", delay=delay)
        assert driver.forecast(10, 3) == Forecasted(START, 1, [2, 2, 1], 1)

    def test_buckets_of_an_hour_or_more_begin_on_whole_hours(self, driver: Driver) -> None:
        start = START - START % HOUR
        assert start < START - 1
        for bucket in (HOUR, 3 * HOUR // 2, 2 * HOUR, 24 * HOUR):
            one = driver.apart(str(bucket))
            one.put("past", at=start + 1)
            for edge in (start + bucket * number for number in range(1, 5)):
                one.put(f"at {edge}", at=edge)
                one.put(f"behind {edge}", at=edge + 1)
            assert one.forecast(bucket, 3) == Forecasted(start, 1, [1, 2, 2], 3)

    # Queues.

    def test_queues_are_named_sorted_and_by_prefix(self, driver: Driver) -> None:
        driver.put("a")
        driver.cancel("a")  # a queue stays when it is empty
        for name in ("b", "a/x", "a", "a/y", "ab", "A"):
            driver.apart(name).configure()
        assert driver.queues() == ["A", "a", "a/x", "a/y", "ab", "b", "q"]
        assert driver.queues("a/") == ["a/x", "a/y"]
        assert driver.queues("a/x") == ["a/x"]
        assert driver.queues("%") == driver.queues("a_") == driver.queues("*") == []

    # Budgets: a reply ends before so many bytes, and a later command returns the rest.

    def test_a_find_answers_the_first_ids_only(self, driver: Driver) -> None:
        stock(driver)
        for budget, count in ((0, 1), (KIB, 1), (4 * KIB, 3), (1 << 20, 10)):
            found = driver.ask(cmd.Find("q", ["none", *IDS], budget), Found)
            assert [m and m.id for m in found.messages] == [None, *IDS[:count]]

    @pytest.mark.parametrize("state", [None, "next", "ready", "delayed", "leased", "dead"])
    def test_pages_end_before_the_budget_and_go_on(self, driver: Driver, state: Any) -> None:
        stock(driver, delay=HOUR if state == "delayed" else 0)
        held = driver.hold() if state in ("leased", "dead") else []
        if state == "dead":
            driver.bury(*held)
        for budget in (0, 2 * KIB, 4 * KIB):
            found: list[str] = []
            for page in driver.pages(state, max_bytes=budget):
                size = sum(len(message.data) for message in page.messages)
                assert len(page.messages) == 1 or size <= budget
                assert page.messages or page.cursor is None or not found
                found += ids_of(page)
            assert (found if state else sorted(found)) == IDS  # without a state: no order

    def test_a_budget_that_two_messages_just_use_up_ends_no_scan(self, driver: Driver) -> None:
        driver.put("a", "b", "c", **LARGE)
        for state in (None, "ready"):
            for budget in range(2 * KIB, 2 * KIB + 64):  # what is counted beside a body is small
                assert sorted(driver.found(state, max_bytes=budget)) == ["a", "b", "c"], budget

    def test_a_page_over_ready_and_delayed_has_one_budget(self, driver: Driver) -> None:
        driver.put("a", "b", priority=1, **LARGE)
        driver.put("c", "d", delay=HOUR, **LARGE)
        driver.claim(0)  # has made the first two ready
        page = driver.page("next", max_bytes=3 * KIB)
        assert ids_of(page) == ["a", "b"]
        assert ids_of(driver.page("next", page.cursor)) == ["c", "d"]

    def test_a_claim_leases_what_it_returns(self, driver: Driver) -> None:
        for budget, count in ((0, 1), (4 * KIB, 3), (1 << 20, 10)):
            one = driver.apart(f"{budget}")
            stock(one)
            assert ids_of(one.claim(max_bytes=budget)) == IDS[:count]
            sizes = one.counts().sizes
            assert (sizes.leased, sizes.ready) == (count, 10 - count)
            assert one.take() == IDS[count:]

    def test_expired_messages_use_no_budget(self, driver: Driver) -> None:
        driver.put("late", data=b"x" * 9 * KIB, json=False, expires=1, at=START - 5)
        stock(driver)
        driver.put("small")  # it fits, but is not the next
        assert ids_of(driver.claim(max_bytes=3 * KIB)) == IDS[:2]

    def test_headers_and_failures_count(self, driver: Driver) -> None:
        driver.put_items(Item(id, b"1", headers={"h": "x" * KIB}) for id in IDS)
        assert len(driver.page("ready", max_bytes=4 * KIB).messages) == 3
        driver.retry(*driver.hold(), reason="x" * KIB)
        assert len(driver.page("ready", max_bytes=5 * KIB).messages) == 2
