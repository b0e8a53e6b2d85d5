"""Scans by due times read again what has returned since they began."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_RETURNED
from bide.model.message import Item
from bide.model.replies import Page
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import PostgresServer

START = 1_700_000_000_000
HOUR = 3_600_000
THIS_HOUR = cmd.Where(after=START, before=START + HOUR)


@pytest.fixture
def user(
    postgres: PostgresServer, engine: PostgresEngine
) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Provide a client that sees the tables of the store."""
    with closing(postgres.client()) as client:
        client.execute(f"SET search_path = {engine.schema}".encode())
        client.execute("DELETE FROM returned; INSERT INTO returned VALUES (0, 0, '')")
        client.autocommit = False
        yield client


def put(engine: PostgresEngine, *ids: str, at: int) -> None:
    engine.execute([cmd.Put("q", [Item(id, b"1", at=at) for id in ids])], START)


def reschedule(engine: PostgresEngine, *ids: str, at: int) -> None:
    engine.execute([cmd.Reschedule("q", list(ids), at=at)], START)


def page(engine: PostgresEngine, cursor: str | None = None, limit: int = 2) -> Page:
    (reply,) = engine.execute([cmd.Scan("q", None, THIS_HOUR, cursor, limit)], START)
    assert isinstance(reply, Page)
    return reply


def ids(page: Page) -> list[str]:
    return [message.id for message in page.messages]


def rest(engine: PostgresEngine, cursor: str | None) -> list[str]:
    """Return the ids on all further pages."""
    found: list[str] = []
    while cursor is not None:
        one = page(engine, cursor)
        found += ids(one)
        cursor = one.cursor
    return found


def fold(engine: PostgresEngine, kept: int) -> None:
    """Keep house, as engines do now and then."""
    postgres_caller(engine).settle()
    postgres_caller(engine)("_fold", kept)


def remembered(user: psycopg.Connection[Any]) -> list[str]:
    rows = user.execute("SELECT id FROM returned ORDER BY number").fetchall()
    user.commit()
    return [id for (id,) in rows]


def test_a_return_in_a_transaction_that_was_open_is_not_missed(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a", "b", "c", at=START + 1_000)
    put(engine, "late", at=START + 2_000)
    put(engine, "other", at=START + 3_000)
    user.execute(
        "SELECT reschedule('q', 'late', at => %s)", (datetime.fromtimestamp(START / 1000, UTC),)
    )
    reschedule(engine, "other", at=START + 2_500)  # a later transaction, which ends earlier
    first = page(engine)
    assert ids(first) == ["a", "b"]
    user.commit()
    assert rest(engine, first.cursor).count("late") == 1


def test_a_scan_whose_begin_is_forgotten_reads_all_by_id(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a", "b", "c", "d", at=START + 1_000)
    put(engine, "outside", at=START + HOUR)
    first = page(engine)
    reschedule(engine, "d", at=START)
    user.execute("DELETE FROM returned")
    user.commit()
    second = page(engine, first.cursor)
    assert ids(second) == ["c", "a"]
    assert rest(engine, second.cursor) == ["b", "c", "d"]


def test_the_last_returns_are_remembered(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    names = ["a", "b", "c", "d", "e"]
    put(engine, *names, at=START + 1_000)
    for id in names:
        reschedule(engine, id, at=START + 500)
    arguments = "SELECT pg_get_function_arguments('_fold'::regproc)"
    assert user.execute(arguments).fetchone() == (f"p_returned bigint DEFAULT {MAX_RETURNED}",)
    fold(engine, MAX_RETURNED)
    assert remembered(user) == ["", *names]
    fold(engine, 3)
    assert remembered(user)[-3:] == ["c", "d", "e"]
    first = page(engine)
    reschedule(engine, *names, at=START)
    reschedule(engine, "a", at=START - HOUR)
    fold(engine, 3)
    assert set(rest(engine, first.cursor)) == {"b", "c", "d", "e"}


def test_returns_of_another_server_hide_none_of_this_one(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a", "b", at=START + 1_000)
    user.execute(
        "INSERT INTO returned SELECT 1000000000 + n, 1, 'x' FROM generate_series(1, 5) AS n"
    )
    user.commit()
    reschedule(engine, "a", at=START)
    fold(engine, 2)
    assert remembered(user) == ["", "a"]


def test_a_scan_reads_all_again_if_a_fail_over_may_have_lost_changes(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a", "b", "c", at=START + 1_000)
    first = page(engine)
    assert first.cursor is not None
    place, _, since = first.cursor.partition("~")
    ((history,),) = user.execute("SELECT _history()").fetchall()
    assert history == int(since) >> 44 << 44
    other = f"{place}~{int(since) ^ 1 << 44}"  # of another timeline
    assert rest(engine, first.cursor) == ["c"]
    assert rest(engine, other) == ["c", "a", "b", "c"]


def test_an_older_store_reads_all_by_id_until_transactions_of_its_time_have_ended(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "b", "a", at=START + 1_000)
    user.execute("DELETE FROM returned")
    user.commit()
    first = page(engine, limit=1)
    assert first.cursor == "id:a"
    fold(engine, MAX_RETURNED)
    assert ids(page(engine, limit=1)) == ["b"]


@pytest.mark.parametrize("since", ["", "x", "-1", "1.5", "9" * 20, "9" * 5_000])
def test_a_cursor_that_no_scan_made_is_refused(engine: PostgresEngine, since: str) -> None:
    with pytest.raises(InvalidArgument, match="is not from a scan"):
        page(engine, f"returned:{since}:a")


def test_a_cursor_of_another_store_reads_all(engine: PostgresEngine) -> None:
    put(engine, "a", "b", at=START + 1_000)
    for since in ("0", "9" * 19):
        assert rest(engine, f"returned:{since}:a") == ["a", "b"]


def test_what_goes_on_to_a_later_place_is_not_remembered(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(engine, "a", "b", at=START)
    reschedule(engine, "a", at=START + 1_000)
    engine.execute([cmd.Claim("q", 1, 60_000, "w"), cmd.Cancel("q", ["a"])], START)
    assert remembered(user) == [""]
