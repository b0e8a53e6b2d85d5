"""The forwarder: what was committed to an outbox goes to the store, once.

A message is put first with a due time that never comes, which names its row. So no worker can have
it, and a forwarder that died meanwhile finds it again: then the row is marked, and only then the
message gets its own due time, if it still has the other. Whatever is repeated changes nothing.
"""

import asyncio
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bide.engines.registry import mask
from bide.lane.lane import Lane
from bide.model import commands as cmd
from bide.model.errors import BideError, InvalidArgument, StoreError, Unsupported
from bide.model.replies import Outcomes, Reply
from bide.outbox.rows import Row, Table, held_until

__all__ = ["Forwarder", "table_of"]

BATCH = 500
"""How many rows are forwarded together at most."""

AGAIN = 1.0
"""Seconds until it tries again after an error of the store or the database, and until it looks
whether the forwarder that leads has gone."""

LOOK = 5.0
"""Seconds after which it looks without having been woken."""

TRIES = 3
"""How often it tries a row that the store refuses with an error of no known cause."""

_log = logging.getLogger("bide.forward")


def table_of(url: str) -> Table:
    """Open the outbox of a database; the tables are made if they are not there.

    Args:
        url: sqlite:///path or postgresql://...

    Raises:
        InvalidArgument: it is another kind of URL, or a package is missing.
    """
    parts = urlsplit(url)
    if parts.scheme in ("postgresql", "postgres"):
        from bide.engines.registry import opener

        opener(url)  # names the package that is missing
        from bide.outbox.postgres import PostgresTable

        return PostgresTable(url)
    if parts.scheme == "sqlite":
        from bide.engines.sqlite import file_of
        from bide.outbox.sqlite import SqliteTable

        return SqliteTable(Path(file_of(parts)))
    raise InvalidArgument(
        f"{mask(url)!r} cannot have an outbox: name the database of your program, "
        "postgresql://user@host/shop or sqlite:///shop.db"
    )


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
        self._tries: Counter[int] = Counter()

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
            BideError: the store takes nothing.
        """
        table = self._open_table()
        try:
            with table.lead() as leads:
                while leads and self.forward(table):
                    pass
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
        while not self._stopped.is_set():
            with table.lead() as leads:
                if leads:
                    _log.info("forwarding what is committed to the outbox")
                    self._lead(table)
            self._stopped.wait(AGAIN)

    def _lead(self, table: Table) -> None:
        while not self._stopped.is_set():
            try:
                if not self.forward(table):
                    table.wait(LOOK)
            except BideError as error:
                _log.warning("the store does not take what is in the outbox: %s; waiting", error)
                self._stopped.wait(AGAIN)

    def forward(self, table: Table) -> int:
        """Forward a batch of rows; return how many are done.

        Raises:
            BideError: the store takes nothing now. The rows are still there.
        """
        rows = _distinct(table.read(BATCH))
        if not rows:
            return 0
        refused: dict[int, str] = {}
        commands = _decoded(rows, refused)
        new = [row for row in rows if not row.tried]
        self._put_held(new, commands, refused)
        accepted = [row.number for row in new if row.number not in refused]
        if accepted:
            table.mark(accepted)
        left = [(row, commands[row.number]) for row in rows if row.number not in refused]
        self._finish(left, refused)
        for row in rows:
            self._tries.pop(row.number, None)
            if row.number in refused:
                reason = refused[row.number]
                _log.error("%s: the store refused %s: %s", row.queue, row.id, reason)
                table.bury(row.number, reason)
            else:
                _log.debug("%s: %s is in the store", row.queue, row.id)
        table.delete([row.number for row in rows if row.number not in refused])
        return len(rows)

    def _put_held(
        self, rows: list[Row], commands: dict[int, cmd.Command], refused: dict[int, str]
    ) -> None:
        """Put messages that no worker can have yet."""
        by_target: dict[tuple[str, str], list[tuple[Row, cmd.Put]]] = {}
        for row in rows:
            command = commands.get(row.number)
            if isinstance(command, cmd.Put):
                target = command.queue, command.on_conflict
                by_target.setdefault(target, []).append((row, command))
        for same in by_target.values():
            self._put_some(same, refused)

    def _put_some(self, puts: list[tuple[Row, cmd.Put]], refused: dict[int, str]) -> None:
        """Put messages into one queue with one command; if it fails, one by one."""
        first = puts[0][1]
        items = [
            msgspec.structs.replace(item, at=held_until(row.number))
            for row, command in puts
            for item in command.items
        ]
        (reply,) = self._call([msgspec.structs.replace(first, items=items)])
        if isinstance(reply, BideError):
            if len(puts) == 1:
                refused[puts[0][0].number] = self._refusal(puts[0][0], reply)
                return
            for put in puts:
                self._put_some([put], refused)
            return
        assert isinstance(reply, Outcomes)
        for (row, _), outcome in zip(puts, reply.outcomes, strict=True):
            before = outcome.state == "delayed" and outcome.due == held_until(row.number)
            if not outcome and not before:
                refused[row.number] = str(outcome)

    def _finish(self, marked: Sequence[tuple[Row, cmd.Command]], refused: dict[int, str]) -> None:
        """Give messages their own due times, and carry out what is no put."""
        replies = self._call([_second(row, command) for row, command in marked])
        for (row, command), reply in zip(marked, replies, strict=True):
            if isinstance(reply, BideError):
                refused[row.number] = self._refusal(row, reply)
            elif isinstance(reply, Outcomes) and not isinstance(command, cmd.Put):
                (outcome,) = reply.outcomes
                if not outcome and not row.tried:
                    verb = type(command).__name__.lower()
                    refused[row.number] = f"too late to {verb}: {outcome}"

    def _call(self, commands: Sequence[cmd.Command]) -> list[Reply | BideError]:
        """Have commands carried out together; return a reply or the refusal of each.

        Raises:
            BideError: the store takes nothing now.
        """
        if not commands:
            return []
        if len(commands) == 1:
            try:
                return [self._lane.call(commands[0])]
            except REFUSALS as error:
                return [_refused(error)]

        async def together() -> list[Reply | BaseException]:
            calls = [self._lane.acall(command) for command in commands]
            return await asyncio.gather(*calls, return_exceptions=True)

        replies: list[Reply | BideError] = []
        for reply in asyncio.run(together()):
            if isinstance(reply, REFUSALS):
                replies.append(_refused(reply))
            elif isinstance(reply, BaseException):
                raise reply
            else:
                replies.append(reply)
        return replies

    def _refusal(self, row: Row, error: BideError) -> str:
        """Return why a row is refused, or raise to have it tried again.

        An error of no known cause may pass.
        """
        self._tries[row.number] += 1
        if type(error) is StoreError and self._tries[row.number] < TRIES:
            raise error
        return str(error)


REFUSALS = (InvalidArgument, Unsupported, StoreError)
"""What says that a store will not take a row; of `StoreError` not its subclasses, which say that it
takes nothing now."""


def _refused(error: BideError) -> BideError:
    if isinstance(error, StoreError) and type(error) is not StoreError:
        raise error
    return error


def _decoded(rows: Sequence[Row], refused: dict[int, str]) -> dict[int, cmd.Command]:
    """Return what rows say, by number."""
    commands: dict[int, cmd.Command] = {}
    for row in rows:
        try:
            commands[row.number] = row.command
        except msgspec.MsgspecError as error:
            refused[row.number] = f"this is no command that bide knows: {error}"
    return commands


def _second(row: Row, command: cmd.Command) -> cmd.Command:
    """Return what is done with a row that is marked."""
    if not isinstance(command, cmd.Put):
        return command
    (item,) = command.items
    # Not done: done before the forwarder died, or somebody has changed the message meanwhile.
    return cmd.Reschedule(command.queue, [row.id], item.at, if_due=held_until(row.number))


def _distinct(rows: list[Row]) -> list[Row]:
    """Return the first rows, up to a second one of the same message."""
    seen: set[tuple[str, str]] = set()
    for number, row in enumerate(rows):
        if row.id and (row.queue, row.id) in seen:  # without an id: of the queue, and idempotent
            return rows[:number]
        seen.add((row.queue, row.id))
    return rows


def _is_databases(error: Exception) -> bool:
    """Whether an error is one of the database, which may pass."""
    return isinstance(error, (sqlite3.OperationalError, OSError)) or any(
        kind.__module__.startswith("psycopg") for kind in type(error).__mro__
    )
