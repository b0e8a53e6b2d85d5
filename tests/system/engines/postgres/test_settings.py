"""Schemas: names, settings, versions, publications."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

import bide
from bide.engines.findings import examine
from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.notifier import PostgresNotifier
from bide.engines.postgres.schema import VERSION
from bide.model import commands as cmd
from bide.model.errors import AccessDenied, InvalidArgument, SchemaTooNew, StoreError
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Deleted, Outcome, Outcomes
from bide.testing.engine_hooks import postgres_caller, postgres_listening
from tests.postgres_server import PostgresServer


@pytest.fixture
def client(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with postgres.client() as client:
        yield client


@pytest.mark.parametrize(
    "name",
    ["Shop Queue", 'a"b', "it's", r"a\1b", "select", "a.b", "50%s", "$1", "é" * 31, "x" * 63],
)
def test_a_schema_may_have_any_name(
    postgres: PostgresServer,
    client: psycopg.Connection[Any],
    newer: Callable[..., int],
    name: str,
) -> None:
    url = f"{postgres.url}&schema={quote(name, safe='')}"
    schema = sql.Identifier(name)
    try:
        with bide.Queue("q", url) as queue, psycopg.connect(postgres.url) as user:
            queue.put(1, id="a")
            queue.put(2, id="b", within=user)
            queue.put_many([3, 4], within=user)
            user.execute(sql.SQL("SELECT {}.put('q', '5', id => 'c')").format(schema))
            user.execute(sql.SQL("SELECT {}.cancel('q', 'c')").format(schema))
            user.commit()
            queue.configure(limit=1)
            assert [delivery.id for delivery in queue.claim(1)] == ["a"]
            assert queue.audit()
            assert not [finding for finding in examine(url) if "version" in finding.what]
        expected = newer("ALTER TABLE bide.queue ADD COLUMN colour text")
        from_url(urlsplit(url))().close()
        version = client.execute(sql.SQL("SELECT version FROM {}.store").format(schema))
        assert version.fetchall() == [(expected,)]
    finally:
        client.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "a\nb", "pg_x", "a$$b"])
def test_a_name_that_no_schema_can_have_is_refused(postgres: PostgresServer, name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a valid schema"):
        from_url(urlsplit(f"{postgres.url}&schema={quote(name, safe='')}"))


@pytest.fixture
def careful(postgres: PostgresServer, client: psycopg.Connection[Any]) -> Iterator[str]:
    """Provide the URL of a store of a user whose transactions are serializable by default."""
    client.execute("CREATE ROLE careful LOGIN; GRANT CREATE ON DATABASE postgres TO careful")
    client.execute("ALTER ROLE careful SET default_transaction_isolation = 'serializable'")
    yield f"{postgres.url.replace('bide@', 'careful@')}&schema=careful"
    client.execute("DROP SCHEMA careful CASCADE; DROP OWNED BY careful; DROP ROLE careful")


def test_commands_are_read_committed_whatever_is_the_users_default(careful: str) -> None:
    with closing(from_url(urlsplit(careful))()) as engine:
        own = postgres_caller(engine).connection
        with own.transaction():  # as of several commands
            assert own.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
        assert own.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_the_connection_that_listens_is_not_ended_for_being_idle(
    careful: str, client: psycopg.Connection[Any]
) -> None:
    client.execute("ALTER ROLE careful SET idle_session_timeout = '1h'")
    with closing(from_url(urlsplit(careful))()) as engine:
        notifier = engine.notifier()
        assert isinstance(notifier, PostgresNotifier)
        timeout = postgres_listening(notifier).execute("SHOW idle_session_timeout").fetchone()
        assert timeout == ("0",)
        engine.close()
        assert notifier.listen() == []


def test_the_schema_is_made_for_a_user_whose_functions_are_checked_for_shadowed_variables(
    careful: str, client: psycopg.Connection[Any], newer: Callable[..., int]
) -> None:
    client.execute("ALTER ROLE careful SET plpgsql.extra_errors = 'all'")
    with bide.Queue("q", careful) as queue:
        queue.put(1, id="a")
        (delivery,) = queue.claim(1)
        delivery.ack()
    newer()
    from_url(urlsplit(careful))().close()


def test_bodies_are_as_they_were_whatever_a_backslash_means_to_the_users_server(
    careful: str, client: psycopg.Connection[Any]
) -> None:
    client.execute("ALTER ROLE careful SET standard_conforming_strings = off")
    client.execute("ALTER ROLE careful SET bytea_output = escape")
    body = bytes(range(256))
    with bide.Queue("q", careful) as queue:
        queue.put(1, id="a")
        (delivery,) = queue.claim()
        queue.put(body, id="a", delay=60, latest=60, on_conflict="replace")  # its successor
        seen = queue.get("a")
        assert seen is not None
        assert seen.successor is not None
        assert seen.successor.data == body
        delivery.ack()
        after = queue.get("a")
        assert after is not None
        assert after.body == body


def test_processes_that_would_conflict_if_they_were_serializable_do_not(careful: str) -> None:
    ids = [f"m{number}" for number in range(20)]

    def change(seed: int) -> None:
        chance = random.Random(seed)
        with closing(from_url(urlsplit(careful))()) as own:  # all of them make the schema, too
            for _ in range(100):
                some = chance.sample(ids, 5)
                items = [Item(id, b"1", delay=60_000) for id in some]
                commands: list[cmd.Command] = [
                    cmd.Put("q", items),
                    cmd.Put("q", items[:1]),
                    cmd.Put("q", items, "replace"),
                    cmd.Cancel("q", some),
                    cmd.Reschedule("q", some, delay=60_000),
                ]
                own.execute([chance.choice(commands)])

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(change, range(4))) == [None] * 4


@pytest.fixture
def make_database(
    postgres: PostgresServer, client: psycopg.Connection[Any]
) -> Iterator[Callable[[str], str]]:
    """Provide a function that makes a database with an encoding, and returns its URL."""

    names: list[str] = []

    def made(encoding: str) -> str:
        names.append(encoding.lower())
        client.execute(
            f"CREATE DATABASE {names[-1]} ENCODING '{encoding}' TEMPLATE template0"
            " LC_COLLATE 'C' LC_CTYPE 'C'".encode()
        )
        return postgres.url.replace("/postgres?", f"/{names[-1]}?")

    yield made
    for name in names:
        client.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_texts_come_back_as_they_were_whatever_the_encoding_of_the_database(
    make_database: Callable[[str], str], encoding: str
) -> None:
    url = make_database(encoding)
    ids = ["É", "ü" * 256] if encoding == "LATIN1" else ["É", "日本" * 85]
    if encoding == "SQL_ASCII":
        ids.append("\N{GRINNING FACE}")
    with bide.Queue("q", url) as queue, psycopg.connect(url, client_encoding="UTF8") as user:
        for id in ids:
            queue.put({"name": "日本"}, id=id, group=id, headers={"name": id})
            queue.put(1, id=f"{id[:99]}w", within=user)
            put = "SELECT bide.put('q', '1', id => %s, \"group\" => %s)"
            user.execute(put, (f"{id[:99]}s", id))
        user.commit()
        there = {message.id: message for message in queue.scan()}
        assert set(there) == {form for id in ids for form in (id, f"{id[:99]}w", f"{id[:99]}s")}
        for id in ids:
            assert there[id].body == {"name": "日本"}
            assert (there[id].group, there[id].headers) == (id, {"name": id})
        for name in ("a\x1f", "a\x7f", *(["\x85"] if encoding != "EUC_JP" else [])):
            with pytest.raises(psycopg.errors.InvalidParameterValue), user.transaction():
                user.execute("SELECT bide.put('q', '1', id => %s)", (name,))
        assert queue.audit()


def test_a_character_that_the_database_cannot_store_is_told_with_the_fix(
    make_database: Callable[[str], str],
) -> None:
    url = make_database("LATIN1")
    with bide.Queue("q", url) as queue:
        for put in (lambda: queue.put(1, id="日本"), lambda: queue.put_many([1], group="日本")):
            with pytest.raises(InvalidArgument, match="Use a database with the encoding UTF8"):
                put()
    (found,) = [finding for finding in examine(url) if "encoding" in finding.what]
    assert (found.level, "LATIN1" in found.what, "UTF8" in found.fix) == ("danger", True, True)


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
def test_reasons_results_and_headers_may_have_all_characters(
    make_database: Callable[[str], str], encoding: str
) -> None:
    smile = "\N{GRINNING FACE} \u65e5"
    with bide.Queue("q", make_database(encoding), result_ttl="1h", history="1h") as queue:
        queue.put_many([bide.NewMessage(n, id=f"m{n}", headers={"h": smile}) for n in range(4)])
        first, *others = queue.claim(4)
        assert all(queue.ack([*others[1:]], results=[smile, {"text": smile}]))
        first.retry(reason=smile)
        others[0].bury(reason=smile)
        (message,) = queue.claim()
        assert message.message.failures[-1].reason == smile
        assert (message.message.headers, queue.result("m3")) == ({"h": smile}, {"text": smile})
        (dead,) = queue.dead()
        assert dead.failures[-1].reason == smile
        assert queue.history("m1")[0].failures[-1].reason == smile
        assert queue.edit("m1", headers={"x": smile})
        assert queue.get("m1").headers == {"x": smile}  # type: ignore[union-attr]
        assert queue.audit()


def test_one_id_that_the_database_cannot_store_spoils_no_other(
    make_database: Callable[[str], str],
) -> None:
    url = make_database("LATIN1")
    with bide.Queue("q", url) as queue:
        queue.put(1, id="first")

        async def put_all() -> list[object]:
            async with bide.AsyncQueue("q", url) as tasks:
                puts = (tasks.put(1, id=id) for id in ("a", "\u65e5", "b"))
                return await asyncio.gather(*puts, return_exceptions=True)

        answers = asyncio.run(put_all())
        assert [type(answer) for answer in answers] == [Outcome, InvalidArgument, Outcome]


def test_arguments_may_be_columns_of_any_collation(
    postgres_url: Callable[[], str], client: psycopg.Connection[Any]
) -> None:
    with closing(from_url(urlsplit(postgres_url()))()) as engine:
        bide_ = engine.schema
        client.execute(
            'CREATE TEMP TABLE orders (id text COLLATE "POSIX", kind text COLLATE "C");'
            "INSERT INTO orders VALUES ('a', 'g')"
        )
        for call, done in [
            ("put('q', '1', id => id)", True),
            ("put('q', '2', id => id)", False),
            ("put('q', '2', id => id, on_conflict => 'replace')", True),
            ("reschedule('q', id, delay => '1h')", True),
            ("cancel('q', id)", True),
            ("put('q', '1', id => id, \"group\" => kind, priority => 3)", True),
            ("put(kind || '.q', '1', id => id)", True),
        ]:
            query = f"SELECT (f).done FROM orders, LATERAL {bide_}.{call} AS f".encode()
            assert client.execute(query).fetchall() == [(done,)], call
        query = f"SELECT g.state FROM orders, LATERAL {bide_}.get('q', id) AS g".encode()
        assert client.execute(query).fetchall() == [("ready",)]
        client.execute("DROP TABLE orders")


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
        engine.fold(postgres_caller(engine))
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
