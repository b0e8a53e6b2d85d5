"""Schemas of other versions: an older one is brought up to date, a newer one is refused."""

import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.schema import VERSION
from bide.model import commands as cmd
from bide.model.errors import AccessDenied, SchemaTooNew, StoreError
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes
from tests.postgres_server import PostgresServer

STEP = """
ALTER TABLE bide.queue ADD COLUMN colour text NOT NULL DEFAULT 'red';
UPDATE bide.message SET headers = '{"k": "w"}' WHERE headers IS NOT NULL;
"""
"""What a later version might do to the tables."""


@pytest.fixture
def old(postgres: PostgresServer) -> Iterator[str]:
    """Provide the URL of a store with some messages, which this bide made."""
    url = f"{postgres.url}&schema=old"
    with postgres.client() as client:
        client.execute("DROP SCHEMA IF EXISTS old CASCADE; DROP ROLE IF EXISTS shop")
        client.execute("CREATE ROLE shop LOGIN")
        open_engine(url).close()
        client.execute("SELECT old.allow('shop', '{orders%}')")
        client.execute("INSERT INTO old.access VALUES ('dropped', '{%}')")
        client.execute(
            "SELECT old.put('orders', to_json(n), id => 'm' || n, headers => '{\"k\": \"v\"}')"
            " FROM generate_series(1, 5) AS n"
        )
        client.execute("CREATE VIEW old.mine AS SELECT * FROM old.get('orders', 'm1')")
        yield url
        client.execute("DROP SCHEMA old CASCADE")
        client.execute("DROP OWNED BY shop; DROP ROLE shop")


def open_engine(url: str) -> PostgresEngine:
    return from_url(urlsplit(url))()


def test_an_old_store_is_brought_up_to_date_with_what_is_in_it(
    postgres: PostgresServer, old: str, newer: Callable[..., int]
) -> None:
    with postgres.client() as client:  # what this version has and the next one has not
        client.execute("CREATE FUNCTION old._gone() RETURNS void LANGUAGE sql AS ''")
        version = newer(STEP)
        engine = open_engine(old)
        (claimed,) = engine.execute([cmd.Claim("orders", 9, 60_000, "w")])
        assert isinstance(claimed, Claimed)
        assert [m.data for m in claimed.messages] == [b"1", b"2", b"3", b"4", b"5"]
        assert {m.headers["k"] for m in claimed.messages if m.headers} == {"w"}
        engine.execute([cmd.Put("orders", [Item("new", b"1")])])
        (counts,) = engine.execute([cmd.Count("orders", recount=True)])
        assert isinstance(counts, Counts)
        assert (counts.recount, counts.strays) == (counts.sizes, 0)
        assert counts.sizes.total == 6
        assert client.execute("SELECT version FROM old.store").fetchall() == [(version,)]
        assert client.execute("SELECT colour FROM old.queue").fetchall() == [("red",)]
        assert client.execute("SELECT to_regproc('old._gone') IS NULL").fetchall() == [(True,)]
        assert client.execute("SELECT state FROM old.mine").fetchall() == [("leased",)]
        engine.close()


def test_roles_are_let_in_again_after_an_upgrade(old: str, newer: Callable[..., int]) -> None:
    newer(STEP)
    theirs = old.replace("bide@", "shop@")
    with pytest.raises(AccessDenied, match=r"bide init"):
        open_engine(theirs)
    open_engine(old).close()
    shop = open_engine(theirs)
    (reply,) = shop.execute([cmd.Put("orders.1", [Item("a", b"1")])])
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].done
    with pytest.raises(AccessDenied):
        shop.execute([cmd.Put("others", [Item("a", b"1")])])
    shop.close()


def test_many_that_open_an_old_store_upgrade_it_once(old: str, newer: Callable[..., int]) -> None:
    newer(STEP)
    failed: list[BaseException] = []

    def open_and_put(number: int) -> None:
        try:
            engine = open_engine(old)
            engine.execute([cmd.Put("orders", [Item(f"new{number}", b"1")])])
            engine.close()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=open_and_put, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_program_that_runs_while_a_newer_one_upgrades_is_told_to_upgrade(
    postgres: PostgresServer, old: str
) -> None:
    running = open_engine(old)
    running.execute([cmd.Put("orders", [Item("before", b"1")])])
    with postgres.client() as client:  # what a newer version does: other functions, other tables
        with client.transaction():
            client.execute("ALTER FUNCTION old._put_one RENAME TO _put_single")
            client.execute("UPDATE old.store SET version = 99")
        with pytest.raises(SchemaTooNew, match="upgrade bide"):
            running.execute([cmd.Put("orders", [Item("after", b"1")])])
        with pytest.raises(SchemaTooNew, match="upgrade bide"):
            running.execute([cmd.Count("orders")])
        with pytest.raises(SchemaTooNew):
            open_engine(old)
        client.execute("UPDATE old.store SET version = %s", (VERSION,))
        with pytest.raises(StoreError, match="a function of the schema is missing"):
            running.execute([cmd.Put("orders", [Item("after", b"1")])])
        client.execute("ALTER FUNCTION old._put_single RENAME TO _put_one")
    (reply,) = running.execute([cmd.Put("orders", [Item("after", b"1")])])
    assert isinstance(reply, Outcomes)
    running.close()


def test_a_schema_of_a_draft_is_refused_and_the_way_out_is_told(
    postgres: PostgresServer, old: str
) -> None:
    with postgres.client() as client:
        client.execute("UPDATE old.store SET version = 36")
    with pytest.raises(SchemaTooNew, match="export each queue with the version that wrote it"):
        open_engine(old)


def test_an_upgrade_that_fails_changes_nothing(
    postgres: PostgresServer, old: str, newer: Callable[..., int]
) -> None:
    newer(STEP)
    with postgres.client() as client:
        client.execute("ALTER TABLE old.queue ADD COLUMN colour text")
        with pytest.raises(StoreError, match="colour"):
            open_engine(old)
        assert client.execute("SELECT version FROM old.store").fetchall() == [(VERSION,)]
        client.execute("SELECT old.cancel('orders', 'm1')")
        with pytest.raises(psycopg.Error):
            client.execute("SELECT old._put()")


def test_a_server_that_is_too_old_is_named(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.engines.postgres.schema.OLDEST", 99)
    with pytest.raises(StoreError, match=r"is PostgreSQL 18, and bide needs 99 or newer: upgrade"):
        open_engine(f"{postgres.url}&schema=too_old")
