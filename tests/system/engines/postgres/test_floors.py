"""Claims begin where something can still be: not at deleted rows, and never behind a message."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Counts
from bide.testing.engine_hooks import postgres_caller
from tests.effort import effort
from tests.postgres_server import PostgresServer

BOUND = 60.0


@pytest.fixture
def open_engine(
    postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], PostgresEngine]]:
    """Provide engines on one store, which never look everywhere again by themselves."""
    monkeypatch.setattr("bide.engines.postgres.batch.FLOOR_SECONDS", 1e9)
    url = postgres_url()
    opened: list[PostgresEngine] = []

    def make() -> PostgresEngine:
        opened.append(from_url(urlsplit(url))())
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


def drain(engine: PostgresEngine, count: int = 100) -> list[str]:
    """Claim and ack once."""
    (claimed,) = engine.execute([cmd.Claim("q", count, 60_000, "w")])
    assert isinstance(claimed, Claimed)
    leases = [cmd.Lease(message.id, claimed.token) for message in claimed.messages]
    if leases:
        engine.execute([cmd.Ack("q", leases)])
    return [lease.id for lease in leases]


def put(engine: PostgresEngine, *ids: str, at: int | None = None) -> None:
    engine.execute([cmd.Put("q", [Item(id, b"1", at=at) for id in ids])])


def fold(engine: PostgresEngine) -> None:
    """Keep house, as engines do now and then."""
    postgres_caller(engine).settle()
    postgres_caller(engine)("_fold")


def count(engine: PostgresEngine) -> Counts:
    (counts,) = engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(counts, Counts)
    return counts


def read(engine: PostgresEngine, postgres: PostgresServer, index: str = "message_rank") -> int:
    """Return how many entries were read so far of an index, deleted ones too."""
    caller = postgres_caller(engine)
    assert caller is not None
    caller.settle()
    caller.connection.execute("SELECT pg_stat_force_next_flush()")
    with postgres.client() as client:
        query = (
            "SELECT idx_tup_read FROM pg_stat_user_indexes"
            " WHERE schemaname = %s AND indexrelname = %s"
        )
        ((entries,),) = client.execute(query, (engine.schema, index)).fetchall()
    return int(entries)


@contextmanager
def old_snapshot(engine: PostgresEngine, postgres: PostgresServer) -> Iterator[None]:
    """Hold a snapshot, after which 4,000 messages have gone in and out."""
    put(engine, "first")
    drain(engine)
    with postgres.client() as old, old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        for batch in range(40):
            put(engine, *(f"{batch}.{n}" for n in range(100)))
            assert len(drain(engine)) == 100
        yield


def test_deleted_rows_that_an_old_snapshot_keeps_are_not_read_again(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine = open_engine()
    with old_snapshot(engine, postgres):
        put(engine, *(f"last{n}" for n in range(100)))
        with postgres.client() as client:  # whether autovacuum has come to it is chance
            client.execute(f"ANALYZE {engine.schema}.message".encode())
        before = read(engine, postgres)
        assert len(drain(engine)) == 100
        after = read(engine, postgres)
    assert after - before < 1_000  # and not all the 4,000 that went in and out, several times


def test_leases_that_have_ended_are_not_read_again_while_claims_find_nothing(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine = open_engine()
    with old_snapshot(engine, postgres):
        put(engine, "last")
        assert drain(engine) == ["last"]
        before = read(engine, postgres)
        for _ in range(10):
            assert drain(engine) == []
        after = read(engine, postgres)
    assert after - before < 1_000  # and not, each time, 4,000 leases that were to end in a minute


@pytest.mark.parametrize("rest", [1e9, 0.0])
def test_house_is_kept_less_often_where_that_takes_long(
    postgres: PostgresServer,
    open_engine: Callable[[], PostgresEngine],
    monkeypatch: pytest.MonkeyPatch,
    rest: float,
) -> None:
    engine = open_engine()
    monkeypatch.setattr("bide.engines.postgres.engine.FOLD_EVERY", 1)
    monkeypatch.setattr("bide.engines.postgres.engine.FOLD_REST", rest)
    engine._until_fold = 1
    for number in range(4):
        put(engine, f"m{number}")
    with postgres.client() as client:
        query = f"SELECT count(*) FROM {engine.schema}.tally".encode()
        assert client.execute(query).fetchall() == [(3 if rest else 0,)]


@pytest.mark.parametrize("change", ["claim", "extend"])
def test_a_lease_that_is_shorter_than_all_before_is_found_when_it_ends(
    open_engine: Callable[[], PostgresEngine], change: str
) -> None:
    engine, other = open_engine(), open_engine()
    for number in range(3):
        put(engine, f"m{number}")
        assert drain(engine) == [f"m{number}"]
    put(other, "short")
    (claimed,) = other.execute([cmd.Claim("q", 1, 60_000 if change == "extend" else 30_000, "w")])
    assert isinstance(claimed, Claimed)
    if change == "extend":
        assert drain(engine) == []
        other.execute([cmd.Extend("q", [cmd.Lease("short", claimed.token)], 30_000)])
    (empty,) = engine.execute([cmd.Claim("q", 1, 60_000, "w")])
    assert isinstance(empty, Claimed)
    assert empty.next is not None
    assert empty.next <= 30_000


def test_what_an_open_transaction_puts_is_claimed_when_it_commits(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine = open_engine()
    put(engine, "first")
    url = f"{postgres.url}&schema={engine.schema}"
    with psycopg.connect(postgres.url) as user, bide.Queue("q", url) as queue:
        assert queue.put(1, id="held", delay=0, within=user)
        for number in range(50):
            put(engine, f"m{number}")
            drain(engine)
        user.commit()
    assert drain(engine) == ["held"]


def test_floors_rise_to_the_first_message_that_is_there(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine = open_engine()
    put(engine, "a", "b", "c", "d", at=1_000)
    untils = []
    for lease in (60_000, 120_000):
        (claimed,) = engine.execute([cmd.Claim("q", 1, lease, "w")])
        assert isinstance(claimed, Claimed)
        untils.append(claimed.messages[0].until)
    hour = int(time.time() * 1000) + 3_600_000
    engine.execute([cmd.Reschedule("q", ["c"], at=hour), cmd.Reschedule("q", ["d"], at=hour + 1)])
    day = hour + 24 * 3_600_000
    with postgres.client() as client:
        client.execute(f"SET search_path = {engine.schema}".encode())
        raised = "SELECT _raised(q, ARRAY[0, 0, %s, 0, 60000]::bigint[], %s) FROM queue AS q"
        assert client.execute(raised, (day, day)).fetchall() == [
            ([hour * 256 + 255, untils[0], None, 0, 60_000, 1],)
        ]
        # A clock that was set back, and leases that may be shorter now.
        anywhere = [([0, 0, None, None, 60_000],)]
        assert client.execute(raised, (day, day - 1)).fetchall() == anywhere
        unsure = "SELECT _holds(q, ARRAY[5, 6, NULL, NULL, 70000]::bigint[]) FROM queue AS q"
        assert client.execute(unsure).fetchall() == [([5, 0, None, None, 60_000],)]
        # Where leases begin says nothing of what is delayed.
        client.execute("DELETE FROM lowered")  # what was put for a time that is past is gone
        following = (
            "SELECT _next(q, NULL, ARRAY[0, 1::bigint << 52, NULL, NULL]::bigint[], NULL) / 1000"
            " FROM queue AS q"
        )
        assert client.execute(following).fetchall() == [(hour,)]


@pytest.mark.parametrize(
    "change", ["put", "put beside others", "replace", "reschedule", "retry", "renew", "ack"]
)
def test_what_comes_to_a_time_that_is_past_is_claimed(
    open_engine: Callable[[], PostgresEngine], change: str
) -> None:
    engine = open_engine()
    engine.execute([cmd.Put("q", [Item("later", b"1", delay=3_600_000)])])
    for number in range(20):
        put(engine, f"m{number}")
        drain(engine)
    other = open_engine()
    match change:
        case "put":
            put(other, "later2", at=1_000)
            fold(other)
            assert drain(engine) == ["later2"]
        case "put beside others":
            moments = {"far": 2**42, "later2": 1_000}
            items = [Item(id, b"1", at=moment) for id, moment in moments.items()]
            other.execute([cmd.Put("q", items)])
            fold(other)
            assert drain(engine) == ["later2"]
        case "replace":
            other.execute([cmd.Put("q", [Item("later", b"2", at=1_000)], "replace")])
            fold(other)
            assert drain(engine) == ["later"]
        case "reschedule":
            other.execute([cmd.Reschedule("q", ["later"], at=1_000)])
            fold(other)
            assert drain(engine) == ["later"]
        case "retry":
            put(engine, "again")
            (claimed,) = other.execute([cmd.Claim("q", 1, 60_000, "w")])
            assert isinstance(claimed, Claimed)
            other.execute([cmd.RetryCommand("q", [cmd.Lease("again", claimed.token)])])
            fold(other)
            assert drain(engine) == ["again"]
        case "renew" | "ack":
            engine.execute([cmd.Put("q", [Item("series", b"1", rule="hourly", run="1")])])
            (claimed,) = other.execute([cmd.Claim("q", 1, 60_000, "w")])
            assert isinstance(claimed, Claimed)
            past = cmd.NextRun(1_000, "2")
            renew = cmd.Renew("q", claimed.leases, [past])
            other.execute([renew if change == "renew" else cmd.Ack("q", claimed.leases)])
            fold(other)
            assert drain(engine) == ["series"]


def test_hints_at_times_that_are_past_stay_as_long_as_a_message_needs_them(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine, other = open_engine(), open_engine()
    engine.execute([cmd.Put("q", [Item("later", b"1", delay=3_600_000)])])
    for number in range(20):
        put(engine, f"before{number}")
        drain(engine)
    engine.execute([cmd.Put("another", [Item("a", b"1")])])
    with postgres.client() as client:
        hints = f"SELECT rank FROM {engine.schema}.lowered ORDER BY rank".encode()
        for number in (2, 1, 3):
            put(other, f"m{number}", at=1_000 * number)
        assert client.execute(hints).fetchall() == [(1_000 * 256 * n,) for n in (1, 2, 3)]
        fold(other)
        assert [drain(engine, 1) for _ in range(2)] == [["m1"], ["m2"]]
        fold(other)
        assert client.execute(hints).fetchall() == [(3_000 * 256,)]
        assert drain(engine) == ["m3"]
        fold(other)
        assert client.execute(hints).fetchall() == []


def test_each_queue_keeps_its_own_hints_at_times_that_are_past(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine, other = open_engine(), open_engine()
    for queue in ("q", "another"):
        engine.execute([cmd.Put(queue, [Item("later", b"1", delay=3_600_000)])])
    for number in range(20):
        put(engine, f"before{number}")
        drain(engine)
    put(other, "m", at=1_000)
    other.execute([cmd.Put("another", [Item("m", b"1", at=5_000)])])
    fold(other)
    with postgres.client() as client:
        hints = f"SELECT rank / 256 FROM {engine.schema}.lowered ORDER BY rank".encode()
        assert client.execute(hints).fetchall() == [(1_000,), (5_000,)]
    assert drain(engine) == ["m"]


def test_messages_that_one_put_stores_for_several_times_in_the_past_are_all_claimed(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    engine, other = open_engine(), open_engine()
    engine.execute([cmd.Put("q", [Item("later", b"1", delay=3_600_000)])])
    for number in range(20):
        put(engine, f"before{number}")
        drain(engine)
    items = [Item(f"m{number}", b"1", at=1_000 * number) for number in range(1, 5)]
    other.execute([cmd.Put("q", [*items, Item("far", b"1", at=2**42)])])
    with postgres.client() as client:
        hints = f"SELECT rank / 256 FROM {engine.schema}.lowered ORDER BY rank".encode()
        for number in range(1, 5):
            # The message that is left, and the last one.
            assert client.execute(hints).fetchall() == [(n * 1_000,) for n in sorted({number, 4})]
            assert drain(engine, 1) == [f"m{number}"]
            fold(other)
        assert client.execute(hints).fetchall() == []


def test_no_message_is_passed_over_whatever_transactions_do(
    postgres: PostgresServer, open_engine: Callable[[], PostgresEngine]
) -> None:
    workers = [open_engine() for _ in range(2)]
    schema = workers[0].schema
    until = time.monotonic() + effort(3, 20)
    put(workers[0], "first")
    wanted: set[str] = {"first"}
    got: list[str] = []
    lock = threading.Lock()
    ended = threading.Event()

    def user(name: int) -> None:
        chance = random.Random(name)
        with psycopg.connect(postgres.url) as connection:
            for number in range(10_000):
                if time.monotonic() > until:
                    return
                ids = [f"{name}.{number}.{n}" for n in range(chance.randrange(1, 4))]
                for id in ids:
                    when = chance.choice(("delay => '0'", "delay => '50 ms'", "at => '2020-01-01'"))
                    connection.execute(
                        f"SELECT {schema}.put('q', '1', {when}, id => '{id}')".encode()
                    )
                    if chance.random() < 0.2:
                        connection.execute(
                            f"SELECT {schema}.reschedule('q', '{id}', delay => '20 ms')".encode()
                        )
                time.sleep(chance.choice((0, 0, 0.01, 0.2)))
                if chance.random() < 0.2:
                    connection.rollback()
                    continue
                connection.commit()
                with lock:
                    wanted.update(ids)

    def work(engine: PostgresEngine) -> None:
        while not (ended.is_set() and len(got) >= len(wanted)):
            mine = drain(engine, 7)
            with lock:
                got.extend(mine)
            if ended.is_set() and time.monotonic() > until + BOUND:
                return

    users = [threading.Thread(target=user, args=(name,)) for name in range(6)]
    claimers = [threading.Thread(target=work, args=(engine,)) for engine in workers]
    for thread in (*users, *claimers):
        thread.start()
    for thread in users:
        thread.join()
    ended.set()
    for thread in claimers:
        thread.join()
    assert sorted(got) == sorted(wanted)
    counts = count(workers[0])
    assert (counts.recount, counts.strays) == (counts.sizes, 0)


def test_a_claim_that_meets_messages_which_are_too_late_promotes_no_more_for_that(
    open_engine: Callable[[], PostgresEngine],
) -> None:
    engine = open_engine()
    late = [
        Item(f"m{number:04}", b"1", at=1_000, priority=1, expires=1)
        for number in range(PROMOTE + 100)
    ]
    engine.execute([cmd.Put("q", late)])
    assert drain(engine, 1) == []
    states = f"SELECT state, count(*) FROM {engine.schema}.message GROUP BY 1 ORDER BY 1"
    found = postgres_caller(engine).connection.execute(states.encode()).fetchall()
    assert found == [(0, 100), (5, PROMOTE)]
