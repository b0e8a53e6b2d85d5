"""Limits that a queue gets while others claim from it and change its messages."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from tests.engines.postgres.claims import claim, counts, ids, leases, put
from tests.postgres_server import PostgresServer, until


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
        f"INSERT INTO {engine.schema}.lease_end (limited, name, ended, entered, moment)"
        f" SELECT limited, 'a', 1, false, 0 FROM {engine.schema}.queue".encode()
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
