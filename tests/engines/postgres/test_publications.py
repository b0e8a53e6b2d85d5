"""A database of which all tables are published, as for a copy by logical replication."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.postgres import from_url
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Deleted, Outcomes
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import PostgresServer


@pytest.fixture
def published(
    postgres: PostgresServer, postgres_url: Callable[[], str]
) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """Provide the URL of a store whose tables are published, and a connection to its server."""
    url = postgres_url()
    from_url(urlsplit(url))().close()
    with postgres.client() as client:
        client.execute("SET client_min_messages = error")  # the server replicates nothing
        client.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        yield url, client
        client.execute("DROP PUBLICATION everything")


def test_messages_go_through_a_store_whose_tables_are_published(
    published: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, _ = published
    with closing(from_url(urlsplit(url))()) as engine:
        engine.execute([cmd.Configure("q", history=60_000, limit=2)])
        engine.execute([cmd.Put("q", [Item(id, b"1", group="g") for id in "abc"])])
        engine.execute([cmd.Put("q", [Item("past", b"1", at=1)])])
        (claimed,) = engine.execute([cmd.Claim("q", 2, 60_000, "w")])
        assert isinstance(claimed, Claimed)
        leases = [cmd.Lease(message.id, claimed.token) for message in claimed.messages]
        (acked,) = engine.execute([cmd.Ack("q", leases)])
        assert isinstance(acked, Outcomes)
        assert [outcome.done for outcome in acked.outcomes] == [True, True]
        engine._fold(postgres_caller(engine))
        engine.execute([cmd.Claim("q", 0, 1, "w"), cmd.Cancel("q", where=cmd.Where(after=0))])
        (counts,) = engine.execute([cmd.Count("q", recount=True)])
        assert isinstance(counts, Counts)
        assert (counts.sizes.total, counts.recount, counts.strays) == (0, counts.sizes, 0)
        assert engine.execute([cmd.Delete("q")]) == [Deleted(True)]


def test_every_table_can_be_published(
    published: tuple[str, psycopg.Connection[Any]], newer: Callable[..., int]
) -> None:
    url, client = published
    with closing(from_url(urlsplit(url))()) as engine:
        without = (
            "SELECT relname FROM pg_class AS c WHERE relkind = 'r'"
            " AND relnamespace = %s::regnamespace AND (relreplident = 'n' OR relreplident = 'd'"
            " AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary))"
        )
        assert client.execute(without, (engine.schema,)).fetchall() == []
    newer()
    with closing(from_url(urlsplit(url))()) as engine:
        older = f"UPDATE {engine.schema}.store SET version = version - 1"
        client.execute(older.encode())  # other tests are given this store
