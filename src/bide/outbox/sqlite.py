"""The outbox of a SQLite file, as the forwarder uses it."""

import fcntl
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bide.model.limits import MAX_BYTES
from bide.outbox.rows import CREATE_TABLES, Row

_NAME_TABLE = "CREATE TABLE IF NOT EXISTS bide_outbox_name (name TEXT NOT NULL)"
_NAME = "SELECT name FROM bide_outbox_name"
_GIVE_NAME = """
INSERT INTO bide_outbox_name
SELECT 'sqlite-' || lower(hex(randomblob(12))) WHERE NOT EXISTS (SELECT * FROM bide_outbox_name)
"""

_OLDEST = """
SELECT number, queue, id, command FROM bide_outbox
WHERE queue NOT IN (SELECT value FROM json_each(?)) ORDER BY number LIMIT ?
"""

_log = logging.getLogger("bide.forward")

LOOK = 0.02
"""Every so many seconds the forwarder looks whether another process has committed."""


class SqliteTable:
    """One connection.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        new = not path.exists()
        self._connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._woken = threading.Event()
        try:
            self._connection.execute("PRAGMA synchronous = FULL")  # the store forgets deleted rows
            for table in (*CREATE_TABLES["sqlite"], _NAME_TABLE):
                self._connection.execute(table)
            self.name = self._named()
        except BaseException:
            self._connection.close()
            raise
        self._version = -1
        if new:
            _log.warning("%s is a new and empty database: is the path right?", path.absolute())

    def _named(self) -> str:
        """Return the name of the outbox, which the first forwarder gives it."""
        if (row := self._connection.execute(_NAME).fetchone()) is None:
            self._connection.execute(_GIVE_NAME)
            row = self._connection.execute(_NAME).fetchone()
        name: str = row[0]
        return name

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

    def read(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Return the oldest committed rows."""
        (self._version,) = self._connection.execute("PRAGMA data_version").fetchone()
        found: list[Row] = []
        size = 0
        with closing(self._connection.execute(_OLDEST, (json.dumps(without), limit))) as rows:
            for row in rows:
                found.append(Row(*row))
                size += len(found[-1].text)
                if size >= MAX_BYTES:
                    break
        return found

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows that are done."""
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM bide_outbox WHERE number = ?", [(number,) for number in numbers]
            )

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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._connection:  # commits, or rolls back
            self._connection.execute("BEGIN IMMEDIATE")
            yield
