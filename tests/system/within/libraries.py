"""Connections of every library that `within=` takes, each behind the same few methods."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

__all__ = ["ASYNCHRONOUS", "BLOCKING", "AsyncUser", "User", "later"]

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
)
django.setup()


class User:
    """A program with a transaction, and the table `orders` of the same database."""

    within: Any

    def __init__(self, url: str) -> None:
        """Connect to the database in which the store at a URL is."""

    def run(self, statement: str) -> None: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def file_of(url: str) -> str:
    return "/" + url.partition("?")[0].removeprefix("sqlite:////")


def folder_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["host"][0]


def libpq(url: str) -> str:
    """Return a URL without the options that are bide's."""
    return f"postgresql://bide@/postgres?host={folder_of(url)}"


class Sqlite3(User):
    def __init__(self, url: str) -> None:
        self.within = sqlite3.connect(file_of(url), isolation_level="DEFERRED")
        self.within.row_factory = lambda cursor, row: {"row": row}  # whatever they use themselves
        self.within.text_factory = bytes
        self.commit, self.rollback = self.within.commit, self.within.rollback  # type: ignore[method-assign]
        self.close = self.within.close  # type: ignore[method-assign]

    def run(self, statement: str) -> None:
        self.within.execute(statement)


class Psycopg(User):
    def __init__(self, url: str) -> None:
        self.within = psycopg.connect(libpq(url), row_factory=psycopg.rows.dict_row)
        self.commit, self.rollback = self.within.commit, self.within.rollback  # type: ignore[method-assign]
        self.close = self.within.close  # type: ignore[method-assign]

    def run(self, statement: str) -> None:
        self.within.execute(statement.encode())


def sqlalchemy_url(url: str, driver: str) -> str:
    if url.startswith("sqlite"):
        return f"sqlite{driver}:///{file_of(url)}"
    return f"postgresql{driver}://bide@/postgres?host={folder_of(url)}"


class SqlAlchemySession(User):
    def __init__(self, url: str) -> None:
        driver = "" if url.startswith("sqlite") else "+psycopg"
        self.engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        self.within = self.made()
        self.commit, self.rollback = self.within.commit, self.within.rollback  # type: ignore[method-assign]

    def made(self) -> Any:
        return Session(self.engine)

    def run(self, statement: str) -> None:
        self.within.execute(sqlalchemy.text(statement))

    def close(self) -> None:
        self.within.close()
        self.engine.dispose()


class SqlAlchemyScopedSession(SqlAlchemySession):
    def made(self) -> Any:
        return scoped_session(sessionmaker(self.engine))


class SqlAlchemyConnection(SqlAlchemySession):
    def made(self) -> Any:
        return self.engine.connect()


class Django(User):
    """`transaction.atomic`, by hand."""

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite"):
            database = {"ENGINE": "django.db.backends.sqlite3", "NAME": file_of(url)}
        else:
            database = {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "postgres",
                "USER": "bide",
                "HOST": folder_of(url),
            }
        self.alias = f"database{len(connections.settings)}"
        connections.settings[self.alias] = connections.configure_settings({"default": database})[
            "default"
        ]
        self.within = connections[self.alias]
        self.atomic: Any = None

    def run(self, statement: str) -> None:
        self.begin()
        with self.within.cursor() as cursor:
            cursor.execute(statement)

    def begin(self) -> None:
        if self.atomic is None:
            self.atomic = transaction.atomic(self.alias)
            self.atomic.__enter__()

    def commit(self) -> None:
        atomic, self.atomic = self.atomic, None
        atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        atomic, self.atomic = self.atomic, None
        if atomic is not None:
            error = RuntimeError("roll back")
            atomic.__exit__(RuntimeError, error, None)

    def close(self) -> None:
        self.rollback()
        self.within.close()


Made = Callable[[str], User]

BLOCKING: list[tuple[str, Made]] = [
    ("postgresql", Psycopg),
    ("postgresql", SqlAlchemySession),
    ("postgresql", SqlAlchemyScopedSession),
    ("postgresql", SqlAlchemyConnection),
    ("postgresql", Django),
    ("sqlite", Sqlite3),
    ("sqlite", SqlAlchemySession),
    ("sqlite", SqlAlchemyConnection),
    ("sqlite", Django),
]
"""By the kind of store."""


class AsyncUser:
    """The same for event loops."""

    within: Any

    async def run(self, statement: str) -> None: ...

    async def begin(self) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...


class AsyncPsycopg(AsyncUser):
    @classmethod
    async def made(cls, url: str) -> AsyncUser:
        self = cls()
        self.within = await psycopg.AsyncConnection.connect(libpq(url))
        self.commit, self.rollback = self.within.commit, self.within.rollback  # type: ignore[method-assign]
        self.close = self.within.close  # type: ignore[method-assign]
        return self

    async def run(self, statement: str) -> None:
        await self.within.execute(statement.encode())


class Asyncpg(AsyncUser):
    """A connection of a pool, as most programs have them."""

    pool: Any
    transaction: Any = None

    @classmethod
    async def made(cls, url: str) -> AsyncUser:
        self = cls()
        self.pool = await asyncpg.create_pool(
            host=folder_of(url), user="bide", database="postgres", min_size=1, max_size=1
        )
        self.within = await self.pool.acquire()
        return self

    async def begin(self) -> None:
        if self.transaction is None:
            self.transaction = self.within.transaction()
            await self.transaction.start()

    async def run(self, statement: str) -> None:
        await self.begin()
        await self.within.execute(statement)

    async def commit(self) -> None:
        done, self.transaction = self.transaction, None
        await done.commit()

    async def rollback(self) -> None:
        done, self.transaction = self.transaction, None
        if done is not None:
            await done.rollback()

    async def close(self) -> None:
        await self.rollback()
        await self.pool.release(self.within)
        await self.pool.close()


class AsyncSqlAlchemy(AsyncUser):
    engine: Any

    @classmethod
    async def made(cls, url: str, driver: str = "") -> AsyncUser:
        self = cls()
        self.engine = create_async_engine(sqlalchemy_url(url, driver))
        self.within = await self.connected()
        self.commit, self.rollback = self.within.commit, self.within.rollback  # type: ignore[method-assign]
        return self

    async def connected(self) -> Any:
        return AsyncSession(self.engine)

    async def run(self, statement: str) -> None:
        await self.within.execute(sqlalchemy.text(statement))

    async def close(self) -> None:
        await self.within.close()
        await self.engine.dispose()


class AsyncSqlAlchemyScopedSession(AsyncSqlAlchemy):
    async def connected(self) -> Any:
        return async_scoped_session(async_sessionmaker(self.engine), asyncio.current_task)


class AsyncSqlAlchemyConnection(AsyncSqlAlchemy):
    async def connected(self) -> Any:
        return await self.engine.connect()


def later(made: Any, driver: str) -> Callable[[str], Awaitable[AsyncUser]]:
    return lambda url: made(url, driver)


ASYNCHRONOUS: dict[str, tuple[str, Callable[[str], Awaitable[AsyncUser]]]] = {
    "psycopg": ("postgresql", AsyncPsycopg.made),
    "asyncpg": ("postgresql", Asyncpg.made),
    "session-psycopg": ("postgresql", later(AsyncSqlAlchemy.made, "+psycopg")),
    "session-asyncpg": ("postgresql", later(AsyncSqlAlchemy.made, "+asyncpg")),
    "scoped-asyncpg": ("postgresql", later(AsyncSqlAlchemyScopedSession.made, "+asyncpg")),
    "connection-asyncpg": ("postgresql", later(AsyncSqlAlchemyConnection.made, "+asyncpg")),
    "session-aiosqlite": ("sqlite", later(AsyncSqlAlchemy.made, "+aiosqlite")),
}
"""By name: the kind of store, and what connects to it."""


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/shop.db"
