"""Commands on connections of the user's: an adapter for each library."""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from bide.engines.port import Guest, RemoteGuest
from bide.model.commands import Command
from bide.model.errors import WrongConnection
from bide.model.replies import Reply
from bide.threads import in_thread
from bide.within.libraries import Kind, aborted, clear_errors, closed, kind_for, no_transaction

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
        now: the time in Unix milliseconds; `None`: the store's clock.

    Raises:
        WrongConnection: it belongs to another database, is closed, has failed or has no
            transaction; or it is asynchronous.
        StoreError: nothing was carried out.
    """
    adapter = _BLOCKING[kind_for(guest, connection, blocks=True)]
    guest.open()
    try:
        return adapter(connection, guest, commands, now)
    except WrongConnection:
        if guest.is_open:
            raise
    # The guest has closed itself: the database was created again since it was opened, or the
    # connection has another one. Opened again, it works, or the error is the user's.
    guest.open()
    return adapter(connection, guest, commands, now)


async def acarry_out(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Async form of `carry_out`."""
    adapter = _ASYNCHRONOUS[kind_for(guest, connection, blocks=False)]
    if not guest.is_open:
        await in_thread(guest.open)  # it may wait for the disk or the network
    try:
        return await adapter(connection, guest, commands, now)
    except WrongConnection:
        if guest.is_open:
            raise
    # The guest has closed itself: see `carry_out`.
    await in_thread(guest.open)
    return await adapter(connection, guest, commands, now)


def _remote(guest: Guest) -> RemoteGuest:
    """Return the guest of a store in PostgreSQL, as one that needs a single statement."""
    assert guest.dialect == "postgresql"
    return cast("RemoteGuest", guest)


def _tuples(cursor: object) -> type[tuple[Any, ...]]:
    """Make rows of psycopg tuples: by the connection's settings they may be something else."""
    return tuple


class _Cursors:
    """Runs each statement on a new cursor, as a guest needs it (`DbApi`).

    Args:
        make_cursor: makes it.
        begins: whether the guest has to begin the transaction.
    """

    def __init__(self, make_cursor: Callable[[], Any], *, begins: bool = False) -> None:
        self._make_cursor = make_cursor
        self.begins = begins

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = self._make_cursor()
        cursor.execute(statement, parameters)
        return cursor

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> Any:
        cursor = self._make_cursor()
        cursor.executemany(statement, parameters)
        return cursor


# An adapter for each `Kind`, with the arguments and errors of `carry_out`.


def _psycopg(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    _check_psycopg(connection)
    with clear_errors(_remote(guest)):
        cursors = _Cursors(lambda: connection.cursor(row_factory=_tuples))
        return guest.execute(cursors, commands, now)


async def _apsycopg(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    _check_psycopg(connection)
    remote = _remote(guest)
    with clear_errors(remote):
        async with connection.cursor(row_factory=_tuples) as cursor:
            await cursor.execute(*remote.statement(commands, now, "%s"))
            (answer,) = await cursor.fetchone()
        return remote.replies(commands, answer)


def _check_psycopg(connection: Any) -> None:
    """Check that a connection of psycopg has a transaction, or begins one.

    Raises:
        WrongConnection: it has none, is closed, or its transaction has failed.
    """
    if connection.closed:
        raise closed()
    status = connection.pgconn.transaction_status
    if status == _IN_ERROR:
        raise aborted()
    if connection.autocommit and status == _IDLE:
        raise no_transaction("with connection.transaction():")


async def _asyncpg(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Execute commands in the open transaction of a connection of asyncpg."""
    from asyncpg import InterfaceError

    try:
        is_closed = connection.is_closed()
    except InterfaceError as error:  # given back to its pool
        raise closed() from error
    if is_closed:
        raise closed()
    if not connection.is_in_transaction():
        raise no_transaction("async with connection.transaction():")
    remote = _remote(guest)
    with clear_errors(remote):
        statement, values = remote.statement(commands, now, "$1")
        return remote.replies(commands, await connection.fetchval(statement, *values))


def _sqlite3(
    connection: sqlite3.Connection, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Execute commands in the transaction of a connection of sqlite3, begun here if need be.

    The user's factories of rows and texts are put aside meanwhile.
    """
    try:
        begins = _begins(connection, 'execute("BEGIN")')
    except sqlite3.ProgrammingError as error:
        if "closed" in str(error):  # else it is used in another thread than its own
            raise closed() from error
        raise

    def make_cursor() -> sqlite3.Cursor:
        cursor = connection.cursor()
        cursor.row_factory = None  # tuples, whatever the user's connection makes
        return cursor

    users_text_factory, connection.text_factory = connection.text_factory, str
    try:
        return guest.execute(_Cursors(make_cursor, begins=begins), commands, now)
    finally:
        connection.text_factory = users_text_factory


def _begins(driver: Any, fix: str) -> bool:
    """Return whether bide must begin the transaction, as the driver does before a change.

    Raises:
        WrongConnection: no transaction is open, and the driver is set to begin none.
    """
    if driver.in_transaction:
        return False
    # The driver begins one unless the level is `None`. From Python 3.12 on `autocommit` may be
    # True, and then the level says nothing.
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        raise no_transaction(fix)
    return True


def _django(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Execute commands in a block of `atomic`, or where the user has switched autocommit off."""
    if connection.needs_rollback:  # a block within it has failed
        raise aborted()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise no_transaction("with transaction.atomic():")
    if connection.vendor == "sqlite":
        connection.cursor().close()  # opens it, and raises in another thread than its own
        return _sqlite3(connection.connection, guest, commands, now)
    with clear_errors(_remote(guest)):
        return guest.execute(_Cursors(connection.cursor), commands, now)


def _sqlalchemy(
    connection_or_session: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Execute commands in the transaction of a connection or session of SQLAlchemy.

    SQLAlchemy begins it at the first statement. With SQLite the commands run on the connection of
    the driver; with PostgreSQL they are one statement of SQLAlchemy.
    """
    from sqlalchemy.engine import Connection
    from sqlalchemy.exc import PendingRollbackError

    try:
        if isinstance(connection_or_session, Connection):
            connection = connection_or_session
        else:
            connection = connection_or_session.connection()
        if connection.closed:
            raise closed()
        if not connection.in_transaction():
            connection.exec_driver_sql("SELECT 1")  # begins it, by the rules of the engine
        driver: Any = connection.connection.dbapi_connection
        if guest.dialect == "sqlite":
            if isinstance(driver, sqlite3.Connection):
                return _sqlite3(driver, guest, commands, now)
            # `driver` is SQLAlchemy's adapter around an asynchronous driver, and only the latter
            # knows of the transaction.
            wrapped_driver = connection.connection.driver_connection
            begins = _begins(wrapped_driver, "without the level AUTOCOMMIT")
            return guest.execute(_Cursors(driver.cursor, begins=begins), commands, now)
        if getattr(driver, "autocommit", False):
            raise no_transaction("without the level AUTOCOMMIT")
        remote = _remote(guest)
        placeholder = "$1" if connection.dialect.paramstyle == "numeric_dollar" else "%s"
        with clear_errors(remote):
            result = connection.exec_driver_sql(*remote.statement(commands, now, placeholder))
            return remote.replies(commands, result.scalar_one())
    except PendingRollbackError as error:
        raise aborted(error) from error


async def _asqlalchemy(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Carry out commands in a greenlet, where SQLAlchemy's drivers seem to block."""
    if not hasattr(connection, "run_sync"):
        connection = connection()  # the session of an async_scoped_session
    return cast("list[Reply]", await connection.run_sync(_sqlalchemy, guest, commands, now))


_BLOCKING: dict[Kind, Callable[..., list[Reply]]] = {
    "psycopg": _psycopg,
    "sqlite3": _sqlite3,
    "django": _django,
    "sqlalchemy": _sqlalchemy,
}

_ASYNCHRONOUS: dict[Kind, Callable[..., Awaitable[list[Reply]]]] = {
    "psycopg-async": _apsycopg,
    "asyncpg": _asyncpg,
    "sqlalchemy-async": _asqlalchemy,
}
