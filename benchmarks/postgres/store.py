"""A PostgreSQL server to measure on, and a plain table beside the store."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.pq import ExecStatus, Format

import bide
from benchmarks.core.store import BODY
from bide.engines.postgres.arrays import byteas, integers, texts
from bide.model.identity import new_ids
from tests.postgres_server import PostgresServer, new_folder

__all__ = ["BATCH", "Raw", "backend_seconds", "fill", "store"]

BATCH = 500
DATA = BODY.encode()

_TABLE = """
CREATE TABLE raw (
  seq bigint, rank bigint, due bigint, queue integer, attempts integer, attempt integer,
  size integer, state smallint, priority smallint, expires bigint, planned bigint, token bigint,
  id text COLLATE "C" PRIMARY KEY, "group" text, holder text, failures text, is_json boolean,
  data bytea, headers text, since bigint, extended integer, created bigint, limited integer);
CREATE INDEX ON raw (due);
"""
_ROW = """
INSERT INTO raw SELECT s, d * 256, d, 1, 10, 0, 256, 0::smallint, 0::smallint, NULL, NULL, NULL,
                       i, NULL, NULL, NULL, true, b, NULL, NULL, NULL, d, NULL
"""
_MANY = _ROW + "FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[]) AS u(s, d, i, b)"
_ONE = _ROW + "FROM (VALUES (%s::bigint, %s::bigint, %s::text, %s::bytea)) AS u(s, d, i, b)"


@contextmanager
def store(*, log: str = "-1") -> Iterator[tuple[bide.Queue, PostgresServer]]:
    """Give a queue on a new server, which writes to the disk that is here.

    Args:
        log: statements that take so many milliseconds stand in the server's log.
    """
    with new_folder() as folder:
        server = PostgresServer(
            folder,
            fsync="on",
            shared_buffers="256MB",
            max_wal_size="4GB",
            log_min_duration_statement=log,
        )
        try:
            with bide.Queue("work", server.url) as queue:
                queue.put(BODY, delay="1h")
                yield queue, server
        finally:
            server.stop()


class Raw:
    """Inserts into a plain table with as many columns, a primary key and an index on the due time.

    It sends the same arrays as bide, prepared, over a connection of its own.
    """

    def __init__(self, server: PostgresServer) -> None:
        self.connection = server.client()
        self.connection.execute("DROP TABLE IF EXISTS raw")
        self.connection.execute(_TABLE.encode())
        self.connection.pgconn.prepare(b"many", _MANY.encode())

    def insert(self, count: int) -> None:
        """Insert rows with one statement."""
        values = self._arrays(count)
        done = self.connection.pgconn.exec_prepared(b"many", values, [Format.BINARY] * len(values))
        assert done.status == ExecStatus.COMMAND_OK, done.error_message

    def _arrays(self, count: int) -> list[bytes]:
        due = round(time.time() * 1000) + 3_600_000
        return [
            integers(range(count)),
            integers([due] * count),
            texts(new_ids(count)),
            byteas([DATA] * count),
        ]

    def insert_one(self) -> None:
        """Insert a row."""
        (id,) = new_ids(1)
        self.connection.execute(_ONE, (1, round(time.time() * 1000), id, DATA), prepare=True)


def fill(queue: bide.Queue, count: int, delay: float, spread: float = 0) -> None:
    """Put messages, due at random within `spread` seconds behind the delay."""
    for first in range(0, count, BATCH):
        queue.put_many(
            [
                bide.NewMessage(
                    body=BODY, delay=delay + (number * 7919 % 9973 / 9973 * spread if spread else 0)
                )
                for number in range(first, first + BATCH)
            ]
        )


def backend_seconds(server: PostgresServer) -> float:
    """Return the processor time that the backends of bide have used."""
    with server.client() as client:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'bide'"
        pids = [pid for (pid,) in client.execute(query)]
    return sum(_seconds(pid) for pid in pids)


def _seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
