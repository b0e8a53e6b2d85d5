"""Cancels by a rule, and what others change at the same time."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.errors import StoreBusy
from bide.model.message import Item
from bide.model.replies import Affected, Counts, Reply
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import BOUND, PostgresServer

HOUR = 3_600_000
LATE = 4_000_000_000_000  # in 2096


def counted(engine: PostgresEngine) -> int:
    """Return how many messages there are, after a comparison with the counters."""
    (reply,) = engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(reply, Counts)
    assert (reply.recount, reply.strays) == (reply.sizes, 0)
    return reply.sizes.total


@pytest.mark.parametrize(
    ("rule", "change", "cancelled"),
    [
        (cmd.Where(after=0), "reschedule('q', 'a', delay => '50 h')", 1),
        (cmd.Where(before=0), "reschedule('q', 'a', delay => '50 h')", 0),
        (cmd.Where(group="g"), "reschedule('q', 'a', delay => '50 h')", 1),
        (cmd.Where(group="g"), "put('q', '2', id => 'a', on_conflict => 'replace')", 0),
        (cmd.Where(before=LATE), "reschedule('q', 'a', at => to_timestamp(4000000000))", 0),
        (cmd.Where(group="g"), f"_claim('q', {LATE}, 1, 9, 'w', 9999, NULL, 'p')", 0),
    ],
)
def test_a_rule_is_asked_of_a_message_as_it_is_once_others_have_changed_it(
    engine: PostgresEngine,
    postgres: PostgresServer,
    rule: cmd.Where,
    change: str,
    cancelled: int,
) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    if rule.before == 0:
        rule = cmd.Where(before=int(time.time() * 1000) + 2 * HOUR)
    deadline = time.monotonic() + BOUND
    with (
        ThreadPoolExecutor() as threads,
        postgres.client() as client,
        psycopg.connect(postgres.url) as user,
    ):
        while time.monotonic() < deadline:  # until it has not given up to wait, on a busy machine
            engine.execute([cmd.Put("q", [Item("a", b"1", delay=HOUR, group="g")], "replace")])
            user.execute(f"SELECT {engine.schema}.{change}".encode())
            changing = threads.submit(engine.execute, [cmd.Cancel("q", where=rule)])
            while not changing.done():
                if client.execute(waits, (f"%{engine.schema}%",)).fetchall() != [(0,)]:
                    break
            user.commit()
            with suppress(StoreBusy):
                assert changing.result(BOUND) == [Affected(cancelled)]
                assert counted(engine) == 1 - cancelled
                return
    raise AssertionError("it was busy each time")


def test_rules_and_ids_wait_in_no_circle(engine: PostgresEngine, postgres: PostgresServer) -> None:
    url = f"{postgres.url}&schema={engine.schema}"
    ids = [f"m{number:03}" for number in range(100)]
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"

    def change(seed: int) -> None:
        chance = random.Random(seed)
        with closing(from_url(urlsplit(url))()) as own:
            postgres_caller(own).connection.execute("SET deadlock_timeout = '5 ms'")
            for _ in range(40):
                # What is due first has the last id.
                items = [Item(id, b"1", delay=HOUR - n, group="g") for n, id in enumerate(ids)]
                commands: list[cmd.Command] = [
                    cmd.Put("q", items),
                    cmd.Cancel("q", ids),
                    cmd.Cancel("q", where=cmd.Where(after=0)),
                    cmd.Purge("q", "delayed"),
                ]
                with suppress(StoreBusy):  # on a busy machine
                    own.execute([chance.choice(commands)])

    with postgres.client() as client:
        before = client.execute(query.encode()).fetchall()
        with ThreadPoolExecutor() as threads:
            assert list(threads.map(change, range(4))) == [None] * 4
        client.execute("SELECT pg_stat_force_next_flush()")
        assert client.execute(query.encode()).fetchall() == before
    counted(engine)


def test_a_rule_takes_the_first_thousand(engine: PostgresEngine) -> None:
    items = [Item(f"m{n:04}", b"1", delay=HOUR + (2_000 - n) * 1_000) for n in range(1_001)]
    engine.execute([cmd.Put("q", items)])
    cancel = cmd.Cancel("q", where=cmd.Where(after=0))
    replies: list[Reply] = engine.execute([cancel])
    assert replies == [Affected(1_000, more=True)]
    assert counted(engine) == 1
    assert engine.execute([cmd.Cancel("q", ["m0000"])])[0].outcomes[0].done  # type: ignore[union-attr]
    assert engine.execute([cancel]) == [Affected(0)]


def test_a_purge_takes_the_thousand_that_died_first(engine: PostgresEngine) -> None:
    died = int(time.time() * 1_000)
    items = [Item(f"m{n:04}", b"1", died=died - n) for n in range(1_001)]
    purge = cmd.Purge("q", "dead")
    replies: list[Reply] = engine.execute([cmd.Put("q", items), purge])
    assert replies[1] == Affected(1_000, more=True)
    assert counted(engine) == 1
    replies = engine.execute([cmd.Purge("q", "dead", ids=["m0000"]), purge])
    assert replies[0].outcomes[0].done  # type: ignore[union-attr]
    assert replies[1] == Affected(0)
