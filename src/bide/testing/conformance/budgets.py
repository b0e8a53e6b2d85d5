# ruff: noqa: D102  (the name of each case says what it checks)
"""Budgets: replies end before so many bytes, and a later command returns the rest."""

from typing import Any

from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Found, Page
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases

__all__ = ["BudgetCases"]

KIB = 1024
IDS = [f"m{number}" for number in range(10)]


def stock(desk: Desk, **fields: Any) -> None:
    """Put ten messages of a KiB each."""
    desk.put(*IDS, data=b"x" * KIB, json=False, **fields)


class BudgetCases:
    """What `max_bytes` promises."""

    def test_a_find_answers_the_first_ids_only(self, desk: Desk) -> None:
        stock(desk)
        for budget, count in ((0, 1), (KIB, 1), (4 * KIB, 3), (1 << 20, 10)):
            found = desk.ask(cmd.Find("q", ["none", *IDS], budget), Found)
            assert [m and m.id for m in found.messages] == [None, *IDS[:count]]

    def test_pages_end_before_the_budget_and_the_next_goes_on(self, desk: Desk) -> None:
        states: list[Any] = [None, "next", "ready", "delayed", "leased", "dead"]
        for state in states:
            one = desk.apart(str(state))
            stock(one, delay=HOUR if state == "delayed" else 0)
            held = leases(one.claim()) if state in ("leased", "dead") else []
            if state == "dead":
                one.bury(*held)
            for budget in (0, 2 * KIB, 4 * KIB):
                found: list[str] = []
                for page in one.pages(state, max_bytes=budget):
                    size = sum(len(message.data) for message in page.messages)
                    assert len(page.messages) == 1 or size <= budget
                    assert page.messages or page.cursor is None or not found
                    found += ids_of(page)
                assert (found if state else sorted(found)) == IDS  # without a state: no order

    def test_a_budget_that_two_messages_just_use_up_ends_no_scan(self, desk: Desk) -> None:
        desk.put("a", "b", "c", data=b"x" * KIB, json=False)
        for state in (None, "ready"):
            for budget in range(2 * KIB, 2 * KIB + 64):  # what is counted beside a body is small
                pages = desk.pages(state, max_bytes=budget)
                found = [id for page in pages for id in ids_of(page)]
                assert sorted(found) == ["a", "b", "c"], budget

    def test_a_page_over_ready_and_delayed_has_one_budget(self, desk: Desk) -> None:
        desk.put("a", "b", data=b"x" * KIB, json=False)
        desk.put("c", "d", data=b"x" * KIB, json=False, delay=HOUR)
        page = desk.ask(cmd.Scan("q", "next", max_bytes=3 * KIB), Page)
        assert ids_of(page) == ["a", "b"]
        rest = desk.ask(cmd.Scan("q", "next", cursor=page.cursor), Page)
        assert ids_of(rest) == ["c", "d"]

    def test_a_claim_leases_what_it_returns(self, desk: Desk) -> None:
        for budget, count in ((0, 1), (4 * KIB, 3), (1 << 20, 10)):
            one = desk.apart(f"{budget}")
            stock(one)
            claimed = one.ask(cmd.Claim(one.queue, 10, 1_000, "w1", budget), Claimed)
            assert ids_of(claimed) == IDS[:count]
            sizes = one.counts().sizes
            assert (sizes.leased, sizes.ready) == (count, 10 - count)
            assert one.take() == IDS[count:]

    def test_a_claim_with_a_budget_takes_the_highest_priority(self, desk: Desk) -> None:
        stock(desk)
        desk.put("heavy", data=b"x" * KIB, json=False, priority=9)
        claimed = desk.ask(cmd.Claim("q", 20, 1_000, "w1", 3 * KIB), Claimed)
        assert ids_of(claimed) == ["heavy", "m0"]
        assert desk.take(20) == IDS[1:]

    def test_expired_messages_use_no_budget(self, desk: Desk) -> None:
        desk.put("late", data=b"x" * 9 * KIB, json=False, expires=1, at=START - 5)
        stock(desk)
        claimed = desk.ask(cmd.Claim("q", 10, 1_000, "w1", 3 * KIB), Claimed)
        assert ids_of(claimed) == IDS[:2]

    def test_headers_and_failures_count(self, desk: Desk) -> None:
        items = [Item(id, b"1", headers={"h": "x" * KIB}) for id in IDS]
        desk.put_items(items)
        page = desk.ask(cmd.Scan("q", "ready", max_bytes=4 * KIB), Page)
        assert len(page.messages) == 3
        held = leases(desk.claim())
        desk.retry(*held, reason="x" * KIB)
        page = desk.ask(cmd.Scan("q", "ready", max_bytes=5 * KIB), Page)
        assert len(page.messages) == 2
