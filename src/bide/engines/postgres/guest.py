"""The queue in the user's own transaction: one call, on whatever connection."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import SplitResult

import msgspec
import psycopg

from bide.engines.port import RemoteGuest
from bide.engines.postgres.arrays import ascii_json
from bide.engines.postgres.calls import change_outcomes
from bide.engines.postgres.faults import translate
from bide.engines.postgres.putting import put_outcomes
from bide.engines.postgres.schema import prepare
from bide.engines.postgres.settings import PostgresSettings, read_url
from bide.model import commands as cmd
from bide.model.errors import AccessDenied, StoreBusy, WrongConnection
from bide.model.message import REASON_LENGTH, Item
from bide.model.replies import (
    Affected,
    ClosedGroup,
    GroupsClosed,
    Outcome,
    Outcomes,
    QueueSettings,
    Reply,
)
from bide.model.times import LIMITS


def from_url(parts: SplitResult) -> "PostgresGuest":
    """Return the guest of the store at a URL.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    return PostgresGuest(read_url(parts))


class _Row(msgspec.Struct, kw_only=True):
    """A row in the answer of a command: of `_put`, `_change` or `_delete_where` in the schema."""

    number: int = 0
    done: bool = False
    state: int | None = None
    due: int | None = None
    until: int | None = None
    holder: str | None = None
    successor: int | None = None
    count: int = 0
    more: bool = False
    stopping: list[str] = []


class _Refused(msgspec.Struct):
    """The answer if nothing was carried out."""

    refused: str
    """"database", "access" or "busy"."""
    why: str = ""


_decode_answer = msgspec.json.Decoder(list[list[_Row]] | _Refused).decode
"""Decodes the rows of each command, or that they were refused."""

_PUT_TYPES = (
    "text",
    "bigint",
    "text",
    "text",
    "boolean",
    "bytea",
    "bigint",
    "bigint",
    "bigint",
    "bigint",
    "bigint",
    "text",
    "text",
)
"""The types of what `_within_put` takes."""

_SETTLE_TYPES = ("text", "bigint", "text", "text", "text", "bigint", "bigint", "text", "text")
"""The types of what `_within_settle` takes."""

_RENEW_TYPES = (*_SETTLE_TYPES, "bigint", "text", "text")
"""The same of a renew."""


class PostgresGuest(RemoteGuest):
    """Carries out commands on connections of the user's. See `bide.engines.port.Guest`."""

    dialect: Literal["postgresql"] = "postgresql"

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._schema = settings.identifier.as_string()
        """Quoted."""
        self._database: str | None = None
        """What identifies the store's database among all copies of it; `None` before `open`."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the database is known."""
        return self._is_open

    def open(self) -> None:
        """Learn which database the store is in; make the store if there is none."""
        if not self._is_open:
            with self._settings.connect() as connection:
                try:
                    prepare(connection, self._settings.schema)
                    row = connection.execute(f"SELECT {self._function('_database')}()".encode())
                    ((self._database,),) = row.fetchall()
                except psycopg.Error as error:
                    raise translate(error, self._settings.shown, sent=False) from error
            self._is_open = True

    def statement(
        self, commands: Sequence[cmd.Command], now: int | None, mark: str
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that carries out commands, and its parameters.

        A lone put, ack, renew, retry or bury, as most calls are, has a function of its own. Other
        commands are one parameter, as JSON.

        Args:
            commands: in their order.
            now: Unix milliseconds to go by; `None`: the server's clock.
            mark: of a parameter, as the driver takes it: "%s", or "$1" for numbered ones.
        """
        match commands:
            case [cmd.Ack() | cmd.RetryCommand() | cmd.BuryCommand() as command]:
                values = (self._database, now, *_settling(command))
                return _call(self._function("_within_settle"), _SETTLE_TYPES, mark), values
            case [cmd.Renew(next=[following], how=how) as command]:
                run = (None, None) if following is None else (following.due, following.run)
                values = (self._database, now, *_settling(command), *run, how)
                return _call(self._function("_within_settle"), _RENEW_TYPES, mark), values
            case [cmd.Put(on_conflict="keep", if_version=None, queue=queue, items=[item])] if (
                item.rule is None
            ):
                headers = None if item.headers is None else _text(item.headers)
                values = (
                    self._database,
                    now,
                    queue,
                    item.id,
                    item.json,
                    item.data,
                    item.at,
                    item.delay,
                    item.priority,
                    item.attempts,
                    item.expires,
                    item.group,
                    headers,
                )
                return _call(self._function("_within_put"), _PUT_TYPES, mark), values
        fields = [_fields(command) for command in commands]
        request = {"database": self._database, "now": now, "commands": fields}
        return _call(self._function("_within"), ("text::json",), mark), (_text(request),)

    def replies(self, commands: Sequence[cmd.Command], answer: str) -> list[Reply]:
        """Return the replies in an answer of the statement.

        Raises:
            WrongConnection: the connection belongs to another database.
            StoreBusy: another transaction is changing the same messages.
            AccessDenied: the connection's user may not use the queue.
        """
        rows_of_commands = _decode_answer(answer)
        if isinstance(rows_of_commands, _Refused):
            raise self._error(rows_of_commands)
        return [
            _reply(command, rows) for command, rows in zip(commands, rows_of_commands, strict=True)
        ]

    def wrong_database(self) -> WrongConnection:
        """Return the error for a connection to a database that has no store."""
        return WrongConnection(
            f"the connection given as within= is not to the database of the store "
            f"({self._settings.shown}, schema {self._settings.schema!r}); give a connection to "
            "that database, or put without within="
        )

    def no_access(self, why: str) -> AccessDenied:
        """Return the error for a user of the database who may not call the function."""
        return AccessDenied(
            f"the user of the connection given as within= may not use the queue ({why}): "
            f"{self._allow()}; your transaction has failed"
        )

    def _allow(self) -> str:
        """Return how a user gets access, as part of an error's text."""
        return f"SELECT {self._settings.schema}.allow(role, queues) lets them"

    def _error(self, refusal: _Refused) -> Exception:
        """Return the error for what the function refused."""
        match refusal.refused:
            case "database":
                # The store's database may have been created again: then the caller opens the guest
                # again, and so learns its new name. Until then the old name stays: another thread
                # may be about to send it, and without a name no database is refused.
                self._is_open = False
                return self.wrong_database()
            case "access":
                return AccessDenied(f"{refusal.why}: {self._allow()}")
        return StoreBusy(
            "another open transaction is changing the same message, or made the queue; nothing "
            "was changed. Your transaction goes on: try again, or roll it back"
        )

    def _function(self, name: str) -> str:
        """Return the qualified name of a function of the schema."""
        return f"{self._schema}.{name}"


@lru_cache(64)
def _call(function: str, types: tuple[str, ...], mark: str) -> str:
    """Return the statement that calls a function.

    Args:
        function: its qualified name.
        types: of its arguments.
        mark: as for `PostgresGuest.statement`.
    """
    is_numbered = mark.startswith("$")
    arguments: list[str] = []
    for number, type_name in enumerate(types, 1):
        own_mark = f"${number}" if is_numbered else mark
        arguments.append(f"{own_mark}::{type_name}")
    # Drivers with marks such as %s take "%%" for a percent sign in the name of a schema.
    name = function if is_numbered else function.replace("%", "%%")
    return f"SELECT {name}({', '.join(arguments)})::text"


def _settling(
    command: cmd.Ack | cmd.Renew | cmd.RetryCommand | cmd.BuryCommand,
) -> tuple[Any, ...]:
    """Return arguments of `_within_settle`, for a command with one lease: from verb to result."""
    (lease,) = command.leases
    delay, reason, result = 0, "", None
    match command:
        case cmd.Ack(results=results) | cmd.Renew(results=results):
            verb = "ack" if isinstance(command, cmd.Ack) else "renew"
            result = results[0] if results else None
        case cmd.RetryCommand():
            verb, delay, reason = "retry", command.delay, command.reason
        case cmd.BuryCommand():
            verb, reason = "bury", command.reason
    return (
        verb,
        command.queue,
        lease.id,
        lease.token,
        delay,
        ascii_json(_text(reason[:REASON_LENGTH])),
        None if result is None else ascii_json(result.decode()),
    )


def _text(value: object) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()


_COMMAND_FIELDS = {
    "ids": "ids",
    "if_due": "if_due",
    "actor": "actor",
    "new_due": "at",
    "new_delay": "delay",
    "keep": "keep",
    "history": "history",
    "result_ttl": "result_ttl",
    "overdue": "overdue",
}
"""By the name in the type `_asked` of the schema: which field of a command it is."""


def _fields(command: cmd.Command) -> dict[str, Any]:
    """Return the fields of a command as the type `_asked` has them; what it has not is left out."""
    fields = {
        asked_name: getattr(command, name, None) for asked_name, name in _COMMAND_FIELDS.items()
    }
    match command:
        case cmd.Put(on_conflict="keep" | "replace", if_version=None, items=items):
            fields |= _columns(items)
            fields["verb"] = command.on_conflict
            # The first of them tells when a waiting claim has to be woken.
            times = (item.at for item in items if item.at is not None)
            fields["new_due"] = min(times, default=None)
            delays = (item.delay for item in items if item.at is None)
            fields["new_delay"] = min(delays, default=None)
        case cmd.Cancel(where=None, if_version=None):
            fields["verb"] = "stop" if command.running else "cancel"
        case cmd.Cancel(dry_run=False, where=cmd.Where() as where):
            fields |= {
                "verb": "stop_where" if command.running else "cancel_where",
                "of_group": where.group,
                "after": where.after,
                "before": where.before,
            }
        case cmd.Reschedule(if_version=None):
            fields["verb"] = "reschedule"
        case cmd.CloseGroup(group=group) | cmd.ReopenGroup(group=group):
            fields |= {"verb": command.__struct_config__.tag, "of_group": group}
        case cmd.Configure(paused=None):
            fields |= {"verb": "configure", "limits": [getattr(command, name) for name in LIMITS]}
        case _:
            raise AssertionError(f"not within a transaction: {command!r}")
    return {
        "queue": command.queue,
        **{name: value for name, value in fields.items() if value is not None},
    }


def _columns(items: Sequence[Item]) -> dict[str, Any]:
    """Return items as arrays by the names in `_asked`, without those in which all have the default.

    That is 0 for a delay and a priority, and else nothing.
    """
    columns: dict[str, Any] = {
        "ids": [item.id for item in items],
        "is_json": [item.json for item in items],
        "data": [f"\\x{item.data.hex()}" for item in items],
        "at": [item.at for item in items],
        "delay": [item.delay for item in items],
        "priority": [item.priority for item in items],
        "attempts": [item.attempts for item in items],
        "expires": [item.expires for item in items],
        "groups": [item.group for item in items],
        "headers": [None if item.headers is None else _text(item.headers) for item in items],
        "latest": [item.latest for item in items],
        "rules": [item.rule for item in items],
        "runs": [item.run for item in items],
    }
    defaults = {"delay": 0, "priority": 0}
    return {
        name: values
        for name, values in columns.items()
        if values.count(defaults.get(name)) < len(values)
    }


def _reply(command: cmd.Command, rows: list[_Row]) -> Reply:
    """Return the reply to a command, of the rows that are the answer."""
    if isinstance(command, cmd.Put):
        return Outcomes(put_outcomes(command.items, rows))
    if isinstance(command, cmd.Configure):
        return QueueSettings(paused=False, keep=command.keep or 0)  # nobody reads it
    if isinstance(command, cmd.Cancel) and command.where is not None:
        return Affected(rows[0].count, rows[0].more, rows[0].stopping)
    if isinstance(command, (cmd.CloseGroup, cmd.ReopenGroup)):
        until = rows[0].until
        return GroupsClosed([] if until is None else [ClosedGroup(until, command.group)])
    if isinstance(command, (cmd.Ack, cmd.Renew, cmd.RetryCommand, cmd.BuryCommand)):
        ids = [lease.id for lease in command.leases]
        if isinstance(command, cmd.Ack) and not rows:  # as the function answers if all is done
            return Outcomes([Outcome(id, True) for id in ids])
        return change_outcomes(ids, rows)
    assert isinstance(command, (cmd.Cancel, cmd.Reschedule))
    return change_outcomes(command.ids, rows)
