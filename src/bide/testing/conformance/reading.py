# ruff: noqa: D102  (the name of each case says what it checks)
"""Find, count, forecast, queues: the commands that only read; and budgets of replies."""

from typing import Any

from bide.model.commands import Find, Where
from bide.model.message import Item
from bide.model.replies import Forecasted, Found, Sizes
from bide.testing.conformance.driver import HOUR, START, Driver, numbered

KIB = 1024
LARGE: dict[str, Any] = {"data": b"x" * KIB, "json": False}
IDS = [f"m{number}" for number in range(10)]


class ReadCases:
    """What these commands promise."""

    # Count.

    def test_stored_bytes_are_those_of_all_messages(self, driver: Driver) -> None:
        driver.put("a", delay=HOUR)
        driver.bury(driver.lease("b"))
        before = driver.stored()
        assert 0 < before <= 2 * 400  # a few bytes each, and up to 200 more
        text = "é" * 50  # two bytes each, in every field
        big: dict[str, Any] = {"data": b"x" * 1_000, "json": False}
        driver.put(text, text * 2, headers={"h": text}, group=text, **big)
        least = 2 * (1_000 + 100 + len('{"h":""}') + 100) + 300
        assert least <= driver.stored() - before <= least + 2 * 200
        driver.cancel(text, text * 2)
        assert driver.stored() == before

    def test_counts_of_a_large_backlog_are_exact(self, bare: Driver) -> None:
        def waiting() -> tuple[int, int]:
            sizes = bare.count().sizes
            return sizes.delayed, sizes.ready

        # More than a claim ranks; and a whole hour, since engines may count by the hour.
        many, hour = 1_100, START // HOUR * HOUR + HOUR
        bare.put(*numbered(many, prefix="old"), at=START - 2 * HOUR)
        bare.put("soon", delay=100)
        bare.put("edge", at=hour)
        bare.put("later", at=hour + 1, priority=255)
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

    def test_a_bucket_of_a_forecast_has_its_beginning_and_not_its_end(self, driver: Driver) -> None:
        for number, delay in enumerate((0, 1, 9, 10, 19, 20, 30, 31)):
            driver.put(f"m{number}", delay=delay)
        assert driver.forecast(10, 3) == Forecasted(START, 1, [2, 2, 1], 2)

    def test_buckets_of_an_hour_or_more_begin_on_whole_hours(self, driver: Driver) -> None:
        start = START - START % HOUR
        assert start < START - 1
        for bucket in (HOUR, 3 * HOUR // 2, 2 * HOUR, 24 * HOUR):
            own_driver = driver.apart(str(bucket))
            own_driver.put("past", at=start + 1)
            for edge in (start + bucket * number for number in range(1, 5)):
                own_driver.put(f"before {edge}", at=edge - 1)
                own_driver.put(f"at {edge}", at=edge)
            assert own_driver.forecast(bucket, 3) == Forecasted(start, 1, [1, 2, 2], 3)

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

    def test_a_budget_that_two_messages_just_use_up_ends_no_scan(self, driver: Driver) -> None:
        driver.put("a", "b", "c", **LARGE)
        for state in (None, "ready"):
            for budget in range(2 * KIB, 2 * KIB + 64):  # what is counted beside a body is small
                assert sorted(driver.ids(state, max_bytes=budget)) == ["a", "b", "c"], budget

    def test_a_scan_goes_on_behind_a_message_that_is_larger_than_the_budget(
        self, driver: Driver
    ) -> None:
        driver.put("a", "b", "c", group="g", **LARGE)
        for where in (None, Where(group="g"), Where(after=START, before=START + 1)):
            for state in (None, "ready"):
                ids = driver.ids(state, where=where, max_bytes=1)
                assert sorted(ids) == ["a", "b", "c"]

    def test_a_budget_hides_no_message_that_is_looked_for(self, driver: Driver) -> None:
        driver.put(*IDS, **LARGE)
        for count in range(2, 5):
            messages = driver.ask(Find("q", IDS, max_bytes=count * (KIB + 200)), Found).messages
            assert [message and message.id for message in messages] == IDS[:count]

    def test_headers_and_failures_count(self, driver: Driver) -> None:
        driver.put_items(Item(id, b"1", headers={"h": "x" * KIB}) for id in IDS)
        assert len(driver.page("ready", max_bytes=4 * KIB).messages) == 3
        driver.retry(*driver.hold(), reason="x" * KIB)
        assert len(driver.page("ready", max_bytes=5 * KIB).messages) == 2
