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
from bide.testing.engine_hooks import postgres_listening
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
        if notifier.is_listening:
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
    notifier = engine.notifier()
    assert isinstance(notifier, PostgresNotifier)
    process = postgres_listening(notifier).info.backend_pid

    def refuse() -> NoReturn:
        raise bide.StoreUnavailable("not now")

    monkeypatch.setattr(notifier, "_open", refuse)
    with postgres.client() as client:
        client.execute("SELECT pg_terminate_backend(%s)", (process,))
    listening = threading.Thread(target=notifier.listen)
    listening.start()
    deadline = time.monotonic() + BOUND
    while notifier.is_listening:
        assert time.monotonic() < deadline
    assert [look(engine).calm for _ in range(FEW)] == [False] * FEW
    notifier.close()
    listening.join(BOUND)


def test_who_waits_for_a_limit_looks_when_a_lease_ends(engine: PostgresEngine) -> None:
    engine.execute([cmd.Configure("q", limit=1), cmd.Put("q", [Item("a", b"1"), Item("b", b"1")])])
    assert [message.id for message in look(engine).messages] == ["a"]
    claimed = look(engine)
    assert claimed.messages == []
    assert claimed.next is not None
    assert 30_000 < claimed.next <= 60_000


Sleepers = dict[tuple[str, str], int]

ASLEEP: Sleepers = {
    ("q", "early"): 999,
    ("q", "later"): 3000,
    ("q", "me"): 9000,
    ("q", "sooner"): 2000,
    ("r", "other"): 9000,
}
"""Until when processes sleep, by queue and process."""


@pytest.mark.parametrize(
    ("most", "heard", "woken"),
    [
        (0, [], []),
        (1, ["1000/sooner q"], ["sooner"]),
        (2, ["1000/later q", "1000/sooner q"], ["later", "sooner"]),
        (999, ["1000/later q", "1000/sooner q"], ["later", "sooner"]),
        (1000, ["1000 q"], ["later", "sooner"]),
    ],
)
def test_processes_that_would_sleep_too_long_are_woken_once(
    postgres: PostgresServer,
    engine: PostgresEngine,
    most: int,
    heard: list[str],
    woken: list[str],
) -> None:
    told: list[str] = []
    with postgres.client() as client:
        client.execute(f"SET search_path = {engine.schema}".encode())
        ((channel, tag),) = client.execute("SELECT channel, _tag('q') FROM store").fetchall()
        client.execute(f"LISTEN {channel}".encode())
        client.add_notify_handler(lambda hint: told.append(hint.payload.replace(tag, "q")))
        client.execute("DELETE FROM sleeper")
        for (queue, process), until in ASLEEP.items():
            row = process, queue, until, {"sooner": 2}.get(process, 1)
            client.execute("INSERT INTO sleeper VALUES (%s, %s, %s, %s)", row)
        client.execute("SELECT _wake('me', 'q', 1000, %s)", (most,))
        asleep = client.execute("SELECT queue, process, until FROM sleeper").fetchall()
        assert sorted(told) == heard
        assert {(queue, process): until for queue, process, until in asleep} == {
            **ASLEEP,
            **{("q", process): 1000 for process in woken},
        }
        told.clear()
        client.execute("SELECT _wake('me', 'q', 1000, %s)", (1000,))
        assert told == ([] if len(woken) == 2 else ["1000 q"])
        told.clear()
        client.execute("SELECT _wake('me', 'q', 1000, 1000)")
        client.execute("SELECT _wake_at_commit('q', 9000, 9000)")
        assert told == []
        client.execute("SELECT _wake_at_commit('q', 8999, 9000)")
        assert told == ["8999 q"]


def test_a_process_counts_as_asleep_until_it_is_silent_for_half_a_minute(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    with postgres.client() as client:
        client.execute(f"SET search_path = {engine.schema}".encode())
        rows = [("p", "q", 1, 50_000), ("o", "q", 2, 90_000), ("p", "r", 3, 90_000)]
        for row in rows:
            client.execute("INSERT INTO sleeper VALUES (%s, %s, %s, %s)", row)
        looks = [("p", 79_999), ("p", 80_000), ("nobody", 50_000), (None, 50_000)]
        until = [
            client.execute("SELECT _asleep(%s, 'q', %s)", look).fetchall()[0][0] for look in looks
        ]
        assert until == [1, None, None, None]


def test_processes_that_were_silent_for_a_minute_are_forgotten(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    with postgres.client() as client:
        client.execute(f"SET search_path = {engine.schema}".encode())
        client.execute("DELETE FROM sleeper")
        for process, ago in (("gone", 61_000), ("there", 30_000)):
            client.execute(
                "INSERT INTO sleeper VALUES (%s, 'q', 1, _moment(NULL) - %s)", (process, ago)
            )
        client.execute("SELECT _fold()")
        assert client.execute("SELECT process FROM sleeper").fetchall() == [("there",)]
