"""Commands on a store elsewhere: rows in the user's own transaction."""

import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from bide.engines.port import DbApi, Guest, RemoteGuest
from bide.model import commands as cmd
from bide.model.errors import AccessDenied, InvalidArgument, WrongConnection
from bide.model.replies import Outcome, Outcomes, Reply, Settings
from bide.outbox.rows import CHANNEL, SQLITE_TABLES, split


def outbox(dialect: str) -> Guest:
    """Return what writes the outbox of a database.

    Raises:
        WrongConnection: it cannot have one.
    """
    if dialect == "postgresql":
        return PostgresOutbox()
    if dialect == "sqlite":
        return SqliteOutbox()
    raise WrongConnection(
        f"the connection given as within= is to {dialect}; an outbox is in PostgreSQL or SQLite"
    )


def timed(commands: Sequence[cmd.Command], now: int | None) -> list[cmd.Command]:
    """Return commands whose due times are fixed: a delay counts from the call."""
    moment = -(-time.time_ns() // 1_000_000) if now is None else now
    found: list[cmd.Command] = []
    for command in commands:
        match command:
            case cmd.Put():
                if any(item.latest is not None for item in command.items):
                    raise InvalidArgument(
                        "latest= does not go through an outbox: put without within=, after the "
                        "commit"
                    )
                items = [
                    msgspec.structs.replace(
                        item, at=moment + item.delay if item.at is None else item.at, delay=0
                    )
                    for item in command.items
                ]
                found.append(msgspec.structs.replace(command, items=items))
            case cmd.Reschedule(at=None):
                at = moment + command.delay
                found.append(msgspec.structs.replace(command, at=at, delay=0))
            case cmd.Cancel(where=cmd.Where()):
                raise InvalidArgument(
                    "in a transaction, a message of a store elsewhere is cancelled by its id; "
                    "cancel by group, after and before without within="
                )
            case _:
                found.append(command)
    return found


def pending(command: cmd.Command) -> Reply:
    """Return the reply to a command that waits."""
    match command:
        case cmd.Put():
            return Outcomes([Outcome(i.id, True, "pending", i.at) for i in command.items])
        case cmd.Reschedule():
            return Outcomes([Outcome(id, True, "pending", command.at) for id in command.ids])
        case cmd.Cancel():
            return Outcomes([Outcome(id, True, "pending") for id in command.ids])
    assert isinstance(command, cmd.Configure)
    return Settings(False, command.keep or 0)


class PostgresOutbox(RemoteGuest):
    """Writes rows with one statement, on any driver. One for each call."""

    dialect: Literal["postgresql"] = "postgresql"
    is_open = True
    _asked: list[cmd.Command]

    def open(self) -> None:
        """Do nothing: the user's connection has all it takes."""

    def statement(
        self, commands: Sequence[cmd.Command], now: int | None, mark: str
    ) -> tuple[str, tuple[str]]:
        """Return the statement and its parameter.

        Who writes of the same message waits for the other's commit: so numbers are in the order of
        the commits. Settings of a queue have no id and no order: nobody waits for them.
        """
        self._asked = timed(commands, now)
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
        return statement, (msgspec.json.encode(list(split(self._asked))).decode(),)

    def replies(self, commands: Sequence[cmd.Command], answer: str) -> list[Reply]:
        """Return the replies to what was asked: all is pending."""
        return [pending(command) for command in self._asked]

    def wrong_database(self) -> WrongConnection:
        """Return the error for a database without the tables."""
        return WrongConnection(
            "the database of the connection given as within= has no table bide_outbox, in which "
            "messages for a store elsewhere wait: bide forward makes it"
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
        """Write the rows."""
        if connection.begins:
            connection.execute("BEGIN IMMEDIATE")
        for table in SQLITE_TABLES:
            connection.execute(table)
        fixed = timed(commands, now)
        connection.executemany(
            "INSERT INTO bide_outbox (queue, id, command) VALUES (?, ?, ?)", list(split(fixed))
        )
        return [pending(command) for command in fixed]
