"""Connections that block: psycopg, sqlite3, Django, SQLAlchemy."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from bide.engines.port import Guest, RemoteGuest
from bide.model.commands import Command
from bide.model.errors import BideError, WrongConnection
from bide.model.replies import Reply
from bide.within.kinds import (
    NO_TRANSACTION,
    Kind,
    aborted,
    check_dialect,
    clear_error,
    closed,
    kind_of,
    tuples,
)

_IDLE, _IN_ERROR = 0, 3
"""Of `psycopg.pq.TransactionStatus`."""


def carry_out(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Carry out commands in the transaction of a connection that blocks.

    Args:
        connection: of the user's; a `Session` of SQLAlchemy counts as one.
        guest: of the store.
        commands: what to do, in this order.
        now: Unix milliseconds to go by; `None`: the store's clock.

    Raises:
        WrongConnection: it belongs to another database, is closed, has failed or has no
            transaction; or it is asynchronous.
        StoreError: nothing was carried out.
    """
    kind = kind_of(connection)
    if kind in ("psycopg-async", "asyncpg", "sqlalchemy-async"):
        raise WrongConnection(
            f"a {type(connection).__name__} is asynchronous: use bide.AsyncQueue, whose methods "
            "are the same, with await"
        )
    check_dialect(guest, connection, kind)
    guest.open()
    try:
        return _ADAPTERS[kind](connection, guest, commands, now)
    except WrongConnection:
        if guest.is_open:
            raise
    guest.open()  # the database was made anew, or the connection's is another
    return _ADAPTERS[kind](connection, guest, commands, now)


def remote_guest(guest: Guest) -> RemoteGuest:
    """Return the guest of a store in PostgreSQL, as one that needs a single statement."""
    assert guest.dialect == "postgresql"
    return cast("RemoteGuest", guest)


class _Cursors:
    """Runs each statement on a cursor of its own."""

    def __init__(self, cursor: Callable[[], Any], *, begins: bool = False) -> None:
        self._cursor = cursor
        self.begins = begins

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = self._cursor()
        cursor.execute(statement, parameters)
        return cursor

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> Any:
        cursor = self._cursor()
        cursor.executemany(statement, parameters)
        return cursor


@contextmanager
def clear_errors(guest: RemoteGuest) -> Iterator[None]:
    """Raise what has a clear meaning as an error of bide, and leave the others as they are."""
    try:
        yield
    except BideError:
        raise
    except Exception as error:
        found = clear_error(error, guest)
        if found is None:
            raise
        raise found from error


def _psycopg(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    remote = remote_guest(guest)
    check_psycopg(connection)
    with clear_errors(remote):
        return guest.execute(_Cursors(lambda: connection.cursor(row_factory=tuples)), commands, now)


def check_psycopg(connection: Any) -> None:
    """See that a connection of psycopg has or begins a transaction.

    Raises:
        WrongConnection: it has none and begins none.
    """
    if connection.closed:
        raise closed()
    status = connection.pgconn.transaction_status
    if status == _IN_ERROR:
        raise aborted()
    if connection.autocommit and status == _IDLE:
        raise WrongConnection(NO_TRANSACTION.format(fix="with connection.transaction():"))


def _sqlite3(
    connection: sqlite3.Connection, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    try:
        begins = _begins(connection, 'execute("BEGIN")')
    except sqlite3.ProgrammingError as error:
        if "closed" in str(error):
            raise closed() from error
        raise

    def cursor() -> sqlite3.Cursor:
        made = connection.cursor()
        made.row_factory = None
        return made

    text, connection.text_factory = connection.text_factory, str
    try:
        return guest.execute(_Cursors(cursor, begins=begins), commands, now)
    finally:
        connection.text_factory = text


def _begins(driver: Any, fix: str) -> bool:
    """Tell whether a transaction of sqlite3 is to be begun, as it does itself at a change.

    Raises:
        WrongConnection: there is none, and it would begin none.
    """
    if driver.in_transaction:
        return False
    # From Python 3.12 on `autocommit` may be True, and then the level says nothing.
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        raise WrongConnection(NO_TRANSACTION.format(fix=fix))
    return True


def _django(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    if connection.needs_rollback:
        raise aborted()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise WrongConnection(NO_TRANSACTION.format(fix="with transaction.atomic():"))
    if connection.vendor == "sqlite":
        connection.cursor().close()  # opens it, and sees that this is its thread
        return _sqlite3(connection.connection, guest, commands, now)
    with clear_errors(remote_guest(guest)):
        return guest.execute(_Cursors(connection.cursor), commands, now)


def carry_out_in_sqlalchemy(
    given: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Carry out commands on a `Session` or `Connection` of SQLAlchemy; see `carry_out`.

    Those of its asyncio extension come here by `run_sync`, where drivers look as if they blocked.
    """
    from sqlalchemy.engine import Connection
    from sqlalchemy.exc import PendingRollbackError

    try:
        connection = given if isinstance(given, Connection) else given.connection()
        if connection.closed:
            raise closed()
        if not connection.in_transaction():
            connection.exec_driver_sql("SELECT 1")  # begins it, by the rules of the engine
        driver = connection.connection.dbapi_connection
        if guest.dialect == "sqlite":
            return _sqlite_in_sqlalchemy(connection, driver, guest, commands, now)
        if getattr(driver, "autocommit", False):
            raise WrongConnection(NO_TRANSACTION.format(fix="without the level AUTOCOMMIT"))
        remote = remote_guest(guest)
        mark = "$1" if connection.dialect.paramstyle == "numeric_dollar" else "%s"
        with clear_errors(remote):
            result = connection.exec_driver_sql(*remote.statement(commands, now, mark))
            return remote.replies(commands, result.scalar_one())
    except PendingRollbackError as error:
        raise aborted(error) from error


def _sqlite_in_sqlalchemy(
    connection: Any, driver: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    if isinstance(driver, sqlite3.Connection):
        return _sqlite3(driver, guest, commands, now)
    begins = _begins(connection.connection.driver_connection, "without the level AUTOCOMMIT")
    return guest.execute(_Cursors(driver.cursor, begins=begins), commands, now)


_Adapter = Callable[[Any, Guest, Sequence[Command], int | None], list[Reply]]

_ADAPTERS: dict[Kind, _Adapter] = {
    "psycopg": _psycopg,
    "sqlite3": _sqlite3,
    "django": _django,
    "sqlalchemy": carry_out_in_sqlalchemy,
}
