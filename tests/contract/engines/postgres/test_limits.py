"""Limited queues: what open transactions, other processes and the death of one do to them."""

import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.port import Notifier, PartlyDone
from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.schema import MIGRATIONS
from bide.model import commands as cmd
from bide.model.replies import Claimed, Counts
from bide.model.times import CREDIT
from bide.testing.engine_hooks import postgres_caller
from tests.contract.engines.postgres.claims import claim, counts, ids, leases, put
from tests.effort import effort
from tests.postgres_server import BOUND, PostgresServer, until

MESSAGES, PROCESSES = 150, 5


@pytest.fixture
def url(postgres_url: Callable[[], str]) -> str:
    return postgres_url()


@pytest.fixture
def engine(url: str) -> Iterator[PostgresEngine]:
    engine = from_url(urlsplit(url))()
    yield engine
    engine.close()


@pytest.fixture
def user(postgres: PostgresServer, engine: PostgresEngine) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url) as connection:
        yield connection
        connection.rollback()


def test_what_an_open_transaction_has_locked_stops_no_claim(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Configure("q", limit=4, group_limit=2)])
    put(engine, "a1 a2 a3 b1")
    claim(engine, 0)  # all are in line
    query = f"SELECT (s).done FROM {engine.schema}.cancel('q', %s) AS s".encode()
    assert user.execute(query, ("a1",)).fetchone() == (True,)
    assert user.execute(query, ("b1",)).fetchone() == (True,)
    user.execute(f"SELECT {engine.schema}.put('q', '1', id => 'c1')".encode())
    first = claim(engine)
    assert ids(first) == ["a2", "a3"]
    user.rollback()
    engine.execute([cmd.Ack("q", leases(first))])
    assert ids(claim(engine)) == ["b1", "a1"]  # a was served
    assert counts(engine).sizes.leased == 2


def test_a_claim_that_finds_only_what_is_locked_does_not_ask_again_at_once(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Configure("q", limit=4)])
    put(engine, "a1")
    claim(engine, 0)
    query = f"SELECT (s).done FROM {engine.schema}.cancel('q', %s) AS s".encode()
    user.execute(query, ("a1",))
    assert claim(engine).next == 10
    put(engine, "b1")
    user.execute(query, ("b1",))  # due, and in no line yet
    assert claim(engine).next == 10
    user.commit()
    assert claim(engine).next is None
    put(engine, "c1")
    user.execute(query, ("c1",))
    assert claim(engine, 0).next == 0


@pytest.mark.parametrize("limit", [0, 4])
def test_a_lease_that_is_over_and_locked_is_not_asked_for_again_at_once(
    engine: PostgresEngine, user: psycopg.Connection[Any], limit: int
) -> None:
    engine.execute([cmd.Configure("q", limit=limit)])
    put(engine, "a1 b1", attempts=9)
    now = int(time.time() * 1_000)
    commands = [cmd.Claim("q", 1, 50, "w"), cmd.Claim("q", 1, 60, "w")]
    engine.execute(commands, now)
    user.execute(f"SELECT FROM {engine.schema}.message WHERE id = 'a1' FOR UPDATE")

    def claim_at(moment: int) -> Claimed:
        (reply,) = engine.execute([cmd.Claim("q", 1, 60_000, "w")], moment)
        assert isinstance(reply, Claimed)
        return reply

    assert (claim_at(now + 55).next, ids(claim_at(now + 60))) == (10, ["b1"])
    assert claim_at(now + 60).next == 10
    user.rollback()
    assert ids(claim_at(now + 60)) == ["a1"]


def test_claims_of_several_limited_queues_wait_in_no_circle(
    engine: PostgresEngine, url: str, postgres: PostgresServer
) -> None:
    for queue in "qp":
        engine.execute([cmd.Configure(queue, limit=1_000)])
        put(engine, " ".join(f"a{number}" for number in range(400)), queue)
    put(engine, "1 2", delay=60_000)
    commands: dict[str, cmd.Command] = {
        **{queue: cmd.Claim(queue, 1, 60_000, "w") for queue in "qp"},
        **{id: cmd.Reschedule("q", [id], delay=60_000) for id in "12"},
    }
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"
    with postgres.client() as client:
        before = client.execute(query.encode()).fetchall()

    def opened() -> PostgresEngine:
        """Open an engine that knows of the limits, before others hold locks."""
        own = from_url(urlsplit(url))()
        for queue in "qp":
            claim(own, 0, queue)
        postgres_caller(own).connection.execute("SET deadlock_timeout = '5 ms'")
        return own

    def many(own: PostgresEngine, order: str) -> None:
        for _ in range(effort(20, 60)):
            with suppress(PartlyDone):  # a busy machine: it waited for a lock for too long
                own.execute([commands[name] for name in order])
        own.close()

    orders = ("qp", "pq", "pq12", "qp21", "q1", "1q")
    engines = [opened() for _ in orders]
    with ThreadPoolExecutor() as threads:
        list(threads.map(many, engines, orders))
    with postgres.client() as client:
        client.execute("SELECT pg_stat_force_next_flush()")
        assert client.execute(query.encode()).fetchall() == before


def work(url: str, log: str) -> None:
    """Claim and ack; write down what was claimed when."""
    with Path(log).open("a", buffering=1) as file, bide.Queue("q", url) as queue:
        while True:
            with suppress(bide.LeaseLost, bide.StoreBusy):  # it had no turn on a busy machine
                for delivery in queue.claim(2, wait=60, lease=0.5):
                    file.write(f"{delivery.claimed}\n")
                    time.sleep(0.01)  # it works
                    delivery.ack()


@pytest.fixture
def started() -> Iterator[Callable[..., BaseProcess]]:
    """Starts processes that call a function; they are killed at the end, also of a failed test."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []

    def start(function: Callable[..., object], *arguments: str) -> BaseProcess:
        process = context.Process(target=function, args=arguments)
        process.start()
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.full
@pytest.mark.process
def test_processes_together_keep_limits_and_those_that_are_killed_hold_nothing_up(
    engine: PostgresEngine,
    url: str,
    tmp_path: Path,
    postgres: PostgresServer,
    started: Callable[..., BaseProcess],
) -> None:
    log = tmp_path / "log"
    limits = {"limit": 4, "group_limit": 2, "rate": 2_000}
    engine.execute([cmd.Configure("q", **limits)])  # type: ignore[arg-type]
    workers = [started(work, url, str(log)) for _ in range(PROCESSES)]
    leased = f"FROM {engine.schema}.message WHERE state = 2"
    look = (
        f"SELECT (SELECT count(*) FROM {engine.schema}.message), (SELECT count(*) {leased}),"
        f' (SELECT max(n) FROM (SELECT count(*) AS n {leased} GROUP BY "group") AS g)'
    )
    left, most = MESSAGES, 0
    with postgres.client() as client:
        until(client, f"SELECT count(*) FROM {engine.schema}.sleeper", [(PROCESSES,)])
        put(engine, " ".join(f"{'abcdef'[n % 6]}{n}" for n in range(MESSAGES)), attempts=99)
        deadline = time.monotonic() + BOUND
        while left and time.monotonic() < deadline:
            ((left, of_all, of_group),) = client.execute(look.encode()).fetchall()
            assert of_all <= limits["limit"]
            assert (of_group or 0) <= limits["group_limit"]
            most = max(most, of_all)
            for worker in workers[: max(0, 2 - left * 3 // MESSAGES)]:  # two die on the way
                worker.kill()
    for worker in workers:
        worker.kill()
        worker.join()
    assert (left, most) == (0, limits["limit"])
    assert counts(engine).flow.acked == MESSAGES
    times = sorted(int(line) for line in log.read_text().split())
    for first, start in enumerate(times):
        for count, end in enumerate(times[first:], 1):
            assert count <= ((end + 1 - start) * 1000 + CREDIT) // limits["rate"] + 1


def test_the_end_of_a_lease_wakes_no_more_than_can_be_served(
    engine: PostgresEngine, url: str, postgres: PostgresServer
) -> None:
    engine.execute([cmd.Configure("q", limit=2)])
    put(engine, "a1 a2 a3 a4")
    held = leases(claim(engine))
    assert len(held) == 2
    sleepers = [from_url(urlsplit(url))() for _ in range(3)]

    heard: list[int] = []

    def hear(number: int, notifier: Notifier) -> None:
        while hints := notifier.listen():
            heard.extend(number for _ in hints)

    with ThreadPoolExecutor() as threads, postgres.client() as client:
        for number, sleeper in enumerate(sleepers):
            notifier = sleeper.notifier()
            assert notifier is not None
            threads.submit(hear, number, notifier)
            assert ids(claim(sleeper)) == []
        query = f"SELECT min(until) FROM {engine.schema}.sleeper"
        ((end,),) = client.execute(query.encode()).fetchall()  # of the first lease
        deadline = time.monotonic() + BOUND
        for number, lease in enumerate(held, 1):
            engine.execute([cmd.Ack("q", [lease])])
            woken = f"SELECT count(*) FROM {engine.schema}.sleeper WHERE until < {end}"
            until(client, woken, [(number,)])
            while len(heard) < number and time.monotonic() < deadline:
                time.sleep(0.01)
        for sleeper in sleepers:
            sleeper.close()
    assert len(set(heard)) == len(heard) == 2


def test_a_put_within_a_transaction_sets_limits_once_and_then_locks_nothing(
    engine: PostgresEngine, url: str, user: psycopg.Connection[Any]
) -> None:
    with bide.Queue("q", url, limit=1) as queue:
        queue.put("a", id="a1", within=user)
        user.commit()
        assert queue.counts().limit == 1
    with bide.Queue("q", url, limit=1) as queue:
        queue.put("b", id="b1", within=user)
        assert ids(claim(engine)) == ["a1"]  # while the transaction is open
        user.commit()
    assert ids(claim(engine)) == []
    assert counts(engine).sizes.ready == 1


def test_what_several_processes_give_back_comes_in_its_order(
    engine: PostgresEngine, url: str
) -> None:
    """They name the groups, and the next claim gives all of them heads."""
    engine.execute([cmd.Configure("q", limit=9)])
    put(engine, "a1 c1 b1 d1", attempts=9)
    held = dict(zip("acbd", leases(claim(engine)), strict=True))
    for group in "dbca":
        other = from_url(urlsplit(url))()
        other.execute([cmd.RetryCommand("q", [held[group]], release=True)])
        other.close()
    assert ids(claim(engine)) == ["a1", "c1", "b1", "d1"]
    assert counts(engine).sizes.leased == 4


def test_groups_that_are_idle_are_forgotten(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Configure("q", limit=9)])
    put(engine, "a1 b1")
    held = claim(engine)
    assert user.execute(f"SELECT count(*) FROM {engine.schema}.limited_group").fetchone() == (2,)
    engine.execute([cmd.Ack("q", leases(held))])
    assert ids(claim(engine)) == []
    assert user.execute(f"SELECT count(*) FROM {engine.schema}.limited_group").fetchone() == (0,)
    put(engine, "c1")
    claim(engine, 0)
    engine.execute([cmd.Edit("q", ["c1"], group="d"), cmd.Cancel("q", ["c1"])])
    assert ids(claim(engine)) == []
    assert user.execute(f"SELECT count(*) FROM {engine.schema}.limited_group").fetchone() == (0,)


def test_a_message_that_comes_and_goes_changes_its_group_no_more_than_twice(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    def changes() -> int:
        caller = postgres_caller(engine)
        assert caller is not None
        caller.settle()
        caller.connection.execute("SELECT pg_stat_force_next_flush()")
        query = (
            "SELECT n_tup_upd FROM pg_stat_user_tables"
            " WHERE schemaname = %s AND relname = 'limited_group'"
        )
        with postgres.client() as client:
            ((count,),) = client.execute(query, (engine.schema,)).fetchall()
        return int(count)

    engine.execute([cmd.Configure("q", limit=5, group_limit=3, rate=1)])
    put(engine, "a", delay=3_600_000)
    before = changes()
    for number in range(10):
        put(engine, f"a{number}")
        engine.execute([cmd.Ack("q", leases(claim(engine)))])
    assert changes() - before <= 20  # the claim, and the end of the lease
    counts(engine)


def test_the_end_of_a_lease_is_forgotten_if_the_limits_of_its_queue_are_gone(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    """The transaction that ends it began before they were taken away."""
    engine.execute([cmd.Configure(queue, limit=5) for queue in ("q", "another")])
    user.execute(f"SET search_path = {engine.schema}".encode())
    names = "SELECT l.id, q.name FROM limited AS l JOIN queue AS q ON q.id = l.queue"
    limits = user.execute(names).fetchall()
    user.commit()
    engine.execute([cmd.Configure("q", limit=0)])
    for number, name in limits:
        user.execute("INSERT INTO reopened VALUES (%s, %s, 1)", (number, name))
    user.commit()
    user.execute("SELECT FROM _fold()")
    assert user.execute("SELECT name FROM reopened").fetchall() == [("another",)]


def test_limits_that_come_while_a_transaction_is_open_hold_for_what_it_does(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    """It has begun before the limits, and makes a message ready after they were set."""
    put(engine, "a1 a2", attempts=9)
    (lease, _) = leases(claim(engine))
    user.execute("SELECT pg_current_xact_id()")
    engine.execute([cmd.Configure("q", limit=1)])
    assert ids(claim(engine)) == []
    user.execute(
        f"UPDATE {engine.schema}.message SET state = 1, limited = NULL, token = NULL,"
        f" rank = {engine.schema}._rank(1, due, priority) WHERE id = %s".encode(),
        (lease.id,),
    )
    user.execute(
        f"INSERT INTO {engine.schema}.reopened SELECT limited, 'a', 1"
        f" FROM {engine.schema}.queue".encode()
    )
    claim(engine, 0)
    user.commit()
    engine.execute([cmd.Release("q", ["a2"])])
    assert ids(claim(engine)) == ["a1"]


def test_limits_hold_for_what_began_before_they_were_committed(
    engine: PostgresEngine, postgres: PostgresServer, user: psycopg.Connection[Any]
) -> None:
    """A claim makes a message ready, and does not know of the limits."""
    put(engine, "a1")
    with psycopg.connect(postgres.url) as other:
        limits = "SELECT FROM {}._configure('q', NULL, NULL, NULL, p_limits => ARRAY[9, 0, 0, 0])"
        other.execute(limits.format(engine.schema).encode())
        user.execute(f"SET search_path = {engine.schema}".encode())
        user.execute("SELECT _promote(id, 0, 9007199254740992, 9) FROM queue")
    for _ in range(2):
        assert ids(claim(engine)) == []
    user.commit()
    assert ids(claim(engine)) == ["a1"]
    counts(engine)


@pytest.fixture
def slow(engine: PostgresEngine, user: psycopg.Connection[Any]) -> Iterator[None]:
    """Lets whoever takes a message back wait for the user's transaction."""
    user.execute(
        f"""
        SET search_path = {engine.schema};
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON message FOR EACH ROW
        WHEN (OLD.state = 2 AND NEW.state = 1) EXECUTE FUNCTION wait();
    """.encode()
    )
    user.commit()
    user.execute("SELECT pg_advisory_xact_lock(7)")
    yield
    user.rollback()
    user.execute("DROP FUNCTION wait CASCADE")
    user.commit()


@pytest.mark.usefixtures("slow")
def test_a_claim_that_does_not_know_of_limits_leases_what_they_know_of(
    engine: PostgresEngine, postgres: PostgresServer, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a1 a2", attempts=9, priority=1)
    engine.execute([cmd.Claim("q", 1, 1, "w")])  # and a2 is ready
    claimer = engine.reader()
    with ThreadPoolExecutor() as threads, postgres.client() as client:
        claiming = threads.submit(claim, claimer)
        until(client, "SELECT count(*) FROM pg_locks WHERE NOT granted", [(1,)])
        engine.execute([cmd.Configure("q", limit=1)])
        user.rollback()
        held = claiming.result()
    assert sorted(ids(held)) == ["a1", "a2"]
    claimer.execute([cmd.Ack("q", leases(held))])
    claimer.close()
    put(engine, "b1 b2")
    assert ids(claim(engine)) == ["b1"]
    assert counts(engine).sizes.leased == 1


def test_a_lease_that_is_locked_while_limits_are_set_counts_later(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a1 a2", attempts=9)
    assert ids(claim(engine, 1)) == ["a1"]
    user.execute(f"SELECT FROM {engine.schema}.message WHERE id = 'a1' FOR UPDATE")
    engine.execute([cmd.Configure("q", limit=1)])
    assert counts(engine).sizes.leased == 1
    user.rollback()
    assert ids(claim(engine)) == []
    assert counts(engine).sizes.leased == 1


def test_a_lease_that_is_locked_at_each_claim_after_limits_were_set_counts_later(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a1 a2 a3", attempts=9)
    assert ids(claim(engine, 1)) == ["a1"]
    for change in (cmd.Configure("q", limit=2), cmd.Claim("q", 0, 60_000, "w")):
        user.execute(f"SELECT FROM {engine.schema}.message WHERE id = 'a1' FOR UPDATE")
        engine.execute([change])
        user.rollback()
    user.execute(f"SELECT FROM {engine.schema}.message WHERE id = 'a1' FOR UPDATE")
    assert ids(claim(engine, 1)) == ["a2"]
    user.rollback()
    assert ids(claim(engine)) == []
    assert counts(engine).sizes.leased == 2
    lining = user.execute(f"SELECT lined FROM {engine.schema}.limited".encode())
    assert lining.fetchall() == [(None,)]


OLDER = """
INSERT INTO store VALUES (3);
INSERT INTO queue (name, limited) VALUES ('q', 1);
INSERT INTO limited (queue, "limit", group_limit, group_rate, turn, running, last, lined)
SELECT id, 5, 2, 2000000, 8192, 3, 999900000, NULL FROM queue;
INSERT INTO message (seq, id, due, rank, state, "group", token, holder, since, limited, queue,
                     created, attempts, attempt, size, priority, is_json, data)
SELECT n, m.id, due, CASE state WHEN 0 THEN due * 256 + 255
                                WHEN 1 THEN 255 * 4398046511104 + due ELSE 1009000 END,
       state, "group", CASE state WHEN 2 THEN 5 END, CASE state WHEN 2 THEN 'w' END, NULL,
       CASE WHEN state > 0 THEN 1 END, q.id, 1000000, 9, 0, 3, 0, true, '1'
FROM queue AS q, (VALUES
  (1, 'a1', 1000000, 2, 'a'), (2, 'n1', 1000000, 2, NULL), (3, 'a2', 1000000, 1, 'a'),
  (4, 'a3', 1000000, 1, 'a'), (5, 'b1', 1000000, 1, 'b'), (6, 'c1', 1000000, 1, 'c'),
  (7, 'later', 1004000, 0, 'idle')) AS m(n, id, due, state, "group");
INSERT INTO tally SELECT id, what, hour, by FROM queue, (VALUES
  ('leased', -1, 2), ('pending', 1, 5), ('put', -1, 7)) AS t(what, hour, by);
INSERT INTO turn (limited, name, standing, turn, running, last) VALUES
  (1, '', 0, 4096, 1, 0), (1, 'a', 2, 8192, 1, 999900000), (1, 'b', 1, 4097, 1, 0),
  (1, 'idle', 2, 4096, 0, 1003500000);
INSERT INTO lease_end (limited, name, ended, entered, moment)
VALUES (1, 'b', 1, true, 0), (1, 'c', 0, true, 0);
"""
"""What a version 3 has of a queue with limits, of which two groups are to be looked at again."""


def test_a_limited_queue_of_an_older_layout_goes_on(postgres: PostgresServer) -> None:
    with postgres.client() as client:
        client.execute("CREATE SCHEMA limits_before")
        client.execute("SET search_path = limits_before, pg_temp")
        for number in (1, 2, 3):
            text = MIGRATIONS[number].read_text()
            client.execute(re.sub(r"\bbide\.", "limits_before.", text).encode())
        client.execute(OLDER.encode())
        engine = from_url(urlsplit(f"{postgres.url}&schema=limits_before"))()

        def at(moment: int, *commands: cmd.Command) -> Any:
            (reply,) = engine.execute(list(commands), moment)
            return reply

        claiming = cmd.Claim("q", 9, 1_000, "w")

        def counted() -> Counts:
            reply = at(1_000_100, cmd.Count("q", recount=True))
            assert isinstance(reply, Counts)
            return reply

        assert (counted().sizes.leased, counted().strays) == (2, 0)
        assert ids(at(1_000_100, claiming)) == ["b1", "c1"]
        at(1_000_200, cmd.Ack("q", [cmd.Lease("n1", 5), cmd.Lease("a1", 5)]))
        assert ids(at(1_001_099, claiming)) == []  # the rate of a
        held = at(1_001_900, claiming)
        assert ids(held) == ["a2"]
        at(1_001_900, cmd.Ack("q", leases(held)))
        held = at(1_003_900, claiming)
        assert sorted(ids(held)) == ["a3", "b1", "c1"]
        at(1_003_900, cmd.Ack("q", leases(held)))
        assert ids(at(1_005_499, claiming)) == []  # the rate of the group that had nothing
        assert ids(at(1_005_500, claiming)) == ["later"]
        assert (counted().sizes.total, counted().strays) == (1, 0)
        engine.close()
        client.execute("DROP SCHEMA limits_before CASCADE")
