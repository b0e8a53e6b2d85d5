"""Files that another program has made in UTF-16, whose order of text is not that of UTF-8."""

import sqlite3
from pathlib import Path

import pytest

import bide

IDS = [
    "a",
    "b",
    "order-1",
    "order-é",
    "order-\U0001f600",
    "ÿ",
    "Ā",
    "中",
    "\ue000z",
    "\uffeey",
    "\U0010ffff",
]


@pytest.fixture(params=["UTF-8", "UTF-16le", "UTF-16be"])
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> bide.Queue:
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute(f"PRAGMA encoding = '{request.param}'")
        shop.execute("CREATE TABLE goods (id INTEGER PRIMARY KEY)")
    shop.close()
    return bide.Queue("orders", f"sqlite:///{tmp_path}/shop.db")


def test_scans_and_searches_leave_nothing_out(orders: bide.Queue) -> None:
    with orders:
        for id in IDS:
            orders.put(id, id=id, delay="1h", group=id)
        for page in (1, 2, 500):
            assert sorted(message.id for message in orders.scan(page=page)) == sorted(IDS)
        assert len(list(orders.export())) == len(IDS)
        for prefix in ("order-", "order-é", "ÿ", "Ā", "\uffee", "\U0010ffff"):
            found: list[str] = []
            page_of = bide.search(orders.url, id=prefix, limit=1)
            while True:
                found += [message.id for message in page_of.messages]
                if page_of.cursor is None:
                    break
                page_of = bide.search(orders.url, id=prefix, limit=1, cursor=page_of.cursor)
            assert sorted(found) == sorted(id for id in IDS if id.startswith(prefix))
        assert orders.audit()
        orders.configure(group_limit=1)
        orders.reschedule("b", delay=0)
        assert [delivery.id for delivery in orders.claim(9)] == ["b"]
