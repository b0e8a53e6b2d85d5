"""Within a transaction on SQLite: the file of the application, and who writes to it besides."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import bide
from tests.within.libraries import sqlite_url


def test_the_first_put_makes_the_tables_in_the_transaction(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE bill (id)")
        with bide.Queue("orders", sqlite_url(tmp_path)) as orders:
            shop.execute("INSERT INTO bill VALUES (1)")
            assert orders.put(1, id="a", within=shop)
            shop.rollback()
            tables = shop.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            assert tables.fetchall() == [("bill",)]
            assert orders.put(1, id="b", within=shop)
            shop.commit()
            assert [message.id for message in orders.scan()] == ["b"]


def test_somebody_else_who_writes_is_an_error_and_the_transaction_goes_on(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", sqlite_url(tmp_path)) as orders,
        closing(sqlite3.connect(tmp_path / "shop.db", timeout=0.01)) as shop,
        closing(sqlite3.connect(tmp_path / "shop.db")) as other,
    ):
        assert orders.counts().flow.put == 0
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(bide.StoreBusy, match="another process is writing to"):
            orders.put(1, within=shop)
        shop.execute("BEGIN")
        with pytest.raises(bide.StoreBusy, match="another process is writing to"):
            orders.put(1, within=shop)
        other.rollback()
        assert orders.put(1, within=shop)
        shop.commit()
        assert orders.audit()


def test_on_a_full_disk_sqlite_rolls_the_whole_transaction_back(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", sqlite_url(tmp_path)) as orders,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        assert orders.counts().flow.put == 0
        shop.execute("BEGIN")
        assert orders.put(1, id="first", within=shop)
        (pages,) = shop.execute("PRAGMA page_count").fetchone()
        shop.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(bide.StoreFull):
            orders.put_many(["x" * 5_000] * 50, within=shop)
        assert not shop.in_transaction
        assert orders.counts().flow.put == 0
        assert orders.audit()


def test_a_message_is_claimed_by_who_waits_once_it_is_committed(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", sqlite_url(tmp_path)) as orders,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        assert orders.claim() == []
        with ThreadPoolExecutor(1) as waiting:
            claimed = waiting.submit(orders.claim, wait="60s")
            assert orders.put(1, within=shop)
            shop.commit()
            (delivery,) = claimed.result()
        delivery.ack()


def test_a_relative_url_names_the_file_that_it_named_when_the_queue_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "100%41 #1?", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    with (
        bide.Queue("orders", "sqlite:///shop.db") as orders,
        closing(sqlite3.connect(here / "shop.db")) as shop,
    ):
        assert orders.put(1, id="a", within=shop)
        monkeypatch.chdir(other)
        assert orders.put(2, id="b", within=shop)
        shop.commit()
        assert [message.id for message in orders.scan()] == ["a", "b"]
    assert not list(other.iterdir())
