"""Commands that wait for a message that the user's own transaction has changed."""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from bide.model.errors import StoreBusy
from bide.model.message import EXPIRED_KEEP, Item
from bide.model.replies import Affected, Claimed, Counts, Found, Outcomes, Reply
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import BOUND, PostgresServer


def put(user: psycopg.Connection[Any], engine: PostgresEngine, id: str, more: str) -> None:
    user.execute(f"SELECT {engine.schema}.put('q', '[1]', id => '{id}', {more})".encode())


def audit(engine: PostgresEngine) -> None:
    (reply,) = engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(reply, Counts)
    assert (reply.recount, reply.strays) == (reply.sizes, 0)


def waited(
    engine: PostgresEngine,
    user: psycopg.Connection[Any],
    postgres: PostgresServer,
    begin: Callable[[str], cmd.Command],
) -> tuple[str, Reply]:
    """Execute a command that waits for the user's commit; return the id, and the reply.

    Args:
        engine: that executes the command.
        user: who has changed the message.
        postgres: their server.
        begin: change a message with this id, and return the command.
    """
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    deadline = time.monotonic() + BOUND
    with ThreadPoolExecutor() as threads, postgres.client() as client:
        for number in itertools.count():
            assert time.monotonic() < deadline, "it was busy each time"
            changing = threads.submit(engine.execute, [begin(f"a{number}")])
            while not changing.done():
                if client.execute(waits, (f"%{engine.schema}%",)).fetchall() != [(0,)]:
                    break
            user.commit()
            with suppress(StoreBusy):  # on a busy machine
                (reply,) = changing.result(BOUND)
                return f"a{number}", reply
    raise AssertionError


def is_done(reply: Reply) -> bool:
    assert isinstance(reply, Outcomes)
    return reply.outcomes[0].done


@pytest.mark.parametrize("change", ["cancel", "replace"])
def test_who_waits_for_a_replacement_changes_what_was_put(
    engine: PostgresEngine, user: psycopg.Connection[Any], postgres: PostgresServer, change: str
) -> None:
    def begin(id: str) -> cmd.Command:
        engine.execute([cmd.Put("q", [Item(id, b"1", delay=60_000)])])
        put(user, engine, id, "delay => '1h', on_conflict => 'replace'")
        if change == "cancel":
            return cmd.Cancel("q", [id])
        return cmd.Put("q", [Item(id, b"2", delay=3_600_000)], "replace")

    id, reply = waited(engine, user, postgres, begin)
    assert is_done(reply)
    audit(engine)
    (found,) = engine.execute([cmd.Find("q", [id])])
    assert isinstance(found, Found)
    assert [message and message.data for message in found.messages] == (
        [None] if change == "cancel" else [b"2"]
    )


@pytest.mark.parametrize("change", ["put", "extend", "retry"])
def test_an_ack_waits_for_what_changes_the_message(
    engine: PostgresEngine, user: psycopg.Connection[Any], postgres: PostgresServer, change: str
) -> None:
    def begin(id: str) -> cmd.Command:
        engine.execute([cmd.Put("q", [Item(id, b"1", attempts=9)])])
        (reply,) = engine.execute([cmd.Claim("q", 10, 60_000, "w")])
        assert isinstance(reply, Claimed)
        assert id in [message.id for message in reply.messages]
        if change == "put":
            put(user, engine, id, "delay => '1h', latest => '2h', on_conflict => 'replace'")
        else:  # an extension by a millisecond, which is over before the ack
            query = (
                f"SELECT FROM {engine.schema}._change('{change}', 'q', NULL, %s, %s, p_delay => 1)"
            )
            user.execute(query.encode(), ([id], [reply.token]))
            user.execute("SELECT pg_sleep(0.01)")
        return cmd.Ack("q", [cmd.Lease(id, reply.token)])

    id, reply = waited(engine, user, postgres, begin)
    assert is_done(reply) == (change == "put")
    (found,) = engine.execute([cmd.Find("q", [id])])
    assert isinstance(found, Found)
    assert [message and (message.state, message.successor) for message in found.messages] == [
        ("delayed" if change == "put" else "ready", None)
    ]
    audit(engine)


def test_a_rule_for_what_runs_leaves_alone_what_has_been_released_meanwhile(
    engine: PostgresEngine, user: psycopg.Connection[Any], postgres: PostgresServer
) -> None:
    def begin(id: str) -> cmd.Command:
        engine.execute([cmd.Put("q", [Item(id, b"1", group=id)])])
        (reply,) = engine.execute([cmd.Claim("q", 10, 60_000, "w")])
        assert isinstance(reply, Claimed)
        query = (
            f"SELECT FROM {engine.schema}._change('retry', 'q', NULL, %s, %s, p_untouched => true,"
            " p_delay => 3600000)"
        )
        user.execute(query.encode(), ([id], [reply.token]))
        return cmd.Cancel("q", where=cmd.Where(group=id), running=True)

    id, reply = waited(engine, user, postgres, begin)
    assert reply == Affected(0)
    (found,) = engine.execute([cmd.Find("q", [id])])
    assert isinstance(found, Found)
    assert [message and message.state for message in found.messages] == ["delayed"]
    audit(engine)


NOW = 1_700_000_000_000


def lock_queue(user: psycopg.Connection[Any], engine: PostgresEngine) -> None:
    """Lock the row of the queue, as the first put with a priority does."""
    put(user, engine, "urgent", "priority => 1")


def claimed(engine: PostgresEngine, now: int) -> Claimed:
    (reply,) = engine.execute([cmd.Claim("q", 9, 60_000, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def kept(engine: PostgresEngine, now: int) -> int:
    """Return how many ended messages there are, once a command has forgotten what it may."""
    _, reply = engine.execute([cmd.Cancel("q", ["other"]), cmd.Count("q")], now)
    assert isinstance(reply, Counts)
    return reply.kept


@pytest.mark.parametrize("limit", [0, 9])
def test_a_message_that_expires_while_the_queue_is_locked_holds_up_no_claim(
    engine: PostgresEngine, user: psycopg.Connection[Any], limit: int
) -> None:
    engine.execute([cmd.Configure("q", limit=limit)])
    engine.execute([cmd.Claim("q", 1, 60_000, "w")], NOW)  # notes the lease
    engine.execute([cmd.Put("q", [Item("late", b"1", expires=1), Item("good", b"1")])], NOW)
    lock_queue(user, engine)
    assert [message.id for message in claimed(engine, NOW + 2).messages] == ["good"]
    user.rollback()
    again = [cmd.Put("q", [Item("late", b"1", expires=1)])]
    (early,) = engine.execute(again, NOW + 3)
    assert not is_done(early)
    (after_keep,) = engine.execute(again, NOW + 3 + EXPIRED_KEEP)
    assert is_done(after_keep)


@pytest.mark.parametrize("ids", [["late"], ["late", "renewed"]])
def test_what_has_expired_while_the_queue_was_locked_is_forgotten(
    engine: PostgresEngine, user: psycopg.Connection[Any], ids: list[str]
) -> None:
    items = [Item("late", b"1", expires=1), Item("renewed", b"1", rule="{}", run="{}")]
    engine.execute([cmd.Put("q", items[: len(ids)]), cmd.Claim("q", 0, 60_000, "w")], NOW)
    lock_queue(user, engine)
    if leases := claimed(engine, NOW + 2).leases:
        engine.execute([cmd.Renew("q", leases, [None], "expired")], NOW + 2)
    later = NOW + 3 + EXPIRED_KEEP
    for _ in range(2):  # what it cannot note yet is not lost
        postgres_caller(engine).settle()
        postgres_caller(engine)("_fold")
        assert kept(engine, later) == len(ids)
    user.rollback()
    assert kept(engine, later) == len(ids)
    postgres_caller(engine).settle()
    postgres_caller(engine)("_fold")
    assert kept(engine, later) == 0
