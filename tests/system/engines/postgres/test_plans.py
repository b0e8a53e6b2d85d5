"""Statements read no more rows than they need, whatever the server believes of the tables."""

import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Counts
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import PostgresServer

MESSAGES = 3_000
FEW = 600
"""Entries of indices and rows: more than any of the statements needs, with room for chance."""


@pytest.fixture(params=["postgres", pytest.param("postgres_15", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Provide a server of each version; up to 16 they choose among fewer plans."""
    server: PostgresServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def engine(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[PostgresEngine]:
    """Provide an engine on a store whose statistics stay as they are; one test uses it."""
    schema = request.param.replace(" ", "_")
    engine = from_url(urlsplit(f"{server.url}&schema={schema}"))()
    with server.client() as client:
        client.execute(f"ALTER TABLE {schema}.message SET (autovacuum_enabled = off)".encode())
        if request.param == "analysed when empty":
            client.execute(f"ANALYZE {schema}.message".encode())
        yield engine
        engine.close()
        client.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def ids(kind: str, count: int = 10) -> list[str]:
    return [f"{kind}{number}" for number in range(count)]


def put(engine: PostgresEngine, ids: list[str], **fields: object) -> None:
    engine.execute([cmd.Put("q", [Item(id, b"1", **fields) for id in ids])])  # type: ignore[arg-type]


def claim(engine: PostgresEngine, count: int = 10) -> list[cmd.Lease]:
    (claimed,) = engine.execute([cmd.Claim("q", count, 60_000, "w")])
    assert isinstance(claimed, Claimed)
    assert len(claimed.messages) == count
    return [cmd.Lease(message.id, claimed.token) for message in claimed.messages]


def hours_without_messages() -> cmd.Where:
    """Return a rule for due times behind those of some messages, and before those of many."""
    now = time.time_ns() // 1_000_000
    return cmd.Where(after=now + 10 * 3_600_000, before=now + 12 * 3_600_000)


def some_of_each(engine: PostgresEngine, round: str) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name; its messages are put before."""
    put(engine, ids(f"due{round}", 40), delay=0)
    held = claim(engine, 40)
    put(engine, ids(f"ready{round}"), delay=0)
    put(engine, ids(f"later{round}", 60), delay=3_600_000, group=f"g{round}")
    later = iter(ids(f"later{round}", 60))

    def next_ten() -> list[str]:
        return [next(later) for _ in range(10)]

    def run(*commands: cmd.Command) -> object:
        return engine.execute(commands)

    return {
        "put one": lambda: put(engine, [f"one{round}"], delay=3_600_000),
        "put": lambda: put(engine, ids(f"new{round}"), delay=3_600_000),
        "put what is there": lambda: put(engine, ids(f"later{round}"), delay=0),
        "replace": lambda: run(
            cmd.Put("q", [Item(id, b"2", delay=3_600_000) for id in next_ten()], "replace")
        ),
        "claim": lambda: claim(engine),
        "ack": lambda: run(cmd.Ack("q", held[:10])),
        "extend": lambda: run(cmd.Extend("q", held[10:20], lease=60_000)),
        "retry": lambda: run(cmd.RetryCommand("q", held[10:20], delay=3_600_000)),
        "bury": lambda: run(cmd.BuryCommand("q", held[20:30])),
        "cancel": lambda: run(cmd.Cancel("q", next_ten())),
        "reschedule": lambda: run(cmd.Reschedule("q", next_ten(), delay=7_200_000)),
        "edit": lambda: run(cmd.Edit("q", next_ten(), b"3", priority=0, delay=7_200_000)),
        "cancel a group, dry": lambda: run(
            cmd.Cancel("q", where=cmd.Where(group=f"g{round}"), dry_run=True)
        ),
        "cancel a group": lambda: run(cmd.Cancel("q", where=cmd.Where(group=f"g{round}"))),
        "find": lambda: run(cmd.Find("q", ids("m"))),
        "scan": lambda: run(cmd.Scan("q", "delayed", limit=10)),
        "scan some hours": lambda: run(cmd.Scan("q", where=hours_without_messages())),
        "scan delayed ones of some hours": lambda: run(
            cmd.Scan("q", "delayed", where=hours_without_messages())
        ),
        "scan all": lambda: run(cmd.Scan("q", limit=10)),
        "scan by ids that are none": lambda: run(cmd.Scan("q", prefix="aa", limit=10)),
        "count": lambda: run(cmd.Count("q")),
        "purge": lambda: run(cmd.Purge("q", "dead")),
        "nothing to claim": lambda: run(cmd.Claim("q", 10, 60_000, "w")),
    }


def read(engine: PostgresEngine, server: PostgresServer, table: str = "message") -> int:
    """Return how much was read so far: entries of indices and rows of whole tables."""
    caller = postgres_caller(engine)
    assert caller is not None
    caller.settle()
    caller.connection.execute("SELECT pg_stat_force_next_flush()")
    query = """
        SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = %(schema)s
                AND relname = %(table)s)
             + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = %(schema)s
                AND relname = %(table)s)
    """
    with server.client() as client:
        ((count,),) = client.execute(query, {"schema": engine.schema, "table": table}).fetchall()
    return int(count)


@pytest.mark.parametrize("engine", ["never analysed", "analysed when empty"], indirect=True)
def test_plans_of_an_empty_store_are_good_for_a_full_one(
    engine: PostgresEngine, server: PostgresServer
) -> None:
    for action in some_of_each(engine, "first").values():  # each statement is planned now
        action()
    for first in range(0, MESSAGES, 500):
        put(engine, [f"m{first + n}" for n in range(500)], delay=86_400_000)
    costs = {}
    for name, action in some_of_each(engine, "second").items():
        before = read(engine, server)
        action()
        costs[name] = read(engine, server) - before
    assert {name: cost for name, cost in costs.items() if cost > FEW} == {}


@pytest.mark.parametrize("engine", ["never analysed", "analysed when empty"], indirect=True)
@pytest.mark.parametrize("priority", [0, 9])
def test_the_counts_of_a_backlog_read_a_part_of_it(
    engine: PostgresEngine, server: PostgresServer, priority: int
) -> None:
    for batch in range(20):
        weight = priority if batch % 2 else 0
        put(engine, ids(f"{batch}-", 500), at=1_700_000_000_000, priority=weight)
    claim(engine, 1)  # with priorities, it ranks some
    before = read(engine, server)
    (counts,) = engine.execute([cmd.Count("q")])
    assert isinstance(counts, Counts)
    assert counts.sizes.ready == 9_999
    assert read(engine, server) - before < 5_000


@pytest.mark.parametrize("engine", ["never analysed", "analysed when empty"], indirect=True)
def test_a_page_of_ended_messages_reads_a_part_of_the_history(
    engine: PostgresEngine, server: PostgresServer
) -> None:
    with server.client() as client:
        client.execute(f"ALTER TABLE {engine.schema}.ended SET (autovacuum_enabled = off)".encode())
    engine.execute([cmd.Configure("q", history=86_400_000), cmd.ListEnded("q", limit=10)])
    for first in range(0, MESSAGES, 500):
        put(engine, [f"m{first + n}" for n in range(500)], delay=86_400_000)
        engine.execute([cmd.Cancel("q", [f"m{first + n}" for n in range(500)])])
    page = engine.execute([cmd.ListEnded("q", limit=10)])
    before = read(engine, server, "ended")
    assert engine.execute([cmd.ListEnded("q", limit=10)]) == page
    assert read(engine, server, "ended") - before < 3 * 500  # those of one moment are sorted


PLANNED_EACH_TIME = {"_enroll", "_forget", "_forget_answers", "_drop_limits"}
"""Called once by a sender, or by few commands."""


@pytest.mark.parametrize("engine", ["languages"], indirect=True)
def test_what_commands_call_is_planned_once_by_a_session(
    engine: PostgresEngine, server: PostgresServer
) -> None:
    query = (
        "SELECT proname FROM pg_proc JOIN pg_language AS l ON l.oid = prolang"
        f" WHERE pronamespace = '{engine.schema}'::regnamespace AND lanname = 'sql'"
        r" AND prosrc ~ '\m(INSERT|UPDATE|DELETE)\M'"
    )
    with server.client() as client:
        names = {name for (name,) in client.execute(query.encode())}
    assert names == PLANNED_EACH_TIME
