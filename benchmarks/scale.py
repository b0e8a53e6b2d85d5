"""What a message costs on each store while so many are pending: bytes, and operations.

`BIDE_PENDING=10000000 python -m benchmarks scale` measures with ten million pending, not with one.
"""

import os
import random
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import bide
from benchmarks.core.store import BODY, WEEK, folder
from benchmarks.figure import Figure
from tests.postgres_server import PostgresServer, new_folder
from tests.servers import RedisServer

__all__ = ["run"]

PENDING = int(os.environ.get("BIDE_PENDING", "1000000"))
LIST = 1_000
"""How many messages are put at a time."""
BATCH = 500
"""How many messages are claimed, and acked, at a time."""
DUE = min(PENDING, 50_000)
"""How many messages are put, claimed and acked with the others pending."""
CALLS = 500
"""How often a call of one message is measured."""


class Store(ABC):
    """A store of one kind, and what it says of itself.

    Args:
        url: of the store.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes of disk it has, or of memory if that is where messages are."""

    @abstractmethod
    def written(self) -> int:
        """Return how many bytes it has written to the disk so far, its log included."""


class SqliteStore(Store):
    """A file; what this process writes is what the store writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self._path = path

    def size(self) -> int:
        """Return the size of the file, when the log is in it."""
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._path.stat().st_size

    def written(self) -> int:
        """Return the bytes that this process has given to `write`."""
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


class PostgresStore(Store):
    """A database on a server of its own."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server.url)
        self._server = server

    def size(self) -> int:
        """Return the size of the database."""
        return self._number("SELECT pg_database_size(current_database())")

    def written(self) -> int:
        """Return the bytes of the write-ahead log; the pages themselves come on top."""
        return self._number("SELECT pg_current_wal_lsn() - '0/0'")

    def _number(self, query: str) -> int:
        with self._server.client() as client:
            row = client.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])


class RedisStore(Store):
    """A server with an append-only file."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.url)
        self._server = server

    def size(self) -> int:
        """Return the bytes of memory."""
        return int(self._server.client().info("memory")["used_memory"])

    def written(self) -> int:
        """Return the bytes of the append-only file, which is not rewritten here."""
        return int(self._server.client().info("persistence")["aof_current_size"])


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all stores whose name has a word."""
    for kind, open_store in (("sqlite", _sqlite), ("postgres", _postgres), ("redis", _redis)):
        if only in kind:
            with open_store() as store:
                yield from _measured(kind, store)


@contextmanager
def _sqlite() -> Iterator[Store]:
    with folder() as path:
        yield SqliteStore(path / "bide.db")


@contextmanager
def _postgres() -> Iterator[Store]:
    with new_folder() as path:
        server = PostgresServer(path, fsync="on", shared_buffers="256MB", max_wal_size="4GB")
        try:
            yield PostgresStore(server)
        finally:
            server.stop()


@contextmanager
def _redis() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="bide-bench-", dir=Path.cwd()) as name:
        server = RedisServer(Path(name), appendonly="yes")
        try:
            server.client().config_set("auto-aof-rewrite-percentage", 0)
            yield RedisStore(server)
        finally:
            server.stop()


def _measured(kind: str, store: Store) -> Iterator[Figure]:
    with bide.Queue("scale", store.url) as queue:
        queue.put(BODY, id="first", delay="1d")  # the tables are there
        name = f"{kind}, {PENDING:,} pending"
        before, written = store.size(), store.written()
        seconds = _seconds(lambda: _fill(queue))
        yield Figure(f"{name}: put in lists of {LIST:,}", PENDING / seconds, "/s")
        yield Figure(
            f"{name}: written per message put", (store.written() - written) / PENDING, "bytes"
        )
        yield Figure(f"{name}: size per message", (store.size() - before) / PENDING, "bytes")
        written = store.written()
        for first in range(0, DUE, LIST):
            queue.put_many([BODY] * min(LIST, DUE - first))
        put = store.written() - written
        seconds = _seconds(lambda: _drain(queue))
        yield Figure(f"{name}: claim and ack of {BATCH}", DUE / seconds, "/s")
        yield Figure(
            f"{name}: written per claim and ack",
            (store.written() - written - put) / DUE,
            "bytes",
        )
        for call, each in _calls(queue):
            times = [_seconds(partial(each, number)) for number in range(CALLS)]
            yield Figure(f"{name}: {call}", median(times) * 1e6, "us")
        seconds = _seconds(queue.counts)
        yield Figure(f"{name}: counts", seconds * 1e6, "us")
        seconds = _seconds(lambda: queue.forecast("1h", "7d"))
        yield Figure(f"{name}: forecast of a week by the hour", seconds * 1e3, "ms")


def _fill(queue: bide.Queue) -> None:
    """Put messages that are due at random within a week."""
    start, chance = time.time() + 3_600, random.Random(PENDING)
    for first in range(0, PENDING, LIST):
        numbers = range(first, min(first + LIST, PENDING))
        queue.put_many(
            bide.NewMessage(BODY, id=f"m{number:010}", at=start + chance.random() * WEEK)
            for number in numbers
        )


def _drain(queue: bide.Queue) -> None:
    """Claim and ack all that is due."""
    while deliveries := queue.claim(BATCH):
        queue.ack(deliveries)


def _calls(queue: bide.Queue) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield the calls of one message, each of which is given the number of the call."""
    step = max(1, PENDING // CALLS)
    yield "a put", lambda number: queue.put(BODY, id=f"n{number}", delay="1h")
    yield "a get", lambda number: queue.get(f"m{number * step:010}")
    yield "a reschedule", lambda number: queue.reschedule(f"m{number * step:010}", delay="2h")
    yield "a cancel", lambda number: queue.cancel(f"m{number * step:010}")


def _seconds(work: Callable[[], object]) -> float:
    """Return how many seconds a work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
