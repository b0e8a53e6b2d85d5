"""What the server's errors mean to a caller: the cause and the fix."""

import psycopg
from msgspec import MsgspecError
from psycopg import errors

from bide.model.errors import (
    AccessDenied,
    BideError,
    InvalidArgument,
    NotAStore,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

RETRIED = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
"""The server undid a transaction because of another: the same again may succeed."""

CHANGED = (
    errors.UndefinedFunction,
    errors.FeatureNotSupported,
    errors.InvalidSchemaName,
    errors.UndefinedTable,
)
"""The schema has changed: a newer bide upgraded it, or it was changed or dropped by hand."""

_BY_HAND = (
    "a table of the schema is missing or was replaced: it was changed by hand, or restored in part"
)

_UNREADABLE = (
    "the row of a message cannot be read: something else has written to bide's tables. Nothing was "
    "changed; look with bide scan, and export what is there"
)

_DAMAGED = (
    "the server says that its files are damaged. Stop it and copy its folder; then restore a "
    "backup, or see pg_amcheck"
)

_MEANINGS: dict[str, tuple[type[BideError], str]] = {
    "55P03": (
        StoreBusy,
        "a message or a group is being changed in an open transaction of another client; nothing "
        "was changed. Try again when that has ended",
    ),
    "53100": (
        StoreFull,
        "the server's disk is full; what was asked was not done, what was confirmed before is "
        "safe. Free some space",
    ),
    "53200": (StoreFull, "the server is out of memory; what was asked was not done"),
    "53300": (
        StoreUnavailable,
        "the server takes no more connections: raise max_connections, or put PgBouncer in front of "
        "it",
    ),
    "25006": (
        StoreReadOnly,
        "this server is a standby, or read-only: name the primary in the URL, or several hosts "
        "with target_session_attrs=read-write",
    ),
    "42501": (
        AccessDenied,
        "this user may not do that: connect once as a user who may create the schema; then SELECT "
        "bide.allow('name') lets the other call its functions",
    ),
    "42883": (
        NotAStore,
        "a function of the schema is missing: it was changed by hand, or restored in part",
    ),
    "42P01": (NotAStore, _BY_HAND),
    "42703": (NotAStore, _BY_HAND),
    "22P02": (StoreCorrupt, _UNREADABLE),
    "22P05": (
        InvalidArgument,
        "the database's encoding lacks a character of an id, group or name: nothing was changed. "
        "Use a database with the encoding UTF8",
    ),
    "XX001": (StoreCorrupt, _DAMAGED),
    "XX002": (StoreCorrupt, _DAMAGED),
    "3D000": (StoreUnavailable, "the server has no such database: create it with createdb"),
    "28P01": (StoreUnavailable, "the server refused the password"),
    "28000": (
        StoreUnavailable,
        "the server refused this user: create it (createuser), or see the server's pg_hba.conf",
    ),
    "57P03": (StoreUnavailable, "the server is starting or stopping: try again"),
    "no primary": (
        StoreUnavailable,
        "no server that answers takes changes: the primary is away, and no standby is promoted; or "
        "target_session_attrs asks for another kind of server",
    ),
}
"""By the server's code (SQLSTATE): the error that a caller gets, and its text. The code "no
primary" is bide's own."""


_CODES_OF_REFUSALS = {
    'FATAL:  role "': "28000",
    "does not exist": "3D000",
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    "pg_hba.conf": "28000",
    "too many clients": "53300",
    "too many connections for": "53300",
    "remaining connection slots": "53300",
    "starting up": "57P03",
    "shutting down": "57P03",
    "in recovery mode": "57P03",
    "yet accepting connections": "57P03",
    "not accepting connections": "57P03",
    "session is read-only": "no primary",
    "server is in hot standby mode": "no primary",
}
"""By what a server says that refuses a connection: the code, since psycopg brings the text alone.
The first text that occurs counts."""


LASTING_CODES = ("28000", "28P01", "3D000")
"""Refusals of a user, password or database: waiting does not help, and the server logs each."""


def _code(error: psycopg.Error) -> str | None:
    """Return the code of an error, also of a refused connection; `None`: it is not known."""
    if error.sqlstate is not None:
        return error.sqlstate
    text = str(error)
    return next((code for words, code in _CODES_OF_REFUSALS.items() if words in text), None)


def first_line(error: Exception) -> str:
    """Return what an error says, without the statement and the advice that are below it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def translate(error: psycopg.Error | MsgspecError, shown: str, *, sent: bool) -> BideError:
    """Return the error that a caller gets.

    Args:
        error: what psycopg raised, or msgspec at what it returned.
        shown: the host and database, without a password.
        sent: whether commands were on their way, so that they may have been carried out.
    """
    if isinstance(error, MsgspecError):
        return StoreCorrupt(f"{shown}: {_UNREADABLE} ({error})")
    code = error.sqlstate if sent else _code(error)  # texts count only of refused connections
    text = first_line(error)
    if code in _MEANINGS:
        error_type, meaning = _MEANINGS[code]
        translated = error_type(f"{shown}: {meaning} ({text})")
        if isinstance(translated, StoreUnavailable):
            translated.lasts = code in LASTING_CODES
        return translated
    is_of_connection = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    # Classes of codes: 08 is a lost connection, 57P a server that stops.
    if is_of_connection and (code is None or code.startswith(("08", "57P"))):
        if sent:
            return OutcomeUnknown(
                f"the connection to {shown} was lost after the commands were sent ({text}): they "
                "may have been carried out or not"
            )
        return StoreUnavailable(
            f"{shown} cannot be reached ({text}); is the server running, is the address right, "
            "does a firewall block it?"
        )
    return StoreError(f"{shown}: PostgreSQL refused the command: {text}")
