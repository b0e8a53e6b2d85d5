"""Connections that cannot be used: an error that says why, and nothing is stored."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import bide
from bide.engines.postgres.guest import PostgresGuest
from bide.engines.registry import guest
from bide.model.commands import Put
from bide.model.message import Item
from bide.testing import ScratchStore
from bide.testing.hooks import url_of
from tests.postgres_server import PostgresServer
from tests.system.within.libraries import Django, folder_of, libpq, sqlalchemy_url, sqlite_url


@pytest.fixture
def in_postgres(postgres_url: Callable[[], str]) -> Iterator[bide.Queue]:
    with bide.Queue("orders", postgres_url()) as orders:
        yield orders
        assert orders.counts().flow.put == 0


@pytest.fixture
def in_sqlite(tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", sqlite_url(tmp_path)) as orders:
        yield orders
        assert orders.counts().flow.put == 0


def wrong(match: str) -> "pytest.RaisesExc[bide.WrongConnection]":
    return pytest.raises(bide.WrongConnection, match=match)


@pytest.fixture
def other_database(postgres: PostgresServer) -> Iterator[str]:
    with postgres.client() as client:
        client.execute("CREATE DATABASE other")
    yield postgres.url.replace("/postgres?", "/other?")
    with postgres.client() as client:
        client.execute("DROP DATABASE other")


def test_another_database_of_the_same_server(in_postgres: bide.Queue, other_database: str) -> None:
    with psycopg.connect(other_database) as connection:
        with wrong(r"is not to the database of the store \(.*postgres, schema 'store\d+'\)"):
            in_postgres.put(1, within=connection)


def test_another_database_with_a_store_of_the_same_name(
    in_postgres: bide.Queue, other_database: str
) -> None:
    schema = url_of(in_postgres).partition("schema=")[2]
    with bide.Queue("orders", f"{other_database}&schema={schema}") as theirs:
        assert theirs.counts().flow.put == 0
    with psycopg.connect(other_database) as connection:
        with wrong("is not to the database of the store"):
            in_postgres.put(1, within=connection)
        assert connection.execute("SELECT 1").fetchone() == (1,)  # the transaction goes on
        # Another thread, between its look whether the place is known and its statement.
        here = guest(url_of(in_postgres))
        assert isinstance(here, PostgresGuest)
        statement, values = here.statement([Put("orders", [Item("a", b"1")])], None, "%s")
        cursor = connection.execute(statement.encode(), values)
        assert cursor.fetchone() == ('{"refused": "database"}',)


def test_a_database_that_was_made_anew(postgres: PostgresServer, other_database: str) -> None:
    def make_anew() -> None:
        with postgres.client() as client:
            client.execute("DROP DATABASE other")
            client.execute("CREATE DATABASE other")

    async def put_in_a_loop() -> None:
        async with (
            bide.AsyncQueue("orders", other_database) as orders,
            await psycopg.AsyncConnection.connect(other_database) as connection,
        ):
            await orders.resume()  # makes the store
            assert await orders.put(1, within=connection)

    with bide.Queue("orders", other_database) as orders:
        orders.resume()
        with psycopg.connect(other_database) as connection:
            assert orders.put(1, within=connection)
    make_anew()
    with bide.Queue("orders", other_database) as orders:
        orders.resume()
        with psycopg.connect(other_database) as connection:
            assert orders.put(1, within=connection)
        assert orders.counts().flow.put == 1
    make_anew()
    asyncio.run(put_in_a_loop())


def test_another_file(in_sqlite: bide.Queue, tmp_path: Path) -> None:
    for other, told in ((tmp_path / "other.db", r"other\.db"), (":memory:", "in memory")):
        with closing(sqlite3.connect(other)) as connection:
            with wrong(rf"is to .*{told}, and the store is .*shop\.db"):
                in_sqlite.put(1, within=connection)


def test_another_name_of_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "shop.db")
    with bide.Queue("orders", sqlite_url(tmp_path)) as orders:
        with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
            assert orders.put(1, within=connection)


def test_another_kind_of_database(
    in_postgres: bide.Queue, in_sqlite: bide.Queue, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        with wrong("is to sqlite, and the store is in postgresql"):
            in_postgres.put(1, within=connection)
    with psycopg.connect(libpq(url_of(in_postgres))) as postgres:
        with wrong("is to postgresql, and the store is in sqlite"):
            in_sqlite.put(1, within=postgres)


def test_a_store_that_lives_in_this_process(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        with bide.Queue("orders", "memory://") as orders:
            with pytest.raises(bide.Unsupported, match="other processes reach; memory:// is none"):
                orders.put(1, within=connection)


def test_what_is_no_connection(in_sqlite: bide.Queue) -> None:
    with wrong(r"not builtins\.str"):
        in_sqlite.put(1, within="shop.db")


def test_closed_connections(in_postgres: bide.Queue, in_sqlite: bide.Queue, tmp_path: Path) -> None:
    postgres = psycopg.connect(libpq(url_of(in_postgres)))
    postgres.close()
    with wrong("is closed"):
        in_postgres.put(1, within=postgres)
    file = sqlite3.connect(tmp_path / "shop.db")
    file.close()
    with wrong("is closed"):
        in_sqlite.put(1, within=file)
    engine = sqlalchemy.create_engine(sqlalchemy_url(url_of(in_postgres), "+psycopg"))
    connection = engine.connect()
    connection.close()
    with wrong("is closed"):
        in_postgres.put(1, within=connection)
    engine.dispose()


def test_connections_in_autocommit(
    in_postgres: bide.Queue, in_sqlite: bide.Queue, tmp_path: Path
) -> None:
    with psycopg.connect(libpq(url_of(in_postgres)), autocommit=True) as postgres:
        with wrong(r"in autocommit .* open one \(with connection.transaction"):
            in_postgres.put(1, within=postgres)
        with postgres.transaction(force_rollback=True):
            assert in_postgres.put(1, within=postgres)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as file:
        with wrong("in autocommit"):
            in_sqlite.put(1, within=file)
        file.execute("BEGIN")
        assert in_sqlite.put(1, within=file)
        file.execute("ROLLBACK")
    for orders, driver in ((in_postgres, "+psycopg"), (in_sqlite, "")):
        engine = sqlalchemy.create_engine(sqlalchemy_url(url_of(orders), driver))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            with wrong("in autocommit"):
                orders.put(1, within=connection)
        engine.dispose()
        user = Django(url_of(orders))
        with wrong(r"in autocommit .* open one \(with transaction.atomic"):
            orders.put(1, within=user.within)
        user.close()


def test_transactions_that_have_failed(in_postgres: bide.Queue) -> None:
    with psycopg.connect(libpq(url_of(in_postgres))) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
        with wrong("has failed; roll it back first"):
            in_postgres.put(1, within=connection)
        connection.rollback()
        assert in_postgres.put(1, within=connection)
        connection.rollback()
    engine = sqlalchemy.create_engine(sqlalchemy_url(url_of(in_postgres), "+psycopg"))
    with Session(engine) as session:
        with pytest.raises(sqlalchemy.exc.SQLAlchemyError):
            session.execute(sqlalchemy.text("SELECT 1 / 0"))
        with wrong("has failed; roll it back first"):
            in_postgres.put(1, within=session)
    engine.dispose()
    user = Django(url_of(in_postgres))
    user.begin()
    user.within.set_rollback(True)
    with wrong("has failed; roll it back first"):
        in_postgres.put(1, within=user.within)
    user.close()


def test_a_session_whose_flush_has_failed(in_postgres: bide.Queue) -> None:
    class Base(sqlalchemy.orm.DeclarativeBase):
        pass

    class Bill(Base):
        __tablename__ = "no_such_table"
        id: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)

    engine = sqlalchemy.create_engine(sqlalchemy_url(url_of(in_postgres), "+psycopg"))
    with Session(engine) as session:
        session.add(Bill(id=1))
        with pytest.raises(sqlalchemy.exc.SQLAlchemyError):
            session.flush()
        with wrong("has failed .*roll it back first"):
            in_postgres.put(1, within=session)
        session.rollback()
    engine.dispose()


def test_connections_of_event_loops_are_for_async_queues(in_postgres: bide.Queue) -> None:
    url = url_of(in_postgres)

    async def main() -> None:
        connection = await psycopg.AsyncConnection.connect(libpq(url))
        with wrong("AsyncConnection is asynchronous: use bide.AsyncQueue"):
            in_postgres.put(1, within=connection)
        await connection.close()
        with psycopg.connect(libpq(url)) as blocking:
            async with bide.AsyncQueue("orders", url) as orders:
                with wrong("Connection blocks the event loop: use bide.Queue"):
                    await orders.put(1, within=blocking)

    asyncio.run(main())


def test_asyncpg_that_is_closed_in_no_transaction_or_failed(in_postgres: bide.Queue) -> None:
    url = url_of(in_postgres)

    async def main() -> None:
        async with bide.AsyncQueue("orders", url) as orders:
            connection = await asyncpg.connect(
                host=folder_of(url), user="bide", database="postgres"
            )
            with wrong(r"in autocommit .* open one \(async with connection.transaction"):
                await orders.put(1, within=connection)
            transaction = connection.transaction()
            await transaction.start()
            with pytest.raises(asyncpg.PostgresError):
                await connection.execute("SELECT 1 / 0")
            with wrong("has failed; roll it back first"):
                await orders.put(1, within=connection)
            await transaction.rollback()
            await connection.close()
            with wrong("is closed"):
                await orders.put(1, within=connection)
            pool = await asyncpg.create_pool(
                host=folder_of(url), user="bide", database="postgres", min_size=1
            )
            async with pool.acquire() as held:
                pass
            with wrong("is closed"):
                await orders.put(1, within=held)
            await pool.close()

    asyncio.run(main())


def test_blocking_code_within_an_async_session(in_postgres: bide.Queue) -> None:
    """`run_sync` gives blocking code a session; it is on the loop's thread and does not block."""

    async def main() -> None:
        engine = create_async_engine(sqlalchemy_url(url_of(in_postgres), "+asyncpg"))
        async with AsyncSession(engine) as session:
            outcome = await session.run_sync(lambda s: in_postgres.put(1, within=s))
            assert outcome
            await session.rollback()
        await engine.dispose()

    asyncio.run(main())


def test_a_store_of_tests_stores_at_once(in_sqlite: bide.Queue, tmp_path: Path) -> None:
    with ScratchStore() as store, closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert in_sqlite.put(1, within=connection)
        assert [message.body for message in store.messages("orders")] == [1]
