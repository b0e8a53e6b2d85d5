"""An ack within the user's transaction, in turn with the same transaction without the ack.

The transaction is that of a small handler: it reads a row, changes it, and inserts another one that
has an index.
"""

import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import bide
from benchmarks.core.store import BODY, folder
from benchmarks.figure import Figure
from benchmarks.postgres.store import store

__all__ = ["run"]

MESSAGES = 200
TURNS = 15
ACCOUNTS = 10_000
TABLES = (
    "CREATE TABLE account (id integer PRIMARY KEY, balance integer)",
    "CREATE TABLE booking (id text PRIMARY KEY, account integer, amount integer)",
    "CREATE INDEX booking_account ON booking (account)",
)
GOAL = 1.3

Begin = Callable[[], AbstractContextManager[Any]]


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (sqlite, postgres):
        if only in measurement.__name__:
            yield from measurement()


def sqlite() -> Iterator[Figure]:
    """On a file, with `synchronous = FULL`, as bide's own commits have it."""
    with folder() as path, bide.Queue("work", f"sqlite:///{path / 'bide.db'}") as queue:
        queue.resume()
        with closing(sqlite3.connect(path / "bide.db")) as shop:
            shop.execute("PRAGMA synchronous = FULL")

            def begin() -> AbstractContextManager[Any]:
                return shop

            yield _figure("SQLite", queue, shop, begin, "?")


def postgres() -> Iterator[Figure]:
    """On a server with fsync, by a Unix socket."""
    with store() as (queue, server), server.client() as shop:
        queue.cancel(after=0)
        yield _figure("PostgreSQL", queue, shop, shop.transaction, "%s")


def _figure(kind: str, queue: bide.Queue, shop: Any, begin: Begin, mark: str) -> Figure:
    balance = f"SELECT balance FROM account WHERE id = {mark}"
    change = f"UPDATE account SET balance = {mark} WHERE id = {mark}"
    book = f"INSERT INTO booking VALUES ({mark}, {mark}, 5)"
    with begin():
        for table in TABLES:
            shop.execute(table)
        add = f"INSERT INTO account VALUES ({mark}, 0)"
        shop.cursor().executemany(add, [(number,) for number in range(ACCOUNTS)])

    def effect(id: str) -> None:
        account = random.randrange(ACCOUNTS)
        (before,) = shop.execute(balance, (account,)).fetchone()
        shop.execute(change, (before + 5, account))
        shop.execute(book, (id, account))

    def transaction(delivery: bide.Delivery, *, acks: bool) -> float:
        """Return how many seconds a transaction takes."""
        start = time.perf_counter()
        with begin():
            effect(f"{delivery.id}-{acks}")
            if acks:
                delivery.ack(within=shop)
        return time.perf_counter() - start

    def turn() -> tuple[float, float]:
        """Return the medians with an ack and without it, of transactions in turn."""
        queue.put_many([BODY] * MESSAGES)
        deliveries = queue.claim(MESSAGES, lease="10m")
        pairs = [
            (transaction(delivery, acks=False), transaction(delivery, acks=True))
            for delivery in deliveries
        ]
        without, acked = (statistics.median(column) for column in zip(*pairs, strict=True))
        return acked, without

    turn()
    turns = [turn() for _ in range(TURNS)]
    value, limit = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(acked / without for acked, without in turns)
    return Figure(
        f"a transaction with an ack on {kind}, against the same without it",
        value * 1e6,
        "us",
        limit * 1e6,
        ratio,
        f"<= {GOAL:.0%}",
        ratio <= GOAL,
    )
