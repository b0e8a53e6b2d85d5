"""The SQLite engine: durable on one machine, for many processes, without a server."""

import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from bide.engines.port import Capabilities, Notifier
from bide.engines.sqlite.connection import (
    OWNER_ONLY,
    Durability,
    connect,
    patiently,
    translate,
)
from bide.engines.sqlite.disk_room import RESERVE, growth, room
from bide.engines.sqlite.lone import LonePuts
from bide.engines.sqlite.notifier import SocketNotifier, ring_all
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.verbs import VERBS
from bide.model.commands import Command
from bide.model.errors import Closed, StoreFull
from bide.model.replies import Reply

__all__ = ["SqliteEngine"]

LOOK_EVERY = 0.02
"""How often, in seconds, the file system is asked at most, on the path of every command: whether
the file is still the same, and whether anybody listens when nobody did before."""

UNLOOKED = 1024 * 1024
"""How many bytes may be added until the disk is looked at again, within that time."""

_log = logging.getLogger("bide.sqlite")


class SqliteEngine:
    """Executes each batch of commands as one transaction on a SQLite file.

    Args:
        path: the file; made if it does not exist.
        durability: "full" (a confirmed change survives a power cut) or "normal" (it survives the
            death of any process, and may be lost with the power).
        timeout: seconds to wait for another process's transaction.
        read_only: execute nothing but reads, beside the writers.
        mode: the permissions of the file when it is made.

    Raises:
        StoreError: the file cannot be a store; the error says why and what helps.
    """

    capabilities = Capabilities()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        timeout: float = 30.0,
        read_only: bool = False,
        mode: int = OWNER_ONLY,
    ) -> None:
        self._path = Path(path).absolute()
        self._durability: Durability = durability
        self._timeout = timeout
        self._read_only = read_only
        self._mode = mode
        self._begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
        self._allowed = 0
        self._notifier: SocketNotifier | None = None
        self._quiet_until = 0.0
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._lone: LonePuts | None = None
        self._file: tuple[int, int] | None = None
        self._open()

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Carry out the commands in one transaction, and answer when the disk has it."""
        connection = self._connection
        if connection is None or time.monotonic() - self._checked > LOOK_EVERY:
            connection = self._current()
            self._allowed = 0
        grows = growth(commands)
        try:
            if not self._read_only:
                self._keep_room(connection, grows)
            return self._transact(connection, commands, now)
        except sqlite3.Error as error:
            told = translate(error, self._path, self._timeout)
            if grows or not isinstance(told, StoreFull):
                raise told from error
        # The log may not grow. Once it is written back into the file its space is used again.
        try:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
            return self._transact(connection, commands, now)
        except sqlite3.Error as error:
            raise translate(error, self._path, self._timeout) from error

    def _transact(
        self, connection: sqlite3.Connection, commands: Sequence[Command], now: int | None
    ) -> list[Reply]:
        """Carry out the commands in one transaction."""
        if self._lone is not None and len(commands) == 1:
            moment = time.time_ns() // 1_000_000 if now is None else now
            stored = self._lone.put(commands[0], moment)
            if stored is not None:
                return [stored]
        patiently(connection.execute, self._timeout, self._begin)
        try:
            # The clock is read under the lock: a lease must not be shorter by the wait for it.
            session = Session(connection, time.time_ns() / 1e6 if now is None else now)
            replies: list[Reply] = []
            for kind, run in groupby(commands, type):
                replies += VERBS[kind](session, list(run))
            if not self._read_only:
                session.save()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return replies

    def _keep_room(self, connection: sqlite3.Connection, grows: int) -> None:
        """See that the disk has room for a batch, and for deleting messages after it.

        Args:
            connection: to the file.
            grows: how many bytes the batch adds. One that adds none is never refused here.

        Raises:
            StoreFull: there is too little room to add something.
        """
        if grows < self._allowed:
            self._allowed -= grows
            return
        left = room(self._path)
        if left is None or left >= grows:
            self._allowed = UNLOOKED if left is None or left > grows + UNLOOKED else 0
            return
        with suppress(sqlite3.OperationalError):  # busy or full: the next look decides
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if not grows:
            return
        left, on_disk = room(self._path), room(self._path, 0.5)
        ((pages,), (size,)) = (
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("freelist_count", "page_size")
        )
        # What was deleted leaves pages in the file that are used again.
        if left is None or on_disk is None or (left + pages * size >= grows and on_disk >= grows):
            return
        raise StoreFull(
            f"the disk that holds {self._path} is full but for the room that deleting and settling "
            f"messages needs ({RESERVE >> 20} MiB, or a quarter of a small disk); what was asked "
            "was not done, what was confirmed before is safe. Free some space, or cancel or purge "
            "messages, and try again"
        )

    def reader(self) -> "SqliteEngine":
        """Return an engine with a connection of its own that reads while others write."""
        return SqliteEngine(
            self._path, durability=self._durability, timeout=self._timeout, read_only=True,
            mode=self._mode,
        )  # fmt: skip

    def notifier(self) -> Notifier | None:
        """Start to listen for the other processes on this file.

        Raises:
            StoreError: the file is not there; the next attempt may find it.
        """
        self._current()
        if self._notifier is None:
            self._notifier = SocketNotifier.open(self._path)
        return self._notifier

    def ring(self, queue: str, wake: int) -> None:
        """Tell the other processes on this file that listen."""
        now = time.monotonic()
        if now >= self._quiet_until and not ring_all(self._path, queue, wake, self._notifier):
            self._quiet_until = now + LOOK_EVERY

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        self._leave()

    def _open(self) -> sqlite3.Connection:
        before = _identity(self._path)
        connection = connect(
            self._path, self._durability, self._timeout, read_only=self._read_only, mode=self._mode
        )
        try:
            lone = None if self._read_only else LonePuts(connection)
        except sqlite3.Error as error:
            connection.close()
            raise translate(error, self._path, self._timeout) from error
        if self._file not in (None, before) and not self._read_only:  # the one who writes tells
            _log.warning(
                "%s was deleted, moved away or replaced while it was in use; from now on the file "
                "of that name is the store%s",
                self._path,
                "" if before else ", a new and empty one",
            )
        # A file that was put in its place meanwhile is noticed at the next look.
        self._file = before or _identity(self._path)
        self._connection, self._lone = connection, lone
        self._checked = time.monotonic()
        return connection

    def _leave(self) -> None:
        """Close the connection, and let nobody find it closed."""
        connection, self._connection, self._lone = self._connection, None, None
        if connection is not None:
            connection.close()

    def _current(self) -> sqlite3.Connection:
        """Return a connection to the file that bears the name now.

        A store that was deleted or put back from a backup under a running worker is another file:
        what would be written to the old one would be lost. One that went away and comes back is
        opened again.
        """
        if self._closed:
            raise Closed("this engine was closed")
        connection = self._connection
        if connection is not None and _identity(self._path) == self._file:
            self._checked = time.monotonic()
        else:
            self._leave()
            connection = self._open()
        if self._notifier is not None:
            self._notifier.renew(self._path)
        return connection


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # gone, or out of reach: opening it says which
        return None
    return found.st_dev, found.st_ino
