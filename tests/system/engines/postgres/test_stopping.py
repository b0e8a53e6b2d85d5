"""Who hears that a message is to be stopped, and that it has ended."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.port import Notifier
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.ended import STOPPED_KEEP, message_hint
from bide.model.replies import Affected, Claimed, Ends, Outcomes
from tests.contract.engines.postgres import claims
from tests.postgres_server import PostgresServer
from tests.waiting import until

HOUR = 3_600_000

WORKER = """
import asyncio, pathlib, bide
app = bide.App()

@app.handler("q", lease="1h")
async def work(body: object) -> None:
    pathlib.Path("began").touch()
    await asyncio.sleep(3600)
"""


def notifier_of(engine: PostgresEngine) -> Notifier:
    notifier = engine.notifier()
    assert notifier is not None
    return notifier


def claimed(engine: PostgresEngine, count: int = 10) -> Claimed:
    (reply,) = engine.execute([cmd.Claim("q", count, HOUR, "w")])
    assert isinstance(reply, Claimed)
    return reply


@pytest.fixture
def url(postgres_url: Callable[[], str]) -> str:
    return postgres_url()


@pytest.fixture
def engine(url: str) -> Iterator[PostgresEngine]:
    """Provide the engine of a process that listens, and has claimed all messages of a queue."""
    engine = from_url(urlsplit(url))()
    notifier = notifier_of(engine)
    claims.put(engine, "a1 a2 b1")
    engine.execute([cmd.Claim("q", 10, HOUR, "w")])
    yield engine
    engine.close()
    assert notifier.listen() == []


@pytest.fixture
def other(url: str) -> Iterator[PostgresEngine]:
    """Provide the engine of another process."""
    engine = from_url(urlsplit(url))()
    yield engine
    engine.close()


def stop(engine: PostgresEngine, *ids: str) -> None:
    (reply,) = engine.execute([cmd.Cancel("q", list(ids), running=True)])
    assert isinstance(reply, Outcomes)
    assert [outcome.state for outcome in reply.outcomes] == ["stopping"] * len(ids)


def test_a_worker_in_another_process_stops_at_once(url: str, tmp_path: Path) -> None:
    """Its leases are so long that without a hint it would ask 20 minutes later."""
    (tmp_path / "jobs.py").write_text(WORKER)
    worker = subprocess.Popen(
        [sys.executable, "-m", "bide", "worker", "jobs:app"],
        cwd=tmp_path,
        env={**os.environ, "BIDE_URL": url},
    )
    try:
        with bide.Queue("q", url) as queue:
            queue.put(1, id="a")
            until((tmp_path / "began").exists)
            outcome = queue.cancel("a", running=True, wait="60s")
            assert (bool(outcome), outcome.state) == (True, None)
            assert [end.how for end in queue.history("a")] == ["cancelled"]
    finally:
        worker.terminate()
        worker.wait()


def test_the_process_that_has_claimed_a_message_is_told_and_no_other(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    bystander = notifier_of(other)
    stop(other, "a2")
    assert notifier_of(engine).listen() == [(message_hint("q", "a2"), 0)]
    (reply,) = other.execute([cmd.Cancel("q", where=cmd.Where(group="b"), running=True)])
    assert isinstance(reply, Affected)
    assert reply.stopping == ["b1"]
    hints = notifier_of(engine).listen()
    assert sorted(hints) == [(message_hint("q", "a2"), 0), (message_hint("q", "b1"), 0)]
    other.close()
    assert bystander.listen() == []


def test_a_process_that_does_not_listen_is_told_nothing(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    engine.execute([cmd.Release("q", ["a1"])])
    assert [message.id for message in claimed(other).messages] == ["a1"]
    stop(other, "a1", "a2")
    assert notifier_of(engine).listen() == [(message_hint("q", "a2"), 0)]


def test_in_a_queue_with_limits_the_process_is_told_as_well(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    engine.execute([cmd.Configure("q", limit=10), cmd.Release("q", ["a1"])])
    assert [message.id for message in claimed(engine).messages] == ["a1"]
    stop(other, "a1")
    assert notifier_of(engine).listen() == [(message_hint("q", "a1"), 0)]


def test_of_several_messages_none_is_left_out(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    """Notifications may come while the process asks which messages those before are about."""
    for id in ("a1", "a2", "b1"):
        stop(other, id)
    heard: set[str] = set()
    while len(heard) < 3:
        heard |= {name for name, _ in notifier_of(engine).listen()}
    assert heard == {message_hint("q", id) for id in ("a1", "a2", "b1")}


def test_in_the_transaction_of_a_user_it_is_told_by_the_commit(
    engine: PostgresEngine, other: PostgresEngine, user: psycopg.Connection[Any], url: str
) -> None:
    with bide.Queue("q", url) as queue:
        outcome = queue.cancel("a1", running=True, within=user)
        assert outcome.state == "stopping"
        user.rollback()
        message = queue.get("a1")
        assert message is not None
        assert message.stopping is None
        assert queue.cancel("a2", running=True, within=user).state == "stopping"
        count = queue.cancel(group="b", running=True, within=user)
        assert (count, count.stopping) == (0, 1)
        stop(other, "a1")  # of another transaction, which commits first
        assert notifier_of(engine).listen() == [(message_hint("q", "a1"), 0)]
        user.commit()
        hints = sorted(name for name, _ in notifier_of(engine).listen())
        assert hints == [message_hint("q", id) for id in ("a1", "a2", "b1")]


def test_whoever_waits_for_its_end_is_told_of_an_ack_among_others(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    """Most acks are one statement for all; without a history they remember nothing."""
    engine.execute([cmd.Release("q", ["a1", "a2"])])
    again = claimed(engine)
    stop(other, "a2")
    notifier = notifier_of(other)
    other.execute([cmd.History("q", "a2", watch=True)])
    leases = [cmd.Lease(message.id, again.token) for message in again.messages]
    (acked,) = engine.execute([cmd.Ack("q", leases)])
    assert isinstance(acked, Outcomes)
    assert [outcome.done for outcome in acked.outcomes] == [True, True]
    assert notifier.listen() == [(message_hint("q", "a2"), 0)]
    ends = engine.execute([cmd.History("q", id) for id in ("a1", "a2")])
    assert [[end.how for end in each.ends] for each in ends if isinstance(each, Ends)] == [
        [],
        ["acked"],
    ]
    other.close()
    assert notifier.listen() == []


def test_what_was_stopped_is_forgotten_in_time(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    """The next look after the counters were added up deletes it."""
    stop(engine, "a1")
    engine.execute([cmd.Release("q", ["a1"])])
    (reply,) = engine.execute([cmd.History("q", "a1")])
    assert isinstance(reply, Ends)
    (end,) = reply.ends
    later = end.moment + STOPPED_KEEP
    (reply,) = engine.execute([cmd.History("q", "a1")], later)
    assert isinstance(reply, Ends)
    assert reply.ends == []
    with postgres.client() as client:
        client.execute(f"SELECT {engine.schema}._fold()".encode())
        kept = f"SELECT count(*) FROM {engine.schema}.ended".encode()
        for moment, count in ((later - 1, 1), (later, 0)):
            engine.execute([cmd.Cancel("q", ["none", "neither"])], moment)
            assert client.execute(kept).fetchall() == [(count,)]


def test_what_its_worker_is_settling_in_a_transaction_is_left_alone(
    url: str, other: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    claims.put(other, "c1 c2")
    held = claimed(other)
    query = f"SELECT FROM {other.schema}._change('ack', 'q', NULL, %s, %s)"
    user.execute(query.encode(), (["c1"], [held.token]))
    (reply,) = other.execute([cmd.Cancel("q", where=cmd.Where(group="c"), running=True)])
    assert reply == Affected(0, stopping=["c2"])
    (by_id,) = other.execute([cmd.Cancel("q", ["c1"], running=True)])
    assert isinstance(by_id, Outcomes)
    assert [outcome.state for outcome in by_id.outcomes] == ["settling"]
    user.commit()
    with bide.Queue("q", url) as queue:
        assert queue.get("c1") is None
        assert queue.history("c1") == []


def test_an_ack_in_the_transaction_of_a_user_is_remembered_too(
    engine: PostgresEngine, other: PostgresEngine, user: psycopg.Connection[Any], url: str
) -> None:
    """It is the shortest of all acks, and keeps nothing of other messages."""
    with bide.Queue("q", url) as queue:
        queue.put_many([bide.NewMessage(1, id=id) for id in ("c1", "c2")])
        one, two = queue.claim(2)
        stop(other, one.id)
        one.ack(within=user)
        two.ack(within=user)
        user.commit()
        assert [end.how for end in queue.history(one.id)] == ["acked"]
        assert queue.history(two.id) == []
