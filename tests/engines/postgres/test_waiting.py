"""How often a process looks that waits, and what wakes it meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.notifier import PostgresNotifier
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed
from tests.postgres_server import PostgresServer

BOUND = 60.0

FEW = 3
"""Claims after which a process is calm if nobody else is at work."""


@pytest.fixture
def url(postgres_url: Callable[[], str]) -> str:
    return postgres_url()


@pytest.fixture
def engine(url: str) -> Iterator[PostgresEngine]:
    """Provide the engine of a process that waits, on a queue with a message of next hour."""
    engine = from_url(urlsplit(url))()
    notifier = engine.notifier()
    assert isinstance(notifier, PostgresNotifier)
    try:
        engine.execute([cmd.Put("q", [Item("later", b"1", delay=3_600_000)])])
        yield engine
    finally:
        engine.close()
        if notifier.hears:
            notifier.listen()  # it closes its connection


def look(engine: PostgresEngine) -> Claimed:
    (claimed,) = engine.execute([cmd.Claim("q", 1, 60_000, "w")])
    assert isinstance(claimed, Claimed)
    return claimed


def calm_down(engine: PostgresEngine) -> None:
    """Look until the process is calm: the server itself may be at work for a moment."""
    deadline = time.monotonic() + BOUND
    while not look(engine).calm:
        assert time.monotonic() < deadline


@contextmanager
def transaction(postgres: PostgresServer) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Open a transaction that has written something."""
    with psycopg.connect(postgres.url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


def test_a_process_is_calm_only_after_it_was_asleep_at_two_looks(engine: PostgresEngine) -> None:
    assert [look(engine).calm for _ in range(FEW - 1)] == [False] * (FEW - 1)
    calm_down(engine)


def test_nobody_is_calm_while_a_transaction_stays_open(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    calm_down(engine)
    with transaction(postgres) as user:
        look(engine)  # it may have begun after the look before
        assert [look(engine).calm for _ in range(FEW)] == [False] * FEW
        user.commit()
    calm_down(engine)


def test_who_was_woken_is_not_calm(url: str, engine: PostgresEngine) -> None:
    """Between its being woken and its next sleep, puts saw nobody asleep."""
    calm_down(engine)
    other = from_url(urlsplit(url))()
    other.execute([cmd.Put("q", [Item("now", b"1")])])
    other.close()
    notifier = engine.notifier()
    assert notifier is not None
    assert [name for name, _ in notifier.listen()] == ["q"]
    claimed = look(engine)
    engine.execute([cmd.Ack("q", [cmd.Lease("now", claimed.token)])])
    assert [look(engine).calm for _ in range(FEW - 1)] == [False] * (FEW - 1)


def test_what_a_calm_process_cannot_see_yet_wakes_it(
    postgres: PostgresServer, url: str, engine: PostgresEngine
) -> None:
    """The put saw that the process slept, so the commit wakes it, whatever it has seen since."""
    notifier = engine.notifier()
    assert notifier is not None
    calm_down(engine)
    with transaction(postgres) as user, bide.Queue("q", url) as queue:
        assert queue.put(1, id="held", delay=0.5, within=user)
        assert look(engine).messages == []
        user.commit()
        hints = notifier.listen()
    assert [name for name, _ in hints] == ["q"]


def test_who_hears_nothing_is_not_calm(
    postgres: PostgresServer, engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm_down(engine)
    notifier = engine._notifier
    assert notifier is not None
    assert notifier._connection is not None
    process = notifier._connection.info.backend_pid

    def refuse() -> NoReturn:
        raise bide.StoreUnavailable("not now")

    monkeypatch.setattr(notifier, "_open", refuse)
    with postgres.client() as client:
        client.execute("SELECT pg_terminate_backend(%s)", (process,))
    listening = threading.Thread(target=notifier.listen)
    listening.start()
    deadline = time.monotonic() + BOUND
    while notifier.hears:
        assert time.monotonic() < deadline
    assert [look(engine).calm for _ in range(FEW)] == [False] * FEW
    notifier.close()
    listening.join(BOUND)
