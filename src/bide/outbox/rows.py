"""The rows of an outbox, the tables that they are in, and what writes them for the user."""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Literal

import msgspec

from bide.engines.port import DbApi, Guest, RemoteGuest
from bide.model import commands as cmd
from bide.model.errors import (
    AccessDenied,
    InvalidArgument,
    NotEmpty,
    OutcomePending,
    WrongConnection,
)
from bide.model.replies import Outcome, Outcomes, QueueSettings, Reply

TABLES = ("bide_outbox", "bide_outbox_dead", "bide_outbox_name")
"""All tables of an outbox; the last one on SQLite only, where the forwarder makes it."""

CHANNEL = "bide_outbox"
"""On which PostgreSQL notifies the forwarder of a commit."""

CREATE_TABLES = {
    "postgresql": (
        """CREATE TABLE IF NOT EXISTS bide_outbox (
          number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
          queue   text NOT NULL,
          id      text NOT NULL,
          command text NOT NULL  -- JSON
        ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE IF NOT EXISTS bide_outbox_dead (
          number  bigint PRIMARY KEY,
          queue   text NOT NULL,
          id      text NOT NULL,
          command text NOT NULL,
          reason  text NOT NULL,
          died    timestamptz NOT NULL DEFAULT now()
        )""",
    ),
    "sqlite": (
        """CREATE TABLE IF NOT EXISTS bide_outbox (
          number  INTEGER PRIMARY KEY AUTOINCREMENT,
          queue   TEXT NOT NULL,
          id      TEXT NOT NULL,
          command TEXT NOT NULL  -- JSON
        )""",
        """CREATE TABLE IF NOT EXISTS bide_outbox_dead (
          number  INTEGER PRIMARY KEY,
          queue   TEXT NOT NULL,
          id      TEXT NOT NULL,
          command TEXT NOT NULL,
          reason  TEXT NOT NULL,
          died    TEXT NOT NULL DEFAULT (datetime('now'))
        )""",
    ),
}
"""By dialect, as SQLAlchemy calls it: the statements that make the tables where there are none."""


def check_empty(count: Callable[[str], int], give_up: str) -> None:
    """See that no command is lost when the tables of an outbox are dropped.

    Args:
        count: returns the number of rows of a table; 0 if it is not there.
        give_up: how to drop the tables all the same, for the error.

    Raises:
        NotEmpty: a command waits for the forwarder, or was refused by the store.
    """
    for table, state in (
        ("bide_outbox", "wait for bide forward"),
        ("bide_outbox_dead", "were refused"),
    ):
        if number := count(table):
            raise NotEmpty(
                f"{number} commands in {table} {state}; handle them first (bide forward --once), "
                f"or give them up: {give_up}"
            )


_decode: Callable[[str], cmd.Command] = msgspec.json.Decoder(cmd.Command).decode


def name_of(number: int) -> str:
    """Return the beginning of a row's name; it sorts like the number."""
    return f"{number:016x}"


class Row(msgspec.Struct, frozen=True, dict=True):
    """A command on one message."""

    number: int
    """In the order of the commits, among the rows of one id."""
    queue: str
    id: str
    """Of the message; "" for a command on the whole queue."""
    text: str
    """The command as JSON."""

    @property
    def name(self) -> str:
        """The name by which the store remembers the row.

        A database that is restored from a backup, or that loses its last commits, gives numbers a
        second time: the rest of the name says that such a row is another one.
        """
        content = f"{self.queue}\0{self.id}\0{self.text}".encode()
        return f"{name_of(self.number)}-{hashlib.sha256(content).hexdigest()[:16]}"

    @cached_property
    def command(self) -> cmd.Command:
        """What to do. Raises `msgspec.MsgspecError` if it is no command that this bide knows."""
        return _decode(self.text)


class Table(ABC):
    """The outbox of one database, as the forwarder uses it."""

    name: str
    """Identifies the outbox in the store."""

    @abstractmethod
    def run(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement with `?` in place of each value; return its cursor."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Commit the statements of a block together."""

    @abstractmethod
    def lead(self) -> AbstractContextManager[bool]:
        """Try to be the only forwarder while the block runs; yield whether it is."""

    @abstractmethod
    def read(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Return the oldest committed rows: at most so many, and none behind the first 8 MiB.

        Rows of the queues `without` are left out.

        They go to the store in few requests, and a server limits the bytes of a request.
        """

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows that are done, durably: the store forgets them next."""
        if numbers:
            self.run(f"DELETE FROM bide_outbox WHERE number IN ({', '.join(map(str, numbers))})")

    def bury(self, number: int, reason: str) -> None:
        """Move a row to `bide_outbox_dead`."""
        with self.transaction():
            self.run(
                "INSERT INTO bide_outbox_dead (number, queue, id, command, reason)"
                " SELECT number, queue, id, command, ? FROM bide_outbox WHERE number = ?",
                (reason, number),
            )
            self.delete([number])

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until something may have been committed; at most so long."""

    @abstractmethod
    def wake(self) -> None:
        """End a wait, from another thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave the database."""


def outbox(dialect: str) -> Guest:
    """Return what writes the outbox of a database.

    Raises:
        WrongConnection: bide has no outbox for this kind of database.
    """
    if dialect == "postgresql":
        return PostgresOutbox()
    if dialect == "sqlite":
        return SqliteOutbox()
    raise WrongConnection(
        f"the connection given as within= is to {dialect}; an outbox needs PostgreSQL or SQLite"
    )


def timed(commands: Sequence[cmd.Command], now: int | None) -> list[cmd.Command]:
    """Return commands whose due times are fixed: a delay counts from the call.

    Args:
        commands: of the user.
        now: the time in Unix milliseconds; `None`: that of this machine.

    Raises:
        InvalidArgument: one of them cannot wait in an outbox.
    """
    # Rounded up: never early.
    moment = -(-time.time_ns() // 1_000_000) if now is None else now
    timed_commands: list[cmd.Command] = []
    for command in commands:
        match command:
            case cmd.Put():
                if any(item.latest is not None for item in command.items):
                    raise InvalidArgument(
                        "latest= does not go through an outbox: put without within=, after the "
                        "commit"
                    )
                items = [
                    msgspec.structs.replace(item, at=item.due(moment), delay=0)
                    for item in command.items
                ]
                timed_commands.append(msgspec.structs.replace(command, items=items))
            case cmd.Reschedule(at=None):
                at = moment + command.delay
                timed_commands.append(msgspec.structs.replace(command, at=at, delay=0))
            case cmd.Cancel(where=cmd.Where()):
                raise InvalidArgument(
                    "in a transaction, a message of a store elsewhere is cancelled by its id; "
                    "cancel by group, after and before outside of the transaction"
                )
            case cmd.CloseGroup() | cmd.ReopenGroup():
                raise InvalidArgument(
                    "in a transaction, a group is closed and opened only if the store is in the "
                    "same database: close it without within=, after the commit"
                )
            case _:
                timed_commands.append(command)
    return timed_commands


class PendingOutcome(Outcome, frozen=True, gc=False):
    """The outcome of a command that the store has not answered: it waits in an outbox.

    It is neither true nor false: `bool(outcome)` and `outcome.done` raise `OutcomePending`.
    """

    @classmethod
    def of(cls, id: str, due: int | None = None) -> "PendingOutcome":
        """Return the outcome for a message, with its due time if the command sets one."""
        # Nobody can read `done`: see below.
        return cls(id, False, "pending", due)

    @property  # type: ignore[misc]  # to read the field is what must not work
    def done(self) -> bool:
        """Raise `OutcomePending`: only the store knows it."""
        raise OutcomePending(
            f"{self}: the store has not answered, so the outcome is neither true nor false. Read "
            "outcome.state, or look the message up after it was forwarded; to get the store's "
            "answer, call without within="
        )


def pending(command: cmd.Command) -> Reply:
    """Return the reply to a command that waits."""
    match command:
        case cmd.Put():
            return Outcomes([PendingOutcome.of(item.id, item.at) for item in command.items])
        case cmd.Reschedule():
            return Outcomes([PendingOutcome.of(id, command.at) for id in command.ids])
        case cmd.Cancel():
            return Outcomes([PendingOutcome.of(id) for id in command.ids])
    assert isinstance(command, cmd.Configure)
    return QueueSettings(paused=False, keep=command.keep or 0)


def _split(commands: Sequence[cmd.Command]) -> Iterator[tuple[str, str, str]]:
    """Yield commands as rows: queue, id and JSON.

    A put, cancel or reschedule of several messages becomes one row for each. Any other command,
    such as one for a group, is one row with an empty id.
    """
    for command in commands:
        parts: list[tuple[str, cmd.Command]]
        match command:
            case cmd.Put():
                parts = [
                    (item.id, cmd.Put(command.queue, [item], command.on_conflict))
                    for item in command.items
                ]
            case cmd.Cancel() | cmd.Reschedule():
                parts = [(id, msgspec.structs.replace(command, ids=[id])) for id in command.ids]
            case _:
                parts = [("", command)]
        for id, part in parts:
            yield command.queue, id, msgspec.json.encode(part).decode()


class PostgresOutbox(RemoteGuest):
    """Writes rows with one statement, on any driver. One for each call."""

    dialect: Literal["postgresql"] = "postgresql"
    is_open = True
    _commands: list[cmd.Command]
    """What `statement` was made of, for the replies: with fixed due times."""

    def open(self) -> None:
        """Do nothing: the user's connection has all it takes."""

    def statement(
        self, commands: Sequence[cmd.Command], now: int | None, mark: str
    ) -> tuple[str, tuple[str]]:
        """Return the statement and its parameter.

        A transaction that writes about the same message waits for the commit of the other: so
        numbers are in commit order. Settings of a queue have no id: no transaction waits for them.
        """
        self._commands = timed(commands, now)
        statement = f"""
            WITH asked AS MATERIALIZED (
              SELECT value ->> 0 AS queue, value ->> 1 AS id, value ->> 2 AS command, n
              FROM json_array_elements({mark}::text::json) WITH ORDINALITY AS r(value, n)
            ), locked AS MATERIALIZED (
              SELECT pg_advisory_xact_lock(hashtextextended('bide ' || queue || ' ' || id, 0))
              FROM (
                SELECT DISTINCT queue, id FROM asked WHERE id <> '' ORDER BY queue, id
              ) AS sorted
            ), stored AS (
              INSERT INTO bide_outbox (queue, id, command)
              SELECT queue, id, command FROM asked, (SELECT count(*) FROM locked) AS all_locked
              ORDER BY n RETURNING 1
            )
            SELECT count(*)::text FROM stored, pg_notify('{CHANNEL}', '')
        """
        return statement, (msgspec.json.encode(list(_split(self._commands))).decode(),)

    def replies(self, commands: Sequence[cmd.Command], answer: str) -> list[Reply]:
        """Return the replies to what was asked: all is pending."""
        return [pending(command) for command in self._commands]

    def wrong_database(self) -> WrongConnection:
        """Return the error for a database without the tables."""
        return WrongConnection(
            "the database of the connection given as within= has no table bide_outbox, in which "
            "messages for a store elsewhere wait: bide forward creates it"
        )

    def no_access(self, why: str) -> AccessDenied:
        """Return the error for a user of the database who may not write to the table."""
        return AccessDenied(
            f"the user of the connection given as within= may not write to the outbox ({why}): "
            "GRANT INSERT ON bide_outbox TO that user; your transaction has failed"
        )


class SqliteOutbox:
    """Writes rows, and makes their table if it is not there."""

    dialect: Literal["sqlite"] = "sqlite"
    is_open = True

    def open(self) -> None:
        """Do nothing."""

    def execute(
        self, connection: DbApi, commands: Sequence[cmd.Command], now: int | None
    ) -> list[Reply]:
        """Write the rows; a command that is refused begins no transaction."""
        timed_commands = timed(commands, now)
        if connection.begins:
            # At once: a transaction that has only read cannot write if another one has meanwhile.
            connection.execute("BEGIN IMMEDIATE")
        for statement in CREATE_TABLES["sqlite"]:
            connection.execute(statement)
        connection.executemany(
            "INSERT INTO bide_outbox (queue, id, command) VALUES (?, ?, ?)",
            list(_split(timed_commands)),
        )
        return [pending(command) for command in timed_commands]
