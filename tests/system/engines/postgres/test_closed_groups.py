"""Closing a group and putting into it wait for each other; closing groups in SQL."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import bide
from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from bide.model.errors import StoreBusy
from bide.model.message import Item
from bide.model.replies import Affected, Claimed, GroupsClosed, Outcomes
from tests.postgres_server import PostgresServer

DAY = 86_400_000
CLOSE = cmd.CloseGroup("q", "g", DAY)


def ask(engine: PostgresEngine, command: cmd.Command) -> Any:
    (reply,) = engine.execute([command])
    return reply


@pytest.fixture
def url(postgres_url: Callable[[], str]) -> str:
    return postgres_url()


def test_a_group_is_not_closed_while_a_put_into_it_is_open(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    with postgres.client() as client:
        client.autocommit = False
        client.execute(
            f"SELECT {engine.schema}.put('q', '1', \"group\" => 'g', id => 'a')".encode()
        )
        with pytest.raises(StoreBusy):
            ask(engine, CLOSE)
        assert ask(engine, cmd.ClosedGroups("q")) == GroupsClosed([])
        closer = threading.Thread(target=ask, args=(engine, CLOSE))
        client.commit()
        closer.start()
        closer.join()
    affected = ask(engine, cmd.Cancel("q", where=cmd.Where("g")))
    assert affected == Affected(1)


def test_a_put_waits_for_a_transaction_that_closes_its_group(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    ask(engine, cmd.Put("q", [Item("there", b"1")]))
    with postgres.client() as client:
        client.autocommit = False
        client.execute(f"SELECT {engine.schema}.close_group('q', 'g')".encode())
        with pytest.raises(StoreBusy):
            ask(engine, cmd.Put("q", [Item("a", b"1", group="g")]))
        assert ask(engine, cmd.Put("q", [Item("b", b"1")])).outcomes[0].done
        client.commit()
    reply = ask(engine, cmd.Put("q", [Item("a", b"1", group="g")]))
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].state == "closed"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_what_an_older_snapshot_puts_is_cancelled_by_a_claim(
    postgres: PostgresServer, engine: PostgresEngine, level: str
) -> None:
    ask(engine, cmd.Put("q", [Item("there", b"1", delay=DAY)]))
    with postgres.client() as client:
        client.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        client.execute(b"SELECT 1")
        ask(engine, CLOSE)
        client.execute(
            f"SELECT {engine.schema}.put('q', '1', \"group\" => 'g', id => 'a')".encode()
        )
        client.execute(b"COMMIT")
    claimed = ask(engine, cmd.Claim("q", 10, 1_000, "w"))
    assert isinstance(claimed, Claimed)
    assert claimed.messages == []
    counts = ask(engine, cmd.Count("q", recount=True))
    assert (counts.flow.cancelled, counts.sizes.total, counts.strays) == (1, 1, 0)


def test_a_thousand_groups_in_one_put_need_few_locks(engine: PostgresEngine) -> None:
    items = [Item(f"m{number}", b"1", group=f"g{number}") for number in range(1_000)]
    outcomes = ask(engine, cmd.Put("q", items)).outcomes
    assert all(outcome.done for outcome in outcomes)


def test_groups_are_closed_in_sql(postgres: PostgresServer, engine: PostgresEngine) -> None:
    with postgres.client() as client:

        def call(text: str) -> Any:
            return client.execute(f"SELECT * FROM {engine.schema}.{text}".encode()).fetchall()

        call("put('q', '1', delay => '1 hour', \"group\" => 'g')")
        assert call("close_group('q', 'g', keep => '2 days')") == [(1,)]
        ((id, done, state, _due),) = call("put('q', '1', \"group\" => 'g', id => 'a')")
        assert (id, done, state) == ("a", False, "closed")
        assert [group for group, _until in call("closed_groups('q')")] == ["g"]
        assert call("reopen_group('q', 'g')") == [(True,)]
        assert call("reopen_group('q', 'g')") == [(False,)]
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="keep is more than 0"):
            call("close_group('q', 'g', keep => '0')")


def test_a_group_is_closed_in_the_transaction_of_its_caller(
    postgres: PostgresServer, url: str
) -> None:
    with bide.Queue("orders", url) as orders, postgres.client() as client:
        client.autocommit = False
        orders.put("a", delay="1h", group="g")
        assert orders.close_group("g", within=client) == 1
        assert not orders.put("b", group="g", within=client)
        client.rollback()
        assert orders.closed_groups() == []
        assert orders.close_group("g", within=client) == 1
        client.commit()
        assert not orders.put("b", group="g")
        assert orders.reopen_group("g", within=client)
        client.commit()
        assert orders.put("b", group="g")
