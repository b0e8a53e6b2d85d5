"""The outbox of a SQLite file, as the forwarder uses it."""

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bide.outbox.rows import SQLITE_TABLES, Row

__all__ = ["SqliteTable"]

LOOK = 0.02
"""Every so many seconds the forwarder looks whether another process has committed."""


class SqliteTable:
    """One connection.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._woken = threading.Event()
        for table in SQLITE_TABLES:
            self._connection.execute(table)
        self._version = -1

    @contextmanager
    def lead(self) -> Iterator[bool]:
        """Lock a file beside it: the system frees it when this process dies."""
        descriptor = os.open(f"{self._path}-forward", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def read(self, limit: int) -> list[Row]:
        """Return the oldest committed rows."""
        (self._version,) = self._connection.execute("PRAGMA data_version").fetchone()
        rows = self._connection.execute(
            "SELECT number, queue, id, command, tried FROM bide_outbox ORDER BY number LIMIT ?",
            (limit,),
        )
        return [Row(n, queue, id, text, bool(tried)) for n, queue, id, text, tried in rows]

    def mark(self, numbers: Sequence[int]) -> None:
        """Note that the store has these rows, or may have them."""
        self._connection.execute("PRAGMA synchronous = FULL")  # before the store goes on
        self._each("UPDATE bide_outbox SET tried = 1 WHERE number = ?", numbers)

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows that are done."""
        self._connection.execute("PRAGMA synchronous = NORMAL")  # if it is lost, it is done again
        self._each("DELETE FROM bide_outbox WHERE number = ?", numbers)

    def bury(self, number: int, reason: str) -> None:
        """Move a row to the dead ones."""
        with self._transaction():
            self._connection.execute(
                "INSERT INTO bide_outbox_dead (number, queue, id, command, reason)"
                " SELECT number, queue, id, command, ? FROM bide_outbox WHERE number = ?",
                (reason, number),
            )
            self._connection.execute("DELETE FROM bide_outbox WHERE number = ?", (number,))

    def wait(self, seconds: float) -> None:
        """Wait until another connection has committed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._woken.wait(LOOK):
            if self._connection.execute("PRAGMA data_version").fetchone() != (self._version,):
                return

    def wake(self) -> None:
        """End a wait, from another thread."""
        self._woken.set()

    def close(self) -> None:
        """Leave the file."""
        self._connection.close()

    def _each(self, statement: str, numbers: Sequence[int]) -> None:
        with self._transaction():
            self._connection.executemany(statement, [(number,) for number in numbers])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
