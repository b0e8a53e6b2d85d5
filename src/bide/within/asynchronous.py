"""Connections for event loops: psycopg, asyncpg, SQLAlchemy."""

import asyncio
from collections.abc import Sequence
from typing import Any

from bide.engines.port import Guest
from bide.model.commands import Command
from bide.model.errors import WrongConnection
from bide.model.replies import Reply
from bide.within.blocking import (
    carry_out_in_sqlalchemy,
    check_psycopg,
    clear_errors,
    remote_guest,
)
from bide.within.kinds import NO_TRANSACTION, Kind, check_dialect, closed, kind_of, tuples


async def acarry_out(
    connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    """Async form of `carry_out`."""
    kind = kind_of(connection)
    if kind not in ("psycopg-async", "asyncpg", "sqlalchemy-async"):
        raise WrongConnection(
            f"a {type(connection).__name__} blocks the event loop: use bide.Queue with it, or an "
            "asynchronous connection (psycopg, asyncpg, SQLAlchemy) here"
        )
    check_dialect(guest, connection, kind)
    try:
        return await _carry_out(kind, connection, guest, commands, now)
    except WrongConnection:
        if guest.is_open:
            raise
    return await _carry_out(kind, connection, guest, commands, now)


async def _carry_out(
    kind: Kind, connection: Any, guest: Guest, commands: Sequence[Command], now: int | None
) -> list[Reply]:
    if not guest.is_open:
        await asyncio.to_thread(guest.open)
    if kind == "sqlalchemy-async":
        replies: list[Reply] = await connection.run_sync(
            carry_out_in_sqlalchemy, guest, commands, now
        )
        return replies
    remote = remote_guest(guest)
    with clear_errors(remote):
        if kind == "asyncpg":
            answer = await _asyncpg(connection, *remote.statement(commands, now, "$1"))
        else:
            answer = await _psycopg(connection, *remote.statement(commands, now, "%s"))
        return remote.replies(commands, answer)


async def _psycopg(connection: Any, statement: str, asked: tuple[Any, ...]) -> str:
    check_psycopg(connection)
    async with connection.cursor(row_factory=tuples) as cursor:
        await cursor.execute(statement, asked)
        (answer,) = await cursor.fetchone()
    return str(answer)


async def _asyncpg(connection: Any, statement: str, asked: tuple[Any, ...]) -> str:
    from asyncpg import InterfaceError

    try:
        gone = connection.is_closed()
    except InterfaceError as error:  # given back to its pool
        raise closed() from error
    if gone:
        raise closed()
    if not connection.is_in_transaction():
        raise WrongConnection(NO_TRANSACTION.format(fix="async with connection.transaction():"))
    return str(await connection.fetchval(statement, *asked))
