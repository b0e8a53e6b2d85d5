# ruff: noqa: D102  (the name of each case says what it checks)
"""Lists of the messages that have ended, of queues that remember how."""

import pytest

from bide.engines.ended_pages import LOOKED_AT
from bide.model.ended import Ended
from bide.model.errors import InvalidArgument
from bide.testing.conformance.driver import HOUR, START, Driver, numbered


class EndListCases:
    """What a list of ended messages promises."""

    ends_looked_at_once = LOOKED_AT
    """At how many ends a page looks; of several shards, at so many of each."""

    def test_a_list_has_each_id_once_with_its_last_end(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for id in ("a", "b", "a", "c"):
            driver.put(id)
            driver.cancel(id, actor="ann")
            driver.wait(1)
        ended = driver.ended()
        assert [(each.id, each.moment - START) for each in ended] == [("b", 1), ("a", 2), ("c", 3)]
        assert {(each.how, each.by) for each in ended} == {("cancelled", "ann")}
        assert [end.moment - START for end in driver.ends("a")] == [2, 0]

    def test_a_list_has_every_kind_of_end_as_the_history_has_it(self, driver: Driver) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        driver.retry(driver.lease("a"), reason="no")
        driver.ack(*driver.hold(1), results=[b"1"])
        driver.put("b", expires=0)
        driver.wait(1).claim()
        driver.wait(1).bury(driver.lease("c"), reason="boom")
        driver.put("d")
        driver.wait(1).cancel("d")
        driver.put("e")
        driver.wait(1).purge("ready")
        ended = driver.ended()
        assert [each.how for each in ended] == ["acked", "expired", "dead", "cancelled", "purged"]
        assert [each.error for each in ended] == ["no", None, "boom", None, None]
        for each in ended:
            (end, *_) = driver.ends(each.id)
            assert each == Ended.of(each.id, end)
            assert driver.ended(how=each.how) == [each]

    def test_a_list_is_in_the_order_of_moments_and_of_ids_as_bytes(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        ids = ["a", "B", "é", "a.1", "\uffee", "\U0001f600", "10", "9", "aa"]
        driver.put(*ids, "z")
        driver.cancel("z")
        driver.wait(1).cancel(*ids)
        expected = ["z", *sorted(ids, key=str.encode)]
        for limit in (1, 2, 3, 500):
            assert [each.id for each in driver.ended(limit=limit)] == expected

    def test_a_list_is_of_a_time(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for number in range(5):
            driver.put(f"m{number}")
            driver.cancel(f"m{number}")
            driver.wait(1)
        for after, before, expected in (
            (1, 3, [1, 2]),
            (3, None, [3, 4]),
            (None, 1, [0]),
            (5, None, []),
            (2, 2, []),
        ):
            bounds = {"after": after, "before": before}
            fields = {name: START + ms for name, ms in bounds.items() if ms is not None}
            for limit in (1, 500):
                ended = driver.ended(limit=limit, **fields)
                assert [each.moment - START for each in ended] == expected

    def test_a_message_that_ended_again_moves_in_the_list(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for id in ("a", "b"):
            driver.put(id)
            driver.cancel(id)
            driver.wait(1)
        page = driver.ended_page(limit=1)
        assert [each.id for each in page.messages] == ["a"]
        driver.bury(driver.lease("a"))
        driver.revive("a")
        assert [each.how for each in driver.ended(how="dead")] == ["dead"]
        driver.wait(1).ack(*driver.hold(1))
        following = driver.ended_page(cursor=page.cursor)
        assert [(each.id, each.how) for each in following.messages] == [
            ("b", "cancelled"),
            ("a", "acked"),
        ]
        assert driver.ended(how="dead", before=START + 3) == []

    def test_a_list_has_no_ends_that_are_to_be_forgotten(self, driver: Driver) -> None:
        driver.configure(history=100)
        for id in ("a", "b"):
            driver.put(id)
            driver.cancel(id)
            driver.wait(60)
        assert [each.id for each in driver.ended()] == ["b"]
        driver.configure(history=10)
        assert driver.ended() == []
        driver.configure(history=0, result_ttl=HOUR)
        driver.ack(driver.lease("c"), results=[b"1"])
        assert [(each.id, each.result) for each in driver.ended()] == [("c", None)]
        assert Driver(driver.engine, "none").ended() == []

    def test_a_page_of_a_list_keeps_to_a_budget(self, driver: Driver) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        ids = numbered(5)
        for id in ids:
            driver.bury(driver.lease(id), reason="x" * 1_000)
            driver.wait(1)
        for budget, count in ((0, 1), (3_000, 2), (100_000, 5)):
            page = driver.ended_page(max_bytes=budget)
            assert [each.id for each in page.messages] == ids[:count]
            assert [each.id for each in driver.ended(max_bytes=budget)] == ids

    def test_a_page_of_a_list_looks_at_so_many_ends(self, bare: Driver) -> None:
        bare.configure(history=HOUR)
        ids = numbered(self.ends_looked_at_once + 1)
        bare.put(*ids)
        bare.cancel(*ids)
        bare.bury(bare.wait(1).lease("a"))
        page = bare.ended_page(how="dead")
        assert page.messages == []
        assert [each.id for each in bare.ended(how="dead")] == ["a"]
        assert [each.id for each in bare.ended(limit=900)] == [*sorted(ids, key=str.encode), "a"]

    def test_a_list_refuses_a_cursor_of_another_list(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        for cursor in (
            "",
            "0",
            "x.a",
            "-1.a",
            "1.a\nb",
            "9" * 16 + ".a",
            "9" * 20 + ".a",
            "1." + "a" * 600,
        ):
            with pytest.raises(InvalidArgument, match="cursor"):
                driver.ended_page(cursor=cursor)
