"""The SQLite engine: durable on one machine, for many processes, without a server."""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from bide.engines.port import Capabilities, Identities, Notifier, replies_of
from bide.engines.sqlite.connection import (
    LOG_BYTES,
    OWNER_ONLY,
    Durability,
    connect,
    forget_statistics,
    is_busy,
    patiently,
    translate,
)
from bide.engines.sqlite.files import RESERVE, Files, free_room
from bide.engines.sqlite.hints import folder_of, send_hints, wakes_of
from bide.engines.sqlite.put import put_one
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import SQL, as_text, is_damage
from bide.logs import logger
from bide.model.commands import BuryCommand, Claim, Command, Edit, Put, RetryCommand
from bide.model.errors import BideError, Closed, OutcomeUnknown, StoreCorrupt, StoreError, StoreFull
from bide.model.message import size_of
from bide.model.replies import Claimed, Reply

CHECK_EVERY = 0.02
"""The shortest time in seconds between two checks whether the file is still the same, whether the
disk has room, and whether another process listens: they are on the path of every command."""

UNCHECKED = 1024 * 1024
"""How many bytes may be added before the next check of the disk."""

PER_MESSAGE = 1_000
"""About how many bytes a message takes beside its content."""

_log = logger("bide.sqlite")


class ListeningPipe(Notifier, Protocol):
    """A notifier with a pipe, at which this process listens."""

    address: str
    """The path of the pipe."""


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

    capabilities = Capabilities(remembers=True, recovers=True)

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
        self._room = 0
        """How many bytes may be added before the next check of the disk."""
        self._notifier: ListeningPipe | None = None
        self.next_hint = 0.0
        """When to look again whether another process listens, by the monotonic clock."""
        self._ends: Sequence[str] = ()
        """The ends of messages in the last transaction, by their names (see `message_hint`)."""
        self.unreturned: tuple[Sequence[Command], Sequence[object]] = ((), ())
        """The commands of the last call and their outcomes, until it returns these: if it is
        interrupted before, no caller knows what its claims have leased."""
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._files = Files(self._path)
        self._open()

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute the commands in one transaction, and reply when the disk has it."""
        connection = self._connection
        adds = bytes_added(commands)
        outcomes: Sequence[Reply | OutcomeUnknown] | None = None
        try:
            if connection is None or time.monotonic() - self._checked > CHECK_EVERY:
                connection = self._current()
            if self._read_only:
                return replies_of(self._transact(connection, commands, now, identities))
            if self.unreturned[0]:  # the last call was interrupted
                self._transact(connection, releases(*self.unreturned), now, None)
            if adds >= self._room:
                self._room = UNCHECKED if self._has_room(connection, adds) else 0
            self._room -= adds
            if len(commands) == 1 and type(commands[0]) is Put and identities is None:
                outcomes = _put_alone(connection, commands[0], now)
            try:
                outcomes = outcomes or self._transact(connection, commands, now, identities)
            except sqlite3.Error as error:
                if adds or not isinstance(translate(error, self._path, 0), StoreFull):
                    raise
                # The log may not grow. A checkpoint makes its space free again.
                connection.execute("PRAGMA wal_checkpoint(RESTART)")
                outcomes = self._transact(connection, commands, now, identities)
        except sqlite3.Error as error:
            raise translate(error, self._path, self._timeout) from error
        if time.monotonic() >= self.next_hint:
            self._send_hints(commands, outcomes)
        try:
            replies = replies_of(outcomes)
        except BideError:  # the caller gets the outcomes with it
            self.unreturned = (), ()
            raise
        self.unreturned = (), ()  # as late as possible: from here on the caller has them
        return replies

    def _transact(
        self,
        connection: sqlite3.Connection,
        commands: Sequence[Command],
        now: int | None,
        identities: Identities,
        *,
        repairs: bool = False,
    ) -> Sequence[Reply | OutcomeUnknown]:
        """Execute the commands in one transaction, again if claims met unreadable messages.

        Args:
            connection: to the file.
            commands: to be executed.
            now: as for `execute`.
            identities: as for `execute`.
            repairs: first make dead letters of the messages that claims could not read.
        """
        connection.text_factory = as_text if repairs else str
        try:
            # An interrupt during BEGIN is raised when the transaction has begun.
            patiently(connection.execute, self._timeout, self._begin)
            # The clock is read under the lock: a lease must not be shorter by the wait for it.
            session = Session(connection, time.time_ns() / 1e6 if now is None else now)
            if repairs:
                from bide.engines.sqlite.damage import repair  # here: most stores are sound

                for name in {command.queue for command in commands if isinstance(command, Claim)}:
                    repair(session, name)
            if identities is None:
                outcomes: Sequence[Reply | OutcomeUnknown] = session.carry_out(commands)
            else:
                from bide.engines.sqlite.senders import carry_out_once  # here: a server has some

                outcomes = carry_out_once(session, commands, identities)
            if not self._read_only:
                session.save()
                self.unreturned = commands, outcomes
            connection.execute("COMMIT")
            self._ends = session.ends
            return outcomes
        except BaseException as error:
            if connection.in_transaction:
                self.unreturned = (), ()
                connection.rollback()
            if not is_damage(error):
                raise
            if repairs:
                raise StoreCorrupt(
                    f"{self._path}: the row of a message cannot be read ({error}): something else "
                    "has written to bide's tables. Nothing was changed; look with bide scan, and "
                    "export what is there"
                ) from error
        return self._transact(connection, commands, now, identities, repairs=True)

    def _has_room(self, connection: sqlite3.Connection, adds: int) -> bool:
        """Check that the disk has room for a batch, and for deleting messages after it.

        Args:
            connection: to the file.
            adds: how many bytes the batch adds. A batch that adds none is never refused.

        Returns:
            Whether there is room for `UNCHECKED` bytes more.

        Raises:
            StoreFull: there is too little room for the batch.
        """
        room = free_room(self._files.real)
        if room is None or room >= adds:
            return room is None or room > adds + UNCHECKED
        with suppress(sqlite3.OperationalError):  # busy or full: the next check decides
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if not adds:
            return False
        room = free_room(self._files.real)
        room_of_log = free_room(self._files.real, reserve=0.5)
        (free_pages,) = connection.execute("PRAGMA freelist_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        if room is None or room_of_log is None:  # the file system does not say
            return False
        # What was deleted leaves pages in the file that are used again. But each change goes to the
        # log first, for which half of the reserve may be used.
        if room + free_pages * page_size >= adds and room_of_log >= adds:
            return False
        raise StoreFull(
            f"the disk that holds {self._path} is full except for the room that deleting and "
            f"settling messages needs ({RESERVE >> 20} MiB, or a quarter of a small disk); the "
            "command was not executed, what was confirmed before is safe. Free some space, or "
            "cancel or purge messages, and try again"
        )

    def reader(self) -> "SqliteEngine":
        """Return an engine with a separate connection, which reads while others write."""
        return SqliteEngine(
            self._path,
            durability=self._durability,
            timeout=self._timeout,
            read_only=True,
            mode=self._mode,
        )

    def notifier(self) -> Notifier | None:
        """Start to listen for the other processes on this file; `None` on Windows.

        Raises:
            StoreError: the file is not there, or no pipe can be made; the next attempt may succeed.
        """
        self._current()
        if self._notifier is None and hasattr(os, "mkfifo"):
            from bide.engines.sqlite.notifier import PipeNotifier  # here: a program may only put

            try:
                self._notifier = PipeNotifier(self._files.real)
            except OSError as error:
                raise StoreError(
                    f"no pipe can be made in {self._listeners}: {error}; use a file system that "
                    "has named pipes"
                ) from error
        return self._notifier

    def _send_hints(
        self, commands: Sequence[Command], outcomes: Sequence[Reply | OutcomeUnknown]
    ) -> None:
        """Send hints to the processes that listen: from when messages can be claimed."""
        if not os.path.exists(self._listeners):
            self.next_hint = time.monotonic() + CHECK_EVERY
            return
        wakes = wakes_of(commands, outcomes, self._ends)
        self._ends = ()
        try:
            if wakes:
                own = None if self._notifier is None else self._notifier.address
                send_hints(self._files.real, wakes, own)
        except OSError:  # the messages are stored, and waiting claims look again by themselves
            _log.debug("no hint could be sent for %s", self._path, exc_info=True)

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        self.leave()

    def _open(self) -> sqlite3.Connection:
        """Open the file that has the name now, and note which one that is."""
        before, files = self._files, Files(self._path)
        new = "" if files.file else ", a new and empty one"
        self._listeners = folder_of(files.real)
        files.opening()
        try:
            connection = connect(
                self._path,
                self._durability,
                self._timeout,
                read_only=self._read_only,
                mode=self._mode,
            )
        except BaseException:
            files.closed()
            raise
        if not self._read_only:
            connection.execute(SQL.put_one_view)
            connection.execute(SQL.put_one_trigger)
            if before.file not in (None, files.file):  # the writer logs it, its reader does not
                _log.warning(
                    "%s was deleted, moved away or replaced while it was in use; from now on the "
                    "file of that name is the store%s",
                    self._path,
                    new,
                )
        files.opened()
        self._files, self._connection = files, connection
        self._checked = time.monotonic()
        return connection

    def leave(self) -> None:
        """Close the connection; the next command opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self._files.closed()

    def _current(self) -> sqlite3.Connection:
        """Return a connection to the file that has the name now, and note the room of its disk.

        A store that was deleted, or restored from a backup, under a running worker is another file:
        writes to the old one would be lost. A file that went away and comes back is opened again.
        """
        if self._closed:
            raise Closed("this engine was closed")
        connection, files = self._connection, self._files
        changed = None if connection is None else files.changed()
        if connection is not None and changed == self._path:
            files.keep_log_from_successor(connection, self._timeout)
            self.leave()
            connection = None
        if connection is None:
            connection = self._open()
        elif changed is not None:
            raise files.lost(changed, connection)
        self._checked = time.monotonic()
        if not self._read_only:
            if self._files.log_size > LOG_BYTES:
                with suppress(sqlite3.OperationalError):  # busy or full: the next check is soon
                    connection.execute("PRAGMA wal_checkpoint(RESTART)")
            room = free_room(self._files.real)
            self._room = UNCHECKED if room is None or room > UNCHECKED else 0
            forget_statistics(connection)
        return connection


def _put_alone(connection: sqlite3.Connection, command: Put, now: int | None) -> list[Reply] | None:
    """Put one simple message without a transaction around it: see `put_one`.

    Returns:
        `None`, with nothing done, if it is not simple, or another process has the store: then a
        transaction waits for it.
    """
    now = time.time_ns() // 1_000_000 if now is None else now
    try:
        reply = put_one(connection.execute, command, now)
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        return None
    return None if reply is None else [reply]


def releases(commands: Sequence[Command], outcomes: Sequence[object]) -> list[RetryCommand]:
    """Return the commands that release what claims have leased."""
    return [
        RetryCommand(command.queue, outcome.leases, release=True)
        for command, outcome in zip(commands, outcomes, strict=True)
        if isinstance(outcome, Claimed) and outcome.messages
    ]


def bytes_added(commands: Sequence[Command]) -> int:
    """Return about how many bytes commands add to a store; 0 if they read, move or delete."""
    size = 0
    for command in commands:
        if (added_by := _ADDED.get(type(command))) is not None:
            size += added_by(command)
    return size


# The content counts twice: it is written to the log, and from there to the file.


def _added_by_put(command: Put) -> int:
    items = command.items
    return PER_MESSAGE * len(items) + 2 * sum(map(size_of, items))


def _added_by_edit(command: Edit) -> int:
    size = len(command.data or b"")
    size += sum(len(name) + len(text) for name, text in (command.headers or {}).items())
    return (PER_MESSAGE + 2 * size) * len(command.ids)


def _added_by_failure(command: BuryCommand | RetryCommand) -> int:
    if isinstance(command, RetryCommand) and command.release:
        return 0  # also on a full disk, workers can return what they do not handle
    return (PER_MESSAGE + 2 * len(command.reason)) * len(command.leases)


_ADDED: dict[type[Command], Callable[[Any], int]] = {
    Put: _added_by_put,
    Edit: _added_by_edit,
    BuryCommand: _added_by_failure,
    RetryCommand: _added_by_failure,
}
"""What computes about how many bytes a command adds, for each type that adds some."""
