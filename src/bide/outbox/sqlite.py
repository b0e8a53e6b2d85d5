"""The outbox of a SQLite file, as the forwarder uses it."""

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bide.logs import logger
from bide.model.limits import MAX_BYTES
from bide.outbox.rows import CREATE_TABLES, Row, Table

_CREATE_NAME_TABLE = "CREATE TABLE IF NOT EXISTS bide_outbox_name (name TEXT NOT NULL)"
_SELECT_NAME = "SELECT name FROM bide_outbox_name"
_GIVE_NAME = """
INSERT INTO bide_outbox_name
SELECT 'sqlite-' || lower(hex(randomblob(12))) WHERE NOT EXISTS (SELECT * FROM bide_outbox_name)
"""

_OLDEST = """
SELECT number, queue, id, command FROM bide_outbox
WHERE queue NOT IN (SELECT value FROM json_each(?)) ORDER BY number LIMIT ?
"""

_log = logger("bide.forward")

POLL = 0.02
"""Every so many seconds the forwarder looks whether another process has committed."""


class SqliteTable(Table):
    """One connection.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        is_new = not path.exists()
        self.connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._wake_up = threading.Event()
        """Ends a wait."""
        try:
            # If a loss of power brought a deleted row back, it would be executed again: the store
            # has forgotten it.
            self.run("PRAGMA synchronous = FULL")
            for statement in (*CREATE_TABLES["sqlite"], _CREATE_NAME_TABLE):
                self.run(statement)
            if self.run(_SELECT_NAME).fetchone() is None:
                self.run(_GIVE_NAME)
            (self.name,) = self.run(_SELECT_NAME).fetchone()
        except BaseException:
            self.connection.close()
            raise
        self._version = -1
        """What `_data_version` returned before the last read; -1: nothing was read."""
        if is_new:
            _log.warning("%s is a new and empty database: is the path right?", path.absolute())

    def run(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement."""
        return self.connection.execute(statement, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of a block together."""
        with self.connection:  # commits, or rolls back
            self.run("BEGIN IMMEDIATE")
            yield

    def _data_version(self) -> int:
        """Return a number that changes when another connection commits."""
        (version,) = self.run("PRAGMA data_version").fetchone()
        return int(version)

    @contextmanager
    def lead(self) -> Iterator[bool]:
        """Lock a file beside the database; yield whether it is locked now.

        The system unlocks it when this process dies.
        """
        descriptor = os.open(f"{self._path}-forward", os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def read(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Return the oldest committed rows."""
        self._version = self._data_version()
        oldest_rows: list[Row] = []
        size = 0
        # To add up the sizes in SQL, SQLite would read and copy all of these rows.
        with closing(self.run(_OLDEST, (json.dumps(list(without)), limit))) as rows:
            for row in rows:
                oldest_rows.append(Row(*row))
                size += len(oldest_rows[-1].text)
                if size >= MAX_BYTES:
                    break
        return oldest_rows

    def wait(self, seconds: float) -> None:
        """Wait until another connection has committed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._wake_up.wait(POLL):
            if self._data_version() != self._version:
                return

    def wake(self) -> None:
        """End a wait, from another thread."""
        self._wake_up.set()

    def close(self) -> None:
        """Leave the file."""
        self.connection.close()
