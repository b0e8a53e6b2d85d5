"""The library of a connection, and the errors for connections that cannot be used."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from bide.engines.port import Guest, RemoteGuest
from bide.model.errors import BideError, WrongConnection

Kind = Literal[
    "sqlite3", "psycopg", "django", "sqlalchemy", "psycopg-async", "asyncpg", "sqlalchemy-async"
]
"""The library of a connection, and whether it is asynchronous."""

ASYNCHRONOUS = ("psycopg-async", "asyncpg", "sqlalchemy-async")

_TYPES: list[tuple[Kind, str, str]] = [
    ("sqlite3", "sqlite3", "Connection"),
    ("psycopg", "psycopg", "Connection"),
    ("psycopg-async", "psycopg", "AsyncConnection"),
    ("asyncpg", "asyncpg.connection", "Connection"),
    ("asyncpg", "asyncpg.pool", "PoolConnectionProxy"),
    ("sqlalchemy", "sqlalchemy.engine.base", "Connection"),
    ("sqlalchemy", "sqlalchemy.orm.session", "Session"),
    ("sqlalchemy", "sqlalchemy.orm.scoping", "scoped_session"),
    ("sqlalchemy-async", "sqlalchemy.ext.asyncio.engine", "AsyncConnection"),
    ("sqlalchemy-async", "sqlalchemy.ext.asyncio.session", "AsyncSession"),
    ("sqlalchemy-async", "sqlalchemy.ext.asyncio.scoping", "async_scoped_session"),
    ("django", "django.db.backends.base.base", "BaseDatabaseWrapper"),
    ("django", "django.utils.connection", "ConnectionProxy"),
]
"""What connections are instances of: the library, the module and the name of the class."""


def kind_of(connection: object) -> Kind:
    """Return the library of a connection; see `Kind`.

    Raises:
        WrongConnection: it is of none that is known.
    """
    for kind, module, name in _TYPES:
        library = sys.modules.get(module)  # the caller has a connection, so it was imported
        if library is not None and isinstance(connection, getattr(library, name)):
            return kind
    raise WrongConnection(
        f"within= takes a connection of psycopg 3, asyncpg, sqlite3 or Django, or a Session or "
        f"Connection of SQLAlchemy, not {type(connection).__module__}."
        f"{type(connection).__qualname__}"
    )


def kind_for(guest: Guest, connection: object, *, blocks: bool) -> Kind:
    """Return the library of a connection that a guest can use.

    Raises:
        WrongConnection: it is of no library that is known, to another kind of database than the
            store is in, or blocks where it must not, or the other way round.
    """
    kind = kind_of(connection)
    if (kind in ASYNCHRONOUS) == blocks:
        raise WrongConnection(
            f"{type(connection).__name__} is asynchronous: use bide.AsyncQueue, whose methods "
            "are the same, with await"
            if blocks
            else f"{type(connection).__name__} blocks the event loop: use bide.Queue with it, "
            "or an asynchronous connection (psycopg, asyncpg, SQLAlchemy) here"
        )
    if (dialect := dialect_of(connection, kind)) != guest.dialect:
        raise WrongConnection(
            f"the connection given as within= is to {dialect}, and the store is in {guest.dialect}"
        )
    return kind


def dialect_of(connection: Any, kind: Kind | None = None) -> str:
    """Return the kind of database that a connection is to, as SQLAlchemy calls it.

    Args:
        connection: of the user's.
        kind: its library, if that is known.

    Raises:
        WrongConnection: the object is not a connection of a library that bide knows.
    """
    match kind or kind_of(connection):
        case "sqlite3":
            return "sqlite"
        case "django":
            return str(connection.vendor)
        case "sqlalchemy" | "sqlalchemy-async":
            # A session has no dialect; its engine or connection has.
            engine = connection if hasattr(connection, "dialect") else connection.get_bind()
            return str(engine.dialect.name)
    return "postgresql"


def no_transaction(fix: str) -> WrongConnection:
    """Return the error for a connection that would commit each statement."""
    return WrongConnection(
        "the connection given as within= is in autocommit and has no open transaction, so the "
        f"command would be committed alone; open one ({fix}), or put without within="
    )


def closed() -> WrongConnection:
    """Return the error for a connection that is closed."""
    return WrongConnection("the connection given as within= is closed")


def aborted(cause: object = "") -> WrongConnection:
    """Return the error for a transaction that can only be rolled back."""
    why = f" ({str(cause).splitlines()[0]})" if str(cause) else ""
    return WrongConnection(
        f"the transaction of the connection given as within= has failed{why}; roll it back first"
    )


@contextmanager
def clear_errors(guest: RemoteGuest) -> Iterator[None]:
    """Translate errors whose cause is clear into errors of bide.

    The others stay as the driver, SQLAlchemy or Django raises them, for the caller's own handlers.
    """
    try:
        yield
    except BideError:
        raise
    except Exception as error:
        # SQLAlchemy has the error of the driver in `orig`, Django in `__cause__`.
        driver_error: Any = error.__cause__ or getattr(error, "orig", None) or error
        match getattr(driver_error, "sqlstate", None) or getattr(driver_error, "pgcode", None):
            case "25P02":  # the transaction has failed before
                raise aborted() from error
            case "42883" | "3F000" | "42P01":  # no such function, schema or table
                raise guest.wrong_database() from error
            case "42501":  # the user lacks a right
                raise guest.no_access(str(driver_error).splitlines()[0]) from error
        raise
