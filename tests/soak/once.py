"""Handlers that ack within their transaction, in processes that die around the commit.

python -m tests.soak.once --messages 10000

Each message adds a row to a table of the database that the store is in. Processes kill themselves
at random: after the effect, after the ack, and after the commit. In the end, the table has one row
for each message, and as many messages are acked.
"""

import argparse
import asyncio
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

import bide
from tests.postgres_server import PostgresServer, new_folder
from tests.system.within.libraries import file_of, libpq, sqlalchemy_url

__all__ = ["Result", "main", "run"]

QUEUES = ("plain", "async", "own")
"""Of plain handlers, of async ones, and of some that open their transaction themselves."""

PROCESSES = 2
PATIENCE = 1_800.0
TABLE = "CREATE TABLE effect (message text, attempt integer)"


class Result(NamedTuple):
    """What a run has shown."""

    messages: int
    effects: int
    """The rows in the user's table."""
    different: int
    """The number of different messages that they are of."""
    acked: int
    deaths: int
    """How many processes have killed themselves."""
    audits: list[bide.Audit]

    @property
    def problems(self) -> list[str]:
        """What is wrong, if anything."""
        found = [problem for audit in self.audits for problem in audit.problems]
        if not self.messages == self.effects == self.different == self.acked:
            found.append(
                f"{self.messages} messages, {self.effects} effects of {self.different} of them, "
                f"{self.acked} acked"
            )
        return found


def run(url: str, messages: int, every: int) -> Result:
    """Handle messages in processes that die, until all are acked.

    Args:
        url: of a store on SQLite or PostgreSQL.
        messages: how many, over all queues.
        every: a process dies about once in so many deliveries.
    """
    deaths = 0
    queues = [bide.Queue(name, url) for name in QUEUES]
    _in_database(url, lambda run: run(TABLE))
    for queue, count in zip(queues, _shares(messages), strict=True):
        made = [bide.NewMessage(n, id=f"{queue.name}-{n}", attempts=1_000) for n in range(count)]
        for start in range(0, count, 1_000):
            queue.put_many(made[start : start + 1_000])
    workers: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + PATIENCE
    try:
        while any(queue.counts().sizes.total for queue in queues):
            assert time.monotonic() < deadline, [queue.counts().sizes for queue in queues]
            alive = [worker for worker in workers if worker.poll() is None]
            deaths += len(workers) - len(alive)
            workers = alive + [_start(url, every) for _ in range(PROCESSES - len(alive))]
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    rows: list[tuple[int, int]] = []

    def read(run: Callable[[str], Any]) -> None:
        rows.extend(run("SELECT count(*), count(DISTINCT message) FROM effect").fetchall())
        run("DROP TABLE effect")

    _in_database(url, read)
    ((effects, different),) = rows
    acked = sum(queue.counts().flow.acked for queue in queues)
    audits = [queue.audit() for queue in queues]
    for queue in queues:
        queue.close()
    return Result(messages, effects, different, acked, deaths, audits)


def _shares(messages: int) -> list[int]:
    """Return how many messages each queue gets."""
    share, rest = divmod(messages, len(QUEUES))
    return [share + (number < rest) for number in range(len(QUEUES))]


def _in_database(url: str, work: Callable[[Callable[[str], Any]], object]) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(file_of(url))) as file, file:
            work(file.execute)
    else:
        with psycopg.connect(libpq(url)) as connection:
            work(lambda statement: connection.execute(statement.encode()))


def _start(url: str, every: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.soak.once", "--work", url, "--every", str(every)]
    return subprocess.Popen(command)


# What a process does that dies.


class Death:
    """Kills the process once in so many deliveries, at one of three places."""

    def __init__(self, every: int) -> None:
        self._left = random.randrange(every, 2 * every)
        self._place = "begun"

    def begin(self) -> None:
        """Count a delivery, and choose the place."""
        self._left -= 1
        if self._left == 0:
            self._place = random.choice(["effect", "ack", "commit"])

    def come(self, place: str) -> None:
        """Kill the process if it is to die here."""
        if place == self._place:
            os.kill(os.getpid(), signal.SIGKILL)


def app_of(url: str, every: int) -> bide.App:
    """Return an app whose handlers have one effect each, and die sometimes."""
    app = bide.App(url)
    death = Death(every)
    retry = bide.Backoff(attempts=1_000, first="50ms", ceiling="50ms")
    driver = "+aiosqlite" if url.startswith("sqlite") else "+asyncpg"
    engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    mark = "?" if url.startswith("sqlite") else "%s"

    @contextmanager
    def plainly() -> Iterator[Any]:
        if url.startswith("sqlite"):
            connection: Any = sqlite3.connect(file_of(url), timeout=30)
        else:
            connection = psycopg.connect(libpq(url))
        with closing(connection):
            death.begin()
            yield connection
            death.come("ack")
            connection.commit()
            death.come("commit")

    @asynccontextmanager
    async def on_loop() -> AsyncIterator[AsyncConnection]:
        async with engine.connect() as connection:
            death.begin()
            yield connection
            death.come("ack")
            await connection.commit()
            death.come("commit")

    @app.handler("plain", within=plainly, lease="2s", concurrency=4, retry=retry)
    def handle(delivery: bide.Delivery, within: Any) -> None:
        row = (delivery.id, delivery.attempt)
        within.execute(f"INSERT INTO effect VALUES ({mark}, {mark})", row)
        death.come("effect")

    insert = text("INSERT INTO effect VALUES (:message, :attempt)")

    @app.handler("async", within=on_loop, lease="2s", concurrency=4, retry=retry)
    async def handle_on_loop(delivery: bide.Delivery, within: AsyncConnection) -> None:
        await within.execute(insert, {"message": delivery.id, "attempt": delivery.attempt})
        death.come("effect")

    @app.handler("own", lease="2s", concurrency=4, retry=retry)
    def handle_itself(delivery: bide.Delivery) -> None:
        with plainly() as connection:
            row = (delivery.id, delivery.attempt)
            connection.execute(f"INSERT INTO effect VALUES ({mark}, {mark})", row)
            death.come("effect")
            delivery.ack(within=connection)
            if random.random() < 0.02:
                raise RuntimeError("before the commit")
        if random.random() < 0.02:
            raise RuntimeError("after the commit")

    return app


async def _work(url: str, every: int) -> None:
    async with app_of(url, every).running():
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on SQLite and PostgreSQL; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.once", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=200, help="deliveries from death to death")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.work:
        logging.getLogger("bide").setLevel(logging.CRITICAL)  # it tells of each retry
        asyncio.run(_work(chosen.work, chosen.every))
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shop.db"
        problems += _told("SQLite", run(f"sqlite:///{file}", chosen.messages, chosen.every))
    with new_folder() as folder_of_server:
        server = PostgresServer(folder_of_server)
        try:
            problems += _told("PostgreSQL", run(server.url, chosen.messages, chosen.every))
        finally:
            server.stop()
    return int(bool(problems))


def _told(kind: str, result: Result) -> list[str]:
    print(
        f"{kind}: {result.effects:,} effects of {result.messages:,} messages, {result.acked:,} "
        f"acked, {result.deaths} processes killed"
    )
    for problem in result.problems:
        print(f"  {problem}")
    return result.problems


if __name__ == "__main__":
    sys.exit(main())
