"""Whose functions and rights a store works with: those of its owner, whoever opens it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.findings import examine
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.errors import AccessDenied
from bide.model.message import Item
from bide.model.replies import Claimed, Names, Outcomes
from tests.postgres_server import PostgresServer

SCHEMA = "owned"


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Provide a superuser's connection to a server with an owner, a member of it, and another."""
    with postgres.client() as client:
        client.execute("CREATE ROLE owner LOGIN; CREATE ROLE member LOGIN; CREATE ROLE other LOGIN")
        client.execute("GRANT owner TO member, bide; GRANT CREATE ON DATABASE postgres TO owner")
        yield client
        client.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
        client.execute("DROP OWNED BY owner, member, other; DROP ROLE owner, member, other")


def url_of(postgres: PostgresServer, user: str) -> str:
    return f"{postgres.url.replace('bide@', f'{user}@')}&schema={SCHEMA}"


def opened(postgres: PostgresServer, user: str) -> PostgresEngine:
    return from_url(urlsplit(url_of(postgres, user)))()


def done(engine: PostgresEngine, *ids: str) -> bool:
    (reply,) = engine.execute([cmd.Put("q", [Item(id, b"1") for id in ids])])
    assert isinstance(reply, Outcomes)
    return all(outcome.done for outcome in reply.outcomes)


def by_sql(postgres: PostgresServer, user: str) -> Any:
    with psycopg.connect(postgres.url.replace("bide@", f"{user}@")) as client:
        return client.execute(f"SELECT ({SCHEMA}.put('q', '1')).done".encode()).fetchone()


@pytest.mark.parametrize("upgrades", ["bide", "member"])
def test_a_store_that_another_brings_up_to_date_stays_its_owners(
    postgres: PostgresServer,
    server: psycopg.Connection[Any],
    newer: Callable[..., int],
    upgrades: str,
) -> None:
    opened(postgres, "owner").close()
    newer("CREATE TABLE bide.colour (name text)")
    opened(postgres, upgrades).close()
    owners = (
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = %s::regnamespace"
        " UNION SELECT relowner::regrole::text FROM pg_class WHERE relnamespace = %s::regnamespace"
    )
    assert server.execute(owners, (SCHEMA, SCHEMA)).fetchall() == [("owner",)]
    with closing(opened(postgres, "owner")) as engine:
        assert done(engine, "a")
        assert done(engine, "b", "c")
    assert by_sql(postgres, "owner") == (True,)


@pytest.mark.parametrize("user", ["bide", "member"])
def test_who_may_act_for_the_owner_may_use_all_queues(
    postgres: PostgresServer, server: psycopg.Connection[Any], user: str
) -> None:
    opened(postgres, "owner").close()
    with closing(opened(postgres, user)) as engine:
        done(engine, "first")
        assert done(engine, "a")
        assert engine.execute([cmd.Queues("")]) == [Names(["q"])]


def test_users_who_become_the_owner_when_they_connect_share_a_store(
    postgres: PostgresServer, server: psycopg.Connection[Any]
) -> None:
    server.execute("ALTER ROLE member SET role = 'owner'")  # as for passwords that change
    with closing(opened(postgres, "member")) as engine:
        done(engine, "first")
        assert done(engine, "a")
    with closing(opened(postgres, "owner")) as engine:
        assert done(engine, "b")


def test_another_who_may_not_act_for_the_owner_upgrades_nothing(
    postgres: PostgresServer, server: psycopg.Connection[Any], newer: Callable[..., int]
) -> None:
    opened(postgres, "owner").close()
    newer()
    server.execute(f"SELECT {SCHEMA}.allow('other')".encode())
    with pytest.raises(AccessDenied, match="open the store once as the user who owns"):
        opened(postgres, "other")


def test_who_owns_the_schema_and_not_the_tables_puts_with_the_rights_of_the_owner(
    postgres: PostgresServer, server: psycopg.Connection[Any]
) -> None:
    opened(postgres, "bide").close()
    server.execute(f"ALTER SCHEMA {SCHEMA} OWNER TO owner".encode())
    server.execute(f"SELECT {SCHEMA}.allow('owner')".encode())
    with closing(opened(postgres, "owner")) as engine:
        done(engine, "first")
        assert done(engine, "a")


def test_a_program_goes_on_while_its_store_gets_another_owner(
    postgres: PostgresServer, server: psycopg.Connection[Any]
) -> None:
    with closing(opened(postgres, "owner")) as engine:
        done(engine, "first")
        server.execute("REASSIGN OWNED BY owner TO other")
        with pytest.raises(AccessDenied):
            done(engine, "a")
        server.execute(f"SELECT {SCHEMA}.allow('owner')".encode())
        assert done(engine, "a")
        (reply,) = engine.execute([cmd.Claim("q", 9, 60_000, "w")])
        assert isinstance(reply, Claimed)
        assert [message.id for message in reply.messages] == ["first", "a"]


def test_a_program_goes_on_that_becomes_the_owner_of_its_store(
    postgres: PostgresServer, server: psycopg.Connection[Any]
) -> None:
    opened(postgres, "bide").close()
    server.execute(f"SELECT {SCHEMA}.allow('owner', '{{q}}')".encode())
    with closing(opened(postgres, "owner")) as engine:
        done(engine, "first")
        for kind, name in server.execute(
            "SELECT 'TABLE', oid::regclass::text FROM pg_class"
            " WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'v')"
            " UNION ALL SELECT 'FUNCTION', oid::regprocedure::text FROM pg_proc"
            " WHERE pronamespace = %s::regnamespace",
            (SCHEMA, SCHEMA),
        ).fetchall():
            server.execute(f"ALTER {kind} {name} OWNER TO owner".encode())
        server.execute(
            f"ALTER SCHEMA {SCHEMA} OWNER TO owner;"
            f"ALTER SEQUENCE {SCHEMA}.seq OWNER TO owner;"
            f"ALTER SEQUENCE {SCHEMA}.token OWNER TO owner".encode()
        )
        assert done(engine, "a")
        assert done(engine, "b", "c")


def test_a_function_of_another_user_is_not_called_in_the_place_of_the_servers(
    postgres: PostgresServer, server: psycopg.Connection[Any]
) -> None:
    server.execute("GRANT CREATE ON SCHEMA public TO other")
    server.execute("CREATE TABLE caught (who text); GRANT INSERT ON caught TO PUBLIC")
    with psycopg.connect(postgres.url.replace("bide@", "other@"), autocommit=True) as other:
        other.execute(  # fits better than that of the server, which takes any number of arguments
            "CREATE FUNCTION public.format(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO caught VALUES (current_user);"
            " RETURN pg_catalog.format($1, VARIADIC ARRAY[$2]); END $$"
        )
    try:
        opened(postgres, "bide").close()
        opened(postgres, "bide").close()
        examine(url_of(postgres, "bide"))
        assert server.execute("SELECT * FROM caught").fetchall() == []
    finally:
        server.execute("DROP TABLE caught; REVOKE CREATE ON SCHEMA public FROM other")


def test_a_superuser_calls_no_functions_of_an_ordinary_user(
    postgres: PostgresServer, server: psycopg.Connection[Any]
) -> None:
    server.execute("REVOKE owner FROM bide")
    opened(postgres, "owner").close()
    with psycopg.connect(postgres.url.replace("bide@", "owner@"), autocommit=True) as owner:
        owner.execute(
            f"CREATE FUNCTION {SCHEMA}.escalate() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN"
            " ALTER ROLE owner SUPERUSER; RETURN 3; END $$;"
            f"ALTER TABLE {SCHEMA}.store RENAME TO old;"
            f"CREATE VIEW {SCHEMA}.store AS SELECT {SCHEMA}.escalate() AS version".encode()
        )
    for opens in (lambda: opened(postgres, "bide"), lambda: examine(url_of(postgres, "bide"))):
        with pytest.raises(AccessDenied, match="belongs to 'owner', whose functions would run"):
            opens()
    superuser = "SELECT rolsuper FROM pg_roles WHERE rolname = 'owner'"
    assert server.execute(superuser).fetchone() == (False,)
