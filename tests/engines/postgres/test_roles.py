"""What a role may do that was let in, and one that was not."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.errors import AccessDenied, StoreError
from bide.model.message import Item
from bide.model.replies import Names, Outcomes
from tests.postgres_server import PostgresServer


@pytest.fixture
def owner(postgres: PostgresServer, postgres_url: Callable[[], str]) -> Iterator[PostgresEngine]:
    engine = from_url(urlsplit(postgres_url()))()
    with postgres.client() as client:
        client.execute("DROP ROLE IF EXISTS shop")
        client.execute("CREATE ROLE shop LOGIN")
        yield engine
        client.execute("DROP OWNED BY shop")
        client.execute("DROP ROLE shop")
    engine.close()


def as_shop(postgres: PostgresServer, owner: PostgresEngine) -> PostgresEngine:
    url = f"{postgres.url.replace('bide@', 'shop@')}&schema={owner.schema}"
    return from_url(urlsplit(url))()


def allow(postgres: PostgresServer, owner: PostgresEngine, queues: str) -> None:
    with postgres.client() as client:
        client.execute(f"SELECT {owner.schema}.allow('shop', '{queues}')".encode())


def test_a_role_that_was_not_let_in_can_do_nothing(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    with pytest.raises(AccessDenied, match=r"bide\.allow"):
        as_shop(postgres, owner)


def test_a_role_uses_the_queues_that_it_was_given(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    owner.execute([cmd.Put("other", [Item("a", b"1")])])
    allow(postgres, owner, "{shop%}")
    engine = as_shop(postgres, owner)
    (reply,) = engine.execute([cmd.Put("shop.orders", [Item("a", b"1")])])
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].done
    assert engine.execute([cmd.Queues("")]) == [Names(["shop.orders"])]
    lease = cmd.Lease("a", 1)
    commands: list[cmd.Command] = [
        cmd.Put("other", [Item("b", b"1")]), cmd.Put("other", [Item("a", b"1")], "replace"),
        cmd.Cancel("other", ["a"]), cmd.Cancel("other", where=cmd.Where(after=0)),
        cmd.Cancel("other", where=cmd.Where(after=0), dry_run=True),
        cmd.Reschedule("other", ["a"]), cmd.Claim("other", 1, 1, "w"), cmd.Ack("other", [lease]),
        cmd.Retry("other", [lease]), cmd.Find("other", ["a"]), cmd.Scan("other"),
        cmd.Scan("other", "ready"), cmd.Count("other"), cmd.Forecast("other", 1, 1),
        cmd.Explain("other", "a"), cmd.Explain("other"),
        cmd.Configure("other", paused=True), cmd.Purge("other", "ready"), cmd.Delete("other"),
    ]  # fmt: skip
    for command in commands:
        with pytest.raises(AccessDenied, match="may not use the queue other"):
            engine.execute([command])
    engine.close()


def test_a_role_hears_why_a_message_waits_and_nothing_of_the_workers(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    allow(postgres, owner, "{shop%}")
    url = f"{postgres.url.replace('bide@', 'shop@')}&schema={owner.schema}"
    with bide.Queue("shop.orders", url) as orders:
        orders.put(1, id="a")
        orders.pause()
        told = orders.explain("a")
        assert told.reasons == ("paused",)
        assert told.facts.workers is None
        assert told.facts.subscriptions is None


@pytest.mark.parametrize(
    "attack",
    [
        "SELECT * FROM {schema}.message",
        "DELETE FROM {schema}.message",
        "INSERT INTO {schema}.access VALUES ('shop', '{{%}}')",
        "SELECT {schema}.allow('shop')",
        "SELECT nextval('{schema}.token')",
        # Functions that trust whoever calls them run with the caller's own rights.
        "SELECT {schema}._locked(1, 'a')",
        "SET search_path = {schema}; SELECT {schema}._locked(1, 'a')",
        "SET search_path = {schema}; SELECT {schema}._open('other', 0, true)",
        "SET search_path = {schema}; SELECT {schema}._promote(1, 0, 1)",
    ],
)
def test_a_role_gets_at_nothing_but_by_the_functions(
    postgres: PostgresServer, owner: PostgresEngine, attack: str
) -> None:
    owner.execute([cmd.Put("other", [Item("a", b"1")])])
    allow(postgres, owner, "{shop%}")
    with psycopg.connect(postgres.url.replace("bide@", "shop@"), autocommit=True) as shop:
        *before, last = attack.format(schema=owner.schema).split("; ")
        for statement in before:
            shop.execute(statement.encode())
        with pytest.raises(psycopg.Error, match=r"permission denied|may not use|does not exist"):
            shop.execute(last.encode())


def test_tables_of_the_callers_own_do_not_stand_in_for_those_of_the_store(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    allow(postgres, owner, "{shop%}")
    with psycopg.connect(postgres.url.replace("bide@", "shop@"), autocommit=True) as shop:
        shop.execute("CREATE TEMP TABLE access (role name, queues text[])")
        shop.execute("INSERT INTO access VALUES ('shop', '{%}')")
        shop.execute("SET search_path = pg_temp, public")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not use"):
            shop.execute(f"SELECT {owner.schema}.put('other', '1')".encode())


def test_a_user_who_may_not_make_the_schema_is_told(postgres: PostgresServer) -> None:
    with postgres.client() as client:
        client.execute("CREATE ROLE guest LOGIN")
        try:
            url = f"{postgres.url.replace('bide@', 'guest@')}&schema=not_there"
            with pytest.raises(StoreError, match="who may create the schema"):
                from_url(urlsplit(url))()
        finally:
            client.execute("DROP ROLE guest")


def test_a_role_that_was_dropped_is_in_nobodys_way(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    allow(postgres, owner, "{%}")
    with postgres.client() as client:
        client.execute("CREATE ROLE gone")
        client.execute(f"SELECT {owner.schema}.allow('gone')".encode())
        client.execute("DROP OWNED BY gone; DROP ROLE gone")
    engine = as_shop(postgres, owner)
    (reply,) = engine.execute([cmd.Put("shop.orders", [Item("a", b"1")])])
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].done
    assert engine.execute([cmd.Queues("")]) == [Names(["shop.orders"])]
    engine.close()
