"""The queue in the user's own transaction, on a connection to the same file."""

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, cast
from urllib.parse import SplitResult

from bide.engines.port import DbApi
from bide.engines.sqlite import file_of
from bide.engines.sqlite.connection import is_busy, translate
from bide.engines.sqlite.hints import send_hints, wakes_of
from bide.engines.sqlite.schema import is_current, migrate
from bide.engines.sqlite.session import Session
from bide.model.commands import Command
from bide.model.errors import StoreBusy, WrongConnection
from bide.model.replies import Reply


def from_url(parts: SplitResult) -> "SqliteGuest":
    """Return the guest of the store at a URL.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    return SqliteGuest(file_of(parts))


class SqliteGuest:
    """Carries out commands on connections of the user's. See `bide.engines.port.Guest`."""

    dialect: Literal["sqlite"] = "sqlite"
    is_open = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Do nothing: the user's connection is enough."""

    def execute(
        self, connection: DbApi, commands: Sequence[Command], now: int | None
    ) -> list[Reply]:
        """Carry out commands; bide's tables are made if they are not there."""
        try:
            self._compare(connection)
            if connection.begins:  # at once: another process could write after the first read
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("SAVEPOINT bide")
            try:
                if not is_current(connection.execute, self._path):
                    migrate(connection.execute, self._path)
                now_ms = time.time_ns() / 1e6 if now is None else now
                session = Session(cast("sqlite3.Connection", connection), now_ms)
                replies = session.carry_out(commands)
                session.save()
            except BaseException:
                with suppress(sqlite3.OperationalError):  # on a full disk SQLite rolls back all
                    connection.execute("ROLLBACK TO bide")
                    connection.execute("RELEASE bide")
                raise
            connection.execute("RELEASE bide")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise translate(error, self._path, 0) from error
            raise StoreBusy(
                f"another process is writing to {self._path}, or has written since your "
                "transaction began to read; nothing was changed. Roll back and try again; a "
                "transaction that begins with BEGIN IMMEDIATE waits for the other"
            ) from error
        except sqlite3.Error as error:
            raise translate(error, self._path, 0) from error
        self._send_hints(commands, replies, session.ends)
        return replies

    def _send_hints(
        self, commands: Sequence[Command], replies: Sequence[Reply], ends: Sequence[str]
    ) -> None:
        """Send hints to all processes that wait, while the transaction still keeps others out.

        So a claim that is woken waits for the lock, and gets it with the commit: no library has to
        tell of that. After a rollback it has looked for nothing.
        """
        if wakes := wakes_of(commands, replies, ends):
            with suppress(OSError):  # nobody listens, or they look again by themselves
                send_hints(Path(os.path.realpath(self._path)), wakes, None)

    def _compare(self, connection: DbApi) -> None:
        """Raise unless the connection is to the file of the store."""
        files = connection.execute("PRAGMA database_list").fetchall()
        users_file = next(file for _, name, file in files if name == "main")
        try:
            # Not by `Path`, whose method takes longer.
            is_same_file = bool(users_file) and os.path.samefile(self._path, users_file)
        except FileNotFoundError:
            is_same_file = False
        if not is_same_file:
            place = users_file or "a database in memory"
            raise WrongConnection(
                f"the connection given as within= is to {place}, and the store is {self._path}; "
                "give a connection to that file, or put without within="
            )
