"""An ack within the user's transaction, in turn with the same transaction without it or before it.

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

MESSAGES = 100
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

            yield from _figures("SQLite", queue, shop, begin, "?")


def postgres() -> Iterator[Figure]:
    """On a server with fsync, by a Unix socket."""
    with store() as (queue, server), server.client() as shop:
        queue.cancel(after=0)
        yield from _figures("PostgreSQL", queue, shop, shop.transaction, "%s")


def _figures(kind: str, queue: bide.Queue, shop: Any, begin: Begin, mark: str) -> Iterator[Figure]:
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

    def transaction(delivery: bide.Delivery, ack: str) -> float:
        """Return how many seconds a transaction takes, and the ack after it if there is one."""
        start = time.perf_counter()
        with begin():
            effect(f"{delivery.id}-{ack}")
            if ack == "within":
                delivery.ack(within=shop)
        if ack == "after":
            delivery.ack()
        return time.perf_counter() - start

    def turn() -> list[float]:
        """Return the median of each kind, of transactions in turn."""
        queue.put_many([BODY] * 2 * MESSAGES)
        deliveries = iter(queue.claim(2 * MESSAGES, lease="10m"))
        rounds = []
        for first, second in zip(deliveries, deliveries, strict=True):
            without = transaction(first, "none")
            rounds.append((without, transaction(first, "within"), transaction(second, "after")))
        return [statistics.median(column) for column in zip(*rounds, strict=True)]

    turn()
    turns = [turn() for _ in range(TURNS)]
    without, within, after = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(turn[1] / turn[0] for turn in turns)
    goal = f"<= {GOAL:.0%}"
    what = f"a transaction with an ack on {kind}"
    yield Figure(
        f"{what}, against the same without it",
        within * 1e6,
        "us",
        without * 1e6,
        ratio,
        goal,
        ratio <= GOAL,
    )
    ratio = statistics.median(turn[1] / turn[2] for turn in turns)
    yield Figure(f"{what}, against an ack after it", within * 1e6, "us", after * 1e6, ratio)
