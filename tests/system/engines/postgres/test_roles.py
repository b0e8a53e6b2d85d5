"""What a role may do; whose functions and rights a store works with."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.findings import examine
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.errors import AccessDenied, StoreError
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Names, Outcomes
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
        cmd.Put("other", [Item("b", b"1")]),
        cmd.Put("other", [Item("a", b"1")], "replace"),
        cmd.Cancel("other", ["a"]),
        cmd.Cancel("other", where=cmd.Where(after=0)),
        cmd.Cancel("other", ["a"], running=True),
        cmd.Cancel("other", where=cmd.Where(after=0), running=True),
        cmd.Cancel("other", where=cmd.Where(after=0), dry_run=True),
        cmd.Reschedule("other", ["a"]),
        cmd.Claim("other", 1, 1, "w"),
        cmd.Ack("other", [lease]),
        cmd.RetryCommand("other", [lease]),
        cmd.Find("other", ["a"]),
        cmd.Scan("other"),
        cmd.Scan("other", "ready"),
        cmd.Count("other"),
        cmd.ForecastCommand("other", 1, 1),
        cmd.Explain("other", "a"),
        cmd.Explain("other"),
        cmd.Configure("other", paused=True),
        cmd.Purge("other", "ready"),
        cmd.Delete("other"),
    ]
    for command in commands:
        with pytest.raises(AccessDenied, match="may not use the queue other"):
            engine.execute([command])
    engine.close()


def test_a_role_does_not_learn_what_is_stopped_in_other_queues(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    """It may read all notifications, which have no names of messages, and ask what they mean."""
    allow(postgres, owner, "{shop%}")
    notifier = owner.notifier()
    assert notifier is not None
    notes: list[str] = []
    with psycopg.connect(postgres.url.replace("bide@", "shop@"), autocommit=True) as shop:
        channel = shop.execute(f"SELECT channel FROM {owner.schema}.store".encode()).fetchone()
        assert channel is not None
        shop.execute(f"LISTEN {channel[0]}".encode())
        shop.add_notify_handler(lambda note: notes.append(note.payload))
        for queue in ("other", "shop.orders"):
            owner.execute(
                [cmd.Put(queue, [Item("secret", b"1")]), cmd.Claim(queue, 1, 60_000, "w")]
            )
            owner.execute([cmd.Cancel(queue, ["secret"], running=True)])
        shop.execute("SELECT 1")
        answers = []
        for note in notes:
            process, _, number = note.removeprefix("0/").partition(" stop ")
            query = f"SELECT * FROM {owner.schema}._stopping(%s, %s)".encode()
            answers.append(shop.execute(query, (process, int(number))).fetchall())
    assert answers == [[], [("shop.orders", "secret")]]
    assert not any("other" in note or "secret" in note for note in notes)
    heard = list(notifier.listen())
    while len(heard) < 2:  # they may come one by one
        heard += notifier.listen()
    assert len(heard) == 2
    owner.close()
    assert notifier.listen() == []


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


def test_the_public_has_no_right_and_functions_with_rights_look_nowhere_else(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    allow(postgres, owner, "{shop%}")
    with postgres.client() as client:
        public = (
            "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace"
            " AND has_function_privilege('public', oid, 'EXECUTE')"
        )
        assert client.execute(public, (owner.schema,)).fetchall() == []
        tables = (
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace"
            " AND (relkind IN ('r', 'v') AND has_table_privilege('shop', oid,"
            " 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')"
            " OR relkind = 'S' AND has_sequence_privilege('shop', oid, 'USAGE, SELECT, UPDATE'))"
        )
        assert client.execute(tables, (owner.schema,)).fetchall() == [("store",)]
        paths = (
            "SELECT DISTINCT setting FROM pg_proc, unnest(proconfig) AS setting WHERE prosecdef"
            " AND pronamespace = %s::regnamespace AND setting LIKE 'search_path=%%'"
        )
        path = f"search_path={owner.schema}, pg_temp"
        assert client.execute(paths, (owner.schema,)).fetchall() == [(path,)]
        unset = (
            "SELECT proname FROM pg_proc WHERE prosecdef AND pronamespace = %s::regnamespace"
            " AND NOT coalesce(array_to_string(proconfig, ' ') LIKE '%%search_path=%%', false)"
        )
        assert client.execute(unset, (owner.schema,)).fetchall() == []


ABOUT_NO_QUEUE = {
    "_begin_batches",
    "_database",
    "_enroll",
    "_fold",
    "_keep",
    "_last_return",
    "_recall",
    "_remembers",
}
"""Functions with the owner's rights to which it is all the same who calls them."""


def test_every_function_with_the_owners_rights_asks_whether_the_queue_may_be_used(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    owner.execute([cmd.Put("other", [Item("a", b"1")])])
    allow(postgres, owner, "{shop%}")
    query = (
        "SELECT proname, proargnames[1:pronargs], proargtypes::regtype[]::text[] FROM pg_proc"
        " WHERE prosecdef AND pronamespace = %s::regnamespace"
        " AND has_function_privilege('shop', oid, 'EXECUTE')"
    )
    with postgres.client() as client:
        functions = client.execute(query, (owner.schema,)).fetchall()
    special = {
        "p_queue": "'other'",
        "queue": "'other'",
        "p_queues": "'{other}'",
        "id": "'a'",
        "p_id": "'a'",
        "body": "'1'",
        "p_verb": "'cancel'",
        "p_cause": "'purged'",
        "p_ids": "'{a}'",
        "p_now": "0",
        "on_conflict": "'keep'",
        "p_asked": """'{"commands": [{"verb": "cancel", "queue": "other", "ids": ["a"]}]}'""",
    }
    answers: dict[str, object] = {}
    with psycopg.connect(postgres.url.replace("bide@", "shop@"), autocommit=True) as shop:
        for name, names, types in functions:
            if name in ABOUT_NO_QUEUE:
                continue
            values = ", ".join(
                f"{special.get(argument, 'NULL')}::{kind}"
                for argument, kind in zip(names, types, strict=True)
            )
            try:
                call = f"SELECT {owner.schema}.{name}({values})".encode()
                answers[name] = shop.execute(call).fetchall()
            except psycopg.errors.InsufficientPrivilege as error:
                answers[name] = error.diag.message_primary
    why = "user shop may not use the queue other"
    refused = [({"refused": "access", "why": why},)]
    others = {
        "_queues": [],
        "_stopping": [],
        **dict.fromkeys(["_within", "_within_put", "_within_settle"], refused),
    }
    assert answers == {**dict.fromkeys(answers, why), **others}
    assert len(answers) > 25


def test_tables_and_functions_of_others_do_not_stand_in_for_those_of_the_owner(
    postgres: PostgresServer, postgres_url: Callable[[], str]
) -> None:
    url = postgres_url()
    from_url(urlsplit(url))().close()
    with postgres.client() as client:
        name = client.execute("SELECT current_database(), current_user").fetchone()
        assert name is not None
        database, user = name
        client.execute("CREATE SCHEMA evil")
        client.execute("CREATE TABLE evil.message (id text)")
        client.execute(
            "CREATE FUNCTION evil._rank(integer, bigint, integer) RETURNS bigint"
            " LANGUAGE sql AS 'SELECT 0'"
        )
        path = f"ALTER ROLE {user} IN DATABASE {database} "
        client.execute((path + "SET search_path = evil, pg_catalog").encode())
        try:
            engine = from_url(urlsplit(url))()
            engine.execute([cmd.Put("q", [Item("a", b"1", delay=60_000)])])
            rank = f"SELECT rank > 0 FROM {engine.schema}.message"
            assert client.execute(rank.encode()).fetchall() == [(True,)]
            engine.close()
        finally:
            client.execute((path + "RESET search_path").encode())
            client.execute("DROP SCHEMA evil CASCADE")


@pytest.mark.parametrize("ended", ["committed", "rolled back"])
def test_a_put_by_sql_waits_as_long_as_bide_says_and_leaves_the_users_setting(
    postgres: PostgresServer, owner: PostgresEngine, ended: str
) -> None:
    owner.execute([cmd.Put("q", [])])
    put = f"SELECT {owner.schema}.put('q', '1', id => 'a')".encode()
    with postgres.client() as first, postgres.client() as second:
        first.autocommit = False
        first.execute(put)
        second.execute("SET lock_timeout = '1h'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            second.execute(put)
        assert second.execute("SHOW lock_timeout").fetchone() == ("1h",)
        first.commit() if ended == "committed" else first.rollback()
        row = second.execute(put.replace(b"SELECT ", b"SELECT (") + b").done").fetchone()
    assert row == (ended == "rolled back",)


def test_a_name_that_is_refused_in_python_is_refused_in_sql(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    allow(postgres, owner, "{shop%}")
    engine = as_shop(postgres, owner)
    commands: list[cmd.Command] = [
        cmd.Put("shop\nx", [Item("a", b"1")]),
        cmd.Put("shop x", [Item("a", b"1")], "replace"),
        cmd.Configure("shop\nx", paused=True),
        cmd.Put("shop" * 99, [Item("a", b"1")]),
        cmd.Put("shop", [Item("a\nb", b"1")]),
        cmd.Put("shop", [Item("a\nb", b"1")], "replace"),
        cmd.Put("shop", [Item("a", b"1", group="\x9b")]),
        cmd.Put("shop", [Item("", b"1")]),
    ]
    engine.execute([cmd.Put("shop", [Item("first", b"1")])])
    for command in commands:
        with pytest.raises(StoreError, match="must have 1 to"):
            engine.execute([command])
    assert owner.execute([cmd.Queues("")]) == [Names(["shop"])]
    engine.close()


def test_a_role_without_rights_stops_nobody_and_hears_no_name(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    """It takes each advisory lock that is held, and listens to the name of the schema."""
    url = f"{postgres.url}&schema={owner.schema}"
    with (
        bide.Queue("q", url, limit=9) as queue,
        psycopg.connect(postgres.url.replace("bide@", "shop@"), autocommit=True) as shop,
        postgres.client() as user,
    ):
        shop.execute(f"LISTEN {owner.schema}")
        queue.put(1, id="first")
        user.autocommit = False
        for statement in (
            f"SELECT {owner.schema}.put('q', '1', id => 'a')",
            f"SELECT {owner.schema}._fold()",
            f"SELECT * FROM {owner.schema}._claim('q', NULL, 1, 60000, 'w', 100, NULL, NULL)",
            f"SELECT {owner.schema}._delete('none', NULL)",
        ):
            user.execute(statement.encode())
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            assert user.execute(held).fetchone() == (0,)
            user.rollback()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            shop.execute(f"SELECT channel FROM {owner.schema}.store")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            with shop.transaction():
                shop.execute(f"LOCK TABLE {owner.schema}.tally IN ACCESS SHARE MODE".encode())


def test_notifications_name_no_queue_and_no_message(
    postgres: PostgresServer, owner: PostgresEngine
) -> None:
    listener = owner.notifier()
    assert listener is not None
    owner.execute([cmd.Configure("shop.orders", result_ttl=60_000)])
    owner.execute([cmd.Claim("shop.orders", 1, 60_000, "w")])
    with postgres.client() as other:
        ((channel,),) = other.execute(
            f"SELECT channel FROM {owner.schema}.store".encode()
        ).fetchall()
        other.execute(f"LISTEN {channel}".encode())
        other.execute(f"SELECT {owner.schema}.put('shop.orders', '1', id => 'secret')".encode())
        assert [queue for queue, _ in listener.listen()] == ["shop.orders"]
        other.execute(f"NOTIFY {channel}, 'anything'".encode())  # is skipped
        owner.execute([cmd.History("shop.orders", "secret", watch=True)])
        other.execute(f"SELECT {owner.schema}.cancel('shop.orders', 'secret')".encode())
        assert [name for name, _ in listener.listen()] == ["shop.orders secret"]
        texts = [note.payload for note in other.notifies(timeout=1, stop_after=3)]
    assert len(texts) == 3
    assert not any("shop" in text or "secret" in text for text in texts)


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_a_put_that_meets_the_deletion_of_its_queue_makes_it_again(
    postgres: PostgresServer, owner: PostgresEngine, on_conflict: str
) -> None:
    put = f"SELECT (({owner.schema}.put('q', '1', id => 'a', on_conflict => '{on_conflict}')).done)"

    def put_it() -> bool:
        with postgres.client() as user:
            try:
                return user.execute(put.encode()).fetchone() == (True,)
            except psycopg.errors.LockNotAvailable:
                return False  # the machine was slow: more than a quarter of a second

    stored = False
    while not stored:
        owner.execute([cmd.Configure("q", keep=0)])
        with postgres.client() as deleter, ThreadPoolExecutor(1) as threads:
            deleter.autocommit = False
            deleter.execute(f"SELECT {owner.schema}._delete('q', NULL)".encode())
            putting = threads.submit(put_it)
            waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
            while deleter.execute(waits.encode()).fetchone() != (True,) and not putting.done():
                pass
            deleter.commit()
            stored = putting.result()
    (reply,) = owner.execute([cmd.Count("q", recount=True)])
    assert isinstance(reply, Counts)
    assert reply.recount is not None
    assert (reply.recount.total, reply.strays) == (1, 0)


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
