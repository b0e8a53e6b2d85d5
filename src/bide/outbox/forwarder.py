"""The forwarder: what was committed to an outbox goes to the store, once.

Each command names the rows that it comes from (`Origin`). The store remembers the rows whose
command it has executed until they are deleted here. So a forwarder that dies in between, or gets
no answer, sends the same command again, and the store executes it only once.
"""

import asyncio
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bide.engines.registry import mask, opener, split_url
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model import commands as cmd
from bide.model.command_parts import Origin
from bide.model.errors import (
    AccessDenied,
    BideError,
    InvalidArgument,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from bide.model.replies import Outcomes, Reply
from bide.outbox.rows import Row, Table, name_of

BATCH = 500
"""How many rows are forwarded together at most."""

AGAIN = 1.0
"""Seconds until it tries again after an error of the store or the database, and until it looks
whether the forwarder that leads has gone."""

POLL = 5.0
"""Seconds after which it looks without having been woken."""

TRIES = 3
"""How often it tries a row that the store refuses with an error of no known cause."""

_log = logger("bide.forward")


def table_of(url: str) -> Table:
    """Open the outbox of a database; the tables are made if they are not there.

    Args:
        url: sqlite:///path or postgresql://...

    Raises:
        InvalidArgument: it is another kind of URL, or a package is missing.
        StoreUnavailable: the database cannot be reached, or the tables cannot be made.
    """
    parts = split_url(url)
    if parts.scheme not in ("postgresql", "postgres", "sqlite"):
        raise InvalidArgument(
            f"{mask(url)!r} cannot have an outbox: name the database of your program, "
            "postgresql://user@host/shop or sqlite:///shop.db"
        )
    if parts.scheme != "sqlite":
        opener(url)  # names the package that is missing
    try:
        if parts.scheme == "sqlite":
            from bide.engines.sqlite import file_of
            from bide.outbox.sqlite import SqliteTable

            return SqliteTable(Path(file_of(parts)))
        from bide.outbox.postgres import PostgresTable

        return PostgresTable(url)
    except Exception as error:
        if not _is_databases(error):
            raise
        reason = " ".join(str(error).split())
        raise StoreUnavailable(
            f"{mask(url)} cannot be opened as the database of an outbox ({reason}): is it there, "
            "and may this user make the tables bide_outbox and bide_outbox_dead?"
        ) from error


class Forwarder:
    """Forwards the rows of one database to one store, in a thread of the caller's.

    Args:
        open_table: opens the outbox, again after the database was lost.
        lane: of the store.
    """

    def __init__(self, open_table: Callable[[], Table], lane: Lane) -> None:
        self._open_table = open_table
        self._lane = lane
        self._stopped = threading.Event()
        self._table: Table | None = None
        """The outbox while `run` serves it, for `stop`."""
        self._tries: Counter[int] = Counter()
        """How often each row was refused with an error of no known cause, by number."""
        self._denied: dict[str, float] = {}
        """Queues to which the store denied access, and until when their rows are left alone."""

    def run(self) -> None:
        """Forward until `stop`. Errors are logged, and it begins again."""
        while not self._stopped.is_set():
            try:
                self._table = table = self._open_table()
                try:
                    self._serve(table)
                finally:
                    self._table = None
                    table.close()
            except Exception as error:
                if not _is_databases(error):
                    raise
                _log.warning("the outbox cannot be read: %s; trying again", error)
                self._stopped.wait(AGAIN)

    def run_once(self) -> bool:
        """Forward what is there, in the caller's thread; return False if another forwarder leads.

        Raises:
            BideError: the store takes nothing, or denies access to a queue.
        """
        table = self._open_table()
        denial: AccessDenied | None = None
        try:
            with table.lead() as leads:
                while leads:
                    try:
                        if not self.forward(table):
                            break
                    except AccessDenied as error:  # rows of other queues go on
                        denial = error
            if denial is not None:
                raise denial
            return leads
        finally:
            table.close()

    def stop(self) -> None:
        """Let `run` return after what is under way; from any thread."""
        self._stopped.set()
        table = self._table
        if table is not None:
            table.wake()

    def _serve(self, table: Table) -> None:
        """Try to lead, again and again; forward while this process does."""
        while not self._stopped.is_set():
            with table.lead() as leads:
                if leads:
                    _log.info("forwarding what is committed to the outbox")
                    self._lead(table)
            self._stopped.wait(AGAIN)

    def _lead(self, table: Table) -> None:
        """Forward until `stop`; while the store takes nothing, try again."""
        while not self._stopped.is_set():
            try:
                if not self.forward(table):
                    table.wait(POLL)
            except BideError as error:
                _log.warning("the store does not take what is in the outbox: %s; waiting", error)
                self._stopped.wait(AGAIN)

    def forward(self, table: Table) -> int:
        """Forward a batch of rows; return how many are done.

        Raises:
            AccessDenied: the store denies access to a queue: its rows wait. The others are done.
            BideError: the store takes nothing now. The rows are still there.
        """
        now = time.monotonic()
        self._denied = {queue: end for queue, end in self._denied.items() if end > now}
        rows = _distinct(table.read(BATCH, list(self._denied)))
        if not rows:
            return 0
        groups, refused = _grouped(rows)
        # A row that the store remembers was here once; if it is not here, it has been deleted. The
        # store cannot know a row yet that is committed late, with a small number.
        origin = Origin(table.name, [], name_of(rows[0].number))
        denials = self._execute(groups, origin, refused)
        settled = [row for row in rows if row.number not in denials]
        for row in settled:
            self._tries.pop(row.number, None)
            if row.number in refused:
                reason = refused[row.number]
                _log.error("%s: the store refused %s: %s", row.queue, row.id, reason)
                table.bury(row.number, reason)
            else:
                _log.debug("%s: %s is in the store", row.queue, row.id)
        table.delete([row.number for row in settled if row.number not in refused])
        if denials:
            raise next(iter(denials.values()))
        return len(settled)

    def _execute(
        self, groups: Collection[list[Row]], origin: Origin, refused: dict[int, str]
    ) -> dict[int, AccessDenied]:
        """Execute a command for each group of rows; if it fails, one for each of its rows.

        Args:
            groups: the rows that share a command.
            origin: the outbox of all of them.
            refused: gets the numbers of rows that the store refuses, and why.

        Returns:
            By number, the rows that wait because of a queue to which the store denies access.

        Raises:
            BideError: the store takes nothing now.
        """
        denied: dict[int, AccessDenied] = {}
        commands = [_joined(rows, origin) for rows in groups]
        for rows, command, reply in zip(groups, commands, self._call(commands), strict=True):
            if isinstance(reply, Outcomes):
                for row, outcome in zip(rows, reply.outcomes, strict=True):
                    if outcome or outcome.state in _TAKEN:
                        continue
                    refused[row.number] = str(command.worded_outcome(outcome))
            elif isinstance(reply, AccessDenied):  # denied for all: they need the same right
                self._denied[rows[0].queue] = time.monotonic() + POLL
                denied |= {row.number: reply for row in rows}
            elif isinstance(reply, BideError) and len(rows) > 1:
                # One of them is to blame: alone, the others are not refused with it.
                denied |= self._execute([[row] for row in rows], origin, refused)
            elif isinstance(reply, BideError):
                refused[rows[0].number] = self._refusal(rows[0], reply)
        return denied

    def _call(self, commands: Sequence[cmd.Command]) -> list[Reply | BideError]:
        """Have commands carried out together; return a reply or the refusal of each.

        Raises:
            BideError: the store takes nothing now.
        """

        async def together() -> list[Reply | BaseException]:
            calls = [self._lane.acall(command) for command in commands]
            return await asyncio.gather(*calls, return_exceptions=True)

        replies: list[Any] = asyncio.run(together())
        for reply in replies:
            is_refusal = isinstance(reply, REFUSALS) or type(reply) in REFUSALS_BUT_NO_SUBCLASSES
            if isinstance(reply, BaseException) and not is_refusal:
                raise reply
        return replies

    def _refusal(self, row: Row, error: BideError) -> str:
        """Return why a row is refused.

        Raises:
            StoreError: the error has no known cause, so it may pass: the row is to be tried again.
        """
        self._tries[row.number] += 1
        if type(error) is StoreError and self._tries[row.number] < TRIES:
            raise error
        return str(error)


_TAKEN = ("forwarded", "stopping", "closed")
"""States of messages for which the store has done what a row asks, though not yet or not now; or is
not to do it, because somebody has closed the group."""

REFUSALS = (InvalidArgument, Unsupported)
"""What says that a store will not take a row."""

REFUSALS_BUT_NO_SUBCLASSES = (StoreError, AccessDenied)
"""These say so as well. Other subclasses of `StoreError` say that it takes nothing now."""


def _grouped(rows: Sequence[Row]) -> tuple[Collection[list[Row]], dict[int, str]]:
    """Return the rows that can share a command; and by number, why others are no commands."""
    groups: defaultdict[object, list[Row]] = defaultdict(list)
    unreadable: dict[int, str] = {}
    for row in rows:
        try:
            command = row.command
        except msgspec.MsgspecError as error:
            unreadable[row.number] = f"this is not a command that bide knows: {error}"
            continue
        if isinstance(command, cmd.Put):  # those of one kind into a queue go together
            groups[command.queue, command.on_conflict].append(row)
        else:
            groups[row.number].append(row)
    return groups.values(), unreadable


def _joined(rows: Sequence[Row], origin: Origin) -> cmd.Command:
    """Return the one command of a group of rows.

    It names these rows, unless it does the same when it is executed twice. Only puts are in a group
    of several: see `_grouped`.
    """
    command = rows[0].command
    if not isinstance(command, (cmd.Put, cmd.Cancel, cmd.Reschedule)):
        return command
    if isinstance(command, cmd.Put):
        items = [item for row in rows for item in row.command.items]  # type: ignore[union-attr]
        command = msgspec.structs.replace(command, items=items)
    origin = msgspec.structs.replace(origin, rows=[row.name for row in rows])
    return msgspec.structs.replace(command, origin=origin)


def _distinct(rows: list[Row]) -> list[Row]:
    """Return the first rows, up to a second one of the same message.

    The commands of a batch may be executed in any order, and those on one message may not.
    """
    messages: set[tuple[str, str]] = set()
    for index, row in enumerate(rows):
        # Rows without an id are settings of a queue, which can be repeated.
        if row.id and (row.queue, row.id) in messages:
            return rows[:index]
        messages.add((row.queue, row.id))
    return rows


def _is_databases(error: Exception) -> bool:
    """Whether an error is one of the database, which may pass."""
    if isinstance(error, (sqlite3.DatabaseError, OSError, StoreUnavailable)):
        return True
    # By name: psycopg may not be installed.
    return any(base.__module__.startswith("psycopg") for base in type(error).__mro__)
