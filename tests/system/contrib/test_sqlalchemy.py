"""The outbox as tables of SQLAlchemy and operations of Alembic; sessions and savepoints."""

import asyncio
import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, create_engine, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema, DropSchema

import bide
from bide.contrib.alembic import include_name, include_object
from bide.contrib.sqlalchemy import outbox_dead_table, outbox_table
from bide.outbox.forwarder import Forwarder, table_of
from bide.testing.hooks import lane_of
from examples.sqlalchemy_outbox import shop
from tests.postgres_server import PostgresServer

_numbers = itertools.count()  # a process knows a store by its URL, so each has one of its own

OUTBOX = {"bide_outbox", "bide_outbox_dead"}


class Database:
    """A database of a program, and its URLs."""

    def __init__(self, url: str, *, driver: str, async_driver: str) -> None:
        self.url = url
        self.engine = create_engine(url_of(url, driver))
        self.async_url = url_of(url, async_driver)
        self.on_postgres = self.engine.dialect.name == "postgresql"

    @property
    def tables(self) -> set[str]:
        return set(inspect(self.engine).get_table_names())

    def forget(self) -> None:
        metadata = MetaData()
        metadata.reflect(self.engine)
        metadata.drop_all(self.engine)


def url_of(url: str, driver: str) -> str:
    if url.startswith("sqlite"):
        return url.replace("sqlite", f"sqlite+{driver}", 1)
    parts = urlsplit(url)
    folder = parse_qs(parts.query)["host"][0]
    return f"postgresql+{driver}://bide@{parts.path}?host={folder}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        found = Database(
            f"sqlite:///{tmp_path}/shop.db", driver="pysqlite", async_driver="aiosqlite"
        )
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        with server.client() as client:
            client.execute(f"CREATE DATABASE {(name := f'kit{next(_numbers)}')}".encode())
        url = server.url.replace("/postgres?", f"/{name}?")
        found = Database(url, driver="psycopg", async_driver="asyncpg")
    yield found
    found.engine.dispose()


@pytest.fixture
def orders(redis_url: Callable[[], str]) -> Iterator[bide.Queue]:
    with bide.Queue("orders", redis_url()) as orders:
        yield orders


def shape(database: Database) -> dict[str, Any]:
    """Return the columns of the tables; SQLite says little of the rest."""
    found = inspect(database.engine)
    typed = database.on_postgres
    return {
        name: [
            (one["name"], typed and (one["nullable"], bool(one.get("identity")), str(one["type"])))
            for one in found.get_columns(name)
        ]
        for name in sorted(OUTBOX)
    }


def test_the_tables_are_those_that_the_forwarder_makes(database: Database) -> None:
    table_of(database.url).close()
    made = shape(database)
    database.forget()
    metadata = MetaData()
    outbox_table(metadata)
    assert outbox_table(metadata) is metadata.tables["bide_outbox"]
    outbox_dead_table(metadata)
    metadata.create_all(database.engine)
    assert shape(database) == made


def test_metadata_with_a_schema_have_each_table_once(database: Database) -> None:
    metadata = MetaData(schema="app")
    outbox, dead = outbox_table(metadata), outbox_dead_table(metadata)
    assert outbox.fullname == "app.bide_outbox"
    assert (outbox_table(metadata), outbox_dead_table(metadata)) == (outbox, dead)
    if database.engine.dialect.name == "postgresql":
        with database.engine.begin() as connection:
            connection.execute(CreateSchema("app"))
        metadata.create_all(database.engine)
        with database.engine.begin() as connection:
            connection.execute(DropSchema("app", cascade=True))


def test_a_put_and_a_forwarder_work_with_created_tables(
    database: Database, orders: bide.Queue
) -> None:
    metadata = MetaData()
    outbox, dead = outbox_table(metadata), outbox_dead_table(metadata)
    metadata.create_all(database.engine)
    with Session(database.engine) as session, session.begin():
        orders.put("held", delay="1h", id="one", within=session)
        orders.cancel("nobody", within=session)
    with Session(database.engine) as session:
        assert session.scalars(select(outbox.c.id).order_by(outbox.c.number)).all() == [
            "one",
            "nobody",
        ]
    assert Forwarder(lambda: table_of(database.url), lane_of(orders)).run_once()
    with Session(database.engine) as session:
        assert session.execute(select(outbox)).all() == []
        (refused,) = session.execute(select(dead.c.id, dead.c.reason, dead.c.died)).all()
    assert refused.id == "nobody"
    assert refused.died is not None
    assert orders.get("one") is not None


def test_alembic_upgrades_and_downgrades(database: Database, orders: bide.Queue) -> None:
    config = shop.migrations(database.engine.url.render_as_string(hide_password=False))
    command.upgrade(config, "head")
    assert {"orders", *OUTBOX} <= database.tables
    with Session(database.engine) as session, session.begin():
        orders.put(1, id="one", within=session)
    with pytest.raises(bide.NotEmpty, match="1 commands in bide_outbox wait for bide forward"):
        command.downgrade(config, "base")
    assert {"orders", *OUTBOX} <= database.tables
    assert Forwarder(lambda: table_of(database.url), lane_of(orders)).run_once()
    command.downgrade(config, "base")
    assert database.tables & {"orders", *OUTBOX} == set()
    command.upgrade(config, "head")
    assert database.tables >= OUTBOX


def test_what_waits_can_be_given_up(database: Database, orders: bide.Queue) -> None:
    with database.engine.begin() as connection:
        operations: Any = Operations(MigrationContext.configure(connection))
        operations.create_bide_outbox()
        operations.create_bide_outbox()  # the forwarder may have been there before
        orders.put(1, id="one", within=connection)
        operations.drop_bide_outbox(discard=True)
        operations.drop_bide_outbox()  # there is none, and nothing to lose
    assert database.tables & OUTBOX == set()


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql+psycopg"])
def test_alembic_writes_a_script(dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = shop.migrations(f"{dialect}://")
    config.output_buffer = output = io.StringIO()
    command.upgrade(config, "head", sql=True)
    command.downgrade(config, "001:base", sql=True)
    assert "CREATE TABLE IF NOT EXISTS bide_outbox (" in output.getvalue()
    assert "DROP TABLE IF EXISTS bide_outbox_dead;" in output.getvalue()


def test_another_database_is_refused() -> None:
    operations: Any = Operations(MigrationContext.configure(dialect_name="mysql"))
    with pytest.raises(bide.InvalidArgument, match="needs PostgreSQL or SQLite, and this is mysql"):
        operations.create_bide_outbox()


def differences(database: Database, metadata: MetaData, **options: Any) -> list[Any]:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
def test_autogenerate_leaves_a_store_alone(database: Database) -> None:
    """Without the filter it drops the tables of the store, with all messages."""
    # Of a user of the name bide, the schema bide is the default one.
    url = f"{database.url}&schema=bide_kit" if database.on_postgres else database.url
    with bide.Queue("orders", url) as orders:
        orders.put(1)
    table_of(database.url).close()
    metadata = MetaData()
    sqlalchemy.Table("invoices", metadata, sqlalchemy.Column("id", sqlalchemy.Integer))
    dropped = {one[1].name for one in differences(database, metadata) if one[0] == "remove_table"}
    assert dropped >= OUTBOX
    outbox_table(metadata)
    for options in ({}, {"include_schemas": True, "include_name": include_name}):
        (only,) = differences(database, metadata, include_object=include_object, **options)
        assert (only[0], only[1].name) == ("add_table", "invoices")


class Rollback(Exception):
    """Ends a savepoint or a transaction."""


def stored(queue: bide.Queue) -> list[str]:
    return sorted(message.id for message in queue.scan())


def test_a_session_takes_its_messages_along(database: Database) -> None:
    """Commit, rollback, close and savepoints; without any set-up of the session."""
    with (
        bide.Queue("orders", database.url) as orders,
        Session(database.engine) as session,
    ):
        orders.resume()  # makes the store, which no transaction of the user's does
        orders.put(1, id="committed", within=session)
        session.commit()
        orders.put(1, id="rolled-back", within=session)
        session.rollback()
        orders.put(1, id="before", within=session)
        with contextlib.suppress(Rollback), session.begin_nested():
            orders.put(1, id="inner", within=session)
            orders.cancel("committed", within=session)
            raise Rollback
        with session.begin_nested():
            orders.put(1, id="kept", within=session)
        session.commit()
        assert stored(orders) == ["before", "committed", "kept"]
        orders.put(1, id="outer", within=session)
        with session.begin_nested():
            orders.put(1, id="released", within=session)
        session.rollback()
        orders.put(1, id="closed", within=session)
        session.close()
        assert stored(orders) == ["before", "committed", "kept"]


def test_an_async_session_takes_its_messages_along(database: Database) -> None:
    async def story() -> None:
        engine = create_async_engine(database.async_url)
        async with (
            bide.AsyncQueue("orders", database.url) as orders,
            AsyncSession(engine) as session,
        ):
            await orders.resume()
            async with session.begin():
                await orders.put(1, id="before", within=session)
                with contextlib.suppress(Rollback):
                    async with session.begin_nested():
                        await orders.put(1, id="inner", within=session)
                        raise Rollback
                async with session.begin_nested():
                    await orders.put(1, id="kept", within=session)
            with contextlib.suppress(Rollback):
                async with session.begin():
                    await orders.put(1, id="rolled-back", within=session)
                    raise Rollback
            found = [message.id async for message in orders.scan()]
            assert sorted(found) == ["before", "kept"]
        await engine.dispose()

    asyncio.run(story())
