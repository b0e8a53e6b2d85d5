"""The tables of an outbox on PostgreSQL are where programs find them, and can be read."""

from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import bide
from bide.outbox.forwarder import table_of
from bide.outbox.postgres import PostgresTable
from tests.postgres_server import PostgresServer
from tests.system.outbox.shop import forward, rows


@pytest.fixture
def namesake(
    postgres: PostgresServer, postgres_url: Callable[[], str], database: str
) -> Iterator[str]:
    """Provide the URL of a user with the name of the schema of a store, and its database."""
    url = postgres_url()
    with bide.Queue("others", url) as queue:
        queue.put(1)
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    with psycopg.connect(postgres.url, autocommit=True) as owner:
        owner.execute(
            f"CREATE ROLE {schema} LOGIN; GRANT ALL ON SCHEMA {schema}, public TO {schema}".encode()
        )
        yield postgres.url.replace("bide@", f"{schema}@")
        owner.execute(f"DROP OWNED BY {schema}; DROP ROLE {schema}".encode())


def places(database: str) -> list[str]:
    """Return the schemas with an outbox."""
    query = "SELECT schemaname FROM pg_tables WHERE tablename LIKE 'bide_outbox%'"
    with psycopg.connect(database) as client:
        return [name for (name,) in client.execute(query)]


def test_a_user_with_the_name_of_a_store_makes_the_tables_outside_of_it(
    namesake: str, database: str, orders: bide.Queue
) -> None:
    table_of(namesake).close()
    assert places(database) == ["public", "public"]
    for user in (database, namesake):
        with closing(psycopg.connect(user)) as shop:
            id = orders.put(1, within=shop).id
            shop.commit()
            forward(orders, namesake)
            assert orders.get(id) is not None
            assert rows(shop) == []
    assert places(database) == ["public", "public"]


def test_a_user_who_may_create_tables_nowhere_else_makes_them_there(
    namesake: str, database: str, orders: bide.Queue
) -> None:
    user = urlsplit(namesake).username
    with psycopg.connect(database) as owner:
        owner.execute(f"REVOKE CREATE ON SCHEMA public FROM {user}, PUBLIC".encode())
    table_of(namesake).close()
    assert places(database) == [user, user]
    with closing(psycopg.connect(namesake)) as shop:
        id = orders.put(1, within=shop).id
        shop.commit()
        forward(orders, namesake)
    assert orders.get(id) is not None


def test_any_text_is_forwarded_whatever_the_encoding_of_the_client(
    database: str, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    table_of(database).close()
    with closing(psycopg.connect(database, client_encoding="UTF8")) as shop:
        orders.put("日本", id="日本", within=shop)
        shop.commit()
        forward(orders, database)
        found = orders.get("日本")
        assert found is not None
        assert found.body == "日本"
        assert rows(shop) == []


def test_the_connection_of_a_forwarder_is_not_ended_for_being_idle(
    database: str, postgres: PostgresServer
) -> None:
    with postgres.client() as owner:
        owner.execute("ALTER ROLE bide SET idle_session_timeout = '1h'")
        try:
            with closing(PostgresTable(database)) as table:
                timeout = table.connection.execute("SHOW idle_session_timeout").fetchone()
        finally:
            owner.execute("ALTER ROLE bide RESET idle_session_timeout")
    assert timeout == ("0",)
