"""The database of an application, and the forwarder of its outbox."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

import bide
from bide.outbox.forwarder import Forwarder, table_of
from bide.testing.hooks import lane_of

BOUND = 60.0


@contextmanager
def connected(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=BOUND)) as connection:
            yield connection
    else:
        with closing(psycopg.connect(url)) as connection:
            yield connection


def rows(shop: Any, table: str = "bide_outbox", columns: str = "id") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = shop.execute(
        f"SELECT {columns} FROM {table} ORDER BY number"
    ).fetchall()
    shop.rollback()
    return found


def forward(orders: bide.Queue, url: str) -> None:
    assert Forwarder(lambda: table_of(url), lane_of(orders)).run_once()
