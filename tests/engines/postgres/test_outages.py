"""A server that goes away, and stores that are none."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import bide
from bide.engines.postgres import PostgresEngine, bounded_connection, from_url
from bide.model import commands as cmd
from bide.model.errors import (
    InvalidArgument,
    NotAStore,
    OutcomeUnknown,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes
from tests.descriptors import low_ones_taken, one_left
from tests.postgres_server import PostgresServer, new_folder


@pytest.fixture
def mine() -> Iterator[PostgresServer]:
    """Provide a server that a test may kill; it writes to the disk what it confirms."""
    with new_folder() as folder:
        server = PostgresServer(folder, fsync="on")
        yield server
        server.stop()


def open_engine(url: str) -> PostgresEngine:
    return from_url(urlsplit(url))()


def total(engine: PostgresEngine) -> Counts:
    (reply,) = engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(reply, Counts)
    assert (reply.recount, reply.strays) == (reply.sizes, 0)
    return reply


@pytest.mark.process
def test_what_was_confirmed_survives_a_kill_of_the_server(mine: PostgresServer) -> None:
    engine = open_engine(f"{mine.url}&reconnect=0.1")
    confirmed = 0
    killer = threading.Timer(0.5, mine.kill)
    with suppress(OutcomeUnknown, StoreUnavailable):
        while True:
            engine.execute([cmd.Put("q", [Item(f"m{confirmed}", b"1")])])
            confirmed += 1
            if confirmed == 1:
                killer.start()
    killer.join()
    with pytest.raises(StoreUnavailable):
        engine.execute([cmd.Count("q")])
    mine.start()
    assert total(engine).sizes.total in (confirmed, confirmed + 1)
    assert confirmed > 0
    engine.close()


@pytest.mark.process
def test_a_full_disk_refuses_what_does_not_fit_and_loses_nothing(mine: PostgresServer) -> None:
    large = Item("large", secrets.token_hex(20_000).encode(), json=False)
    with closing(open_engine(mine.url)) as engine:
        engine.execute([cmd.Put("q", [Item("a", b"1")])])
    with mine.client() as client:  # bodies of more than 2 kB are in a file of their own
        query = "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = %s::regclass"
        ((path,),) = client.execute(query, ("bide.message",)).fetchall()
    file = mine.data / path
    mine.stop("fast")
    file.rename(file.with_suffix(".kept"))
    file.symlink_to("/dev/full")
    mine.start()
    with closing(open_engine(mine.url)) as engine:
        with pytest.raises(StoreFull, match="disk is full; what was asked was not done"):
            engine.execute([cmd.Put("q", [large])])
        engine.execute([cmd.Put("q", [Item("b", b"2")])])
        assert total(engine).sizes.total == 2
    mine.stop("fast")
    file.with_suffix(".kept").rename(file)
    mine.start()
    with closing(open_engine(mine.url)) as engine:
        engine.execute([cmd.Put("q", [large])])
        assert total(engine).sizes.total == 3


def test_an_idle_connection_that_the_server_closed_is_opened_again(mine: PostgresServer) -> None:
    engine = open_engine(mine.url)
    engine.execute([cmd.Put("q", [Item("a", b"1")])])
    mine.stop("fast")
    mine.start()
    (reply,) = engine.execute([cmd.Claim("q", 1, 60_000, "w")])  # which may not be repeated
    assert isinstance(reply, Claimed)
    assert len(reply.messages) == 1
    engine.close()


@pytest.mark.process
def test_a_claim_that_waits_is_woken_by_a_put_of_another_process(
    postgres_url: Callable[[], str],
) -> None:
    url = postgres_url()
    with bide.Queue("q", url) as queue:
        queue.put("first")
        got: list[object] = []

        def take() -> None:
            for _ in range(4):
                with queue.take(wait=60) as message:
                    got.append(message.body)

        waiter = threading.Thread(target=take)
        waiter.start()
        with bide.Queue("q", url) as other:
            for number in range(3):
                other.put(number)
        waiter.join(60)
        assert got == ["first", 0, 1, 2]


def test_a_put_wakes_only_whoever_would_sleep_too_long(
    postgres: PostgresServer, postgres_url: Callable[[], str]
) -> None:
    url = postgres_url()
    sleeper, other = open_engine(url), open_engine(url)
    sleeper.notifier()
    listener = sleeper.notifier()
    assert listener is not None
    sleeper.execute([cmd.Put("q", [Item("soon", b"1", delay=60_000)])])
    sleeper.execute([cmd.Claim("q", 1, 1_000, "w")])
    other.execute([cmd.Put("q", [Item("later", b"1", delay=120_000)])])
    other.execute([cmd.Put("q", [Item("now", b"1")])])
    ((queue, moment),) = listener.listen()  # the first hint is about the second put
    (found,) = other.execute([cmd.Find("q", ["now"])])
    assert queue == "q"
    assert found.messages[0].due <= moment < time.time() * 1000  # type: ignore[union-attr]
    other.close()
    sleeper.close()
    assert listener.listen() == []


def test_a_process_with_many_open_files_hears(postgres_url: Callable[[], str]) -> None:
    url = postgres_url()
    with low_ones_taken():
        sleeper, other = open_engine(url), open_engine(url)
        listener = sleeper.notifier()
        assert listener is not None
        sleeper.execute([cmd.Claim("q", 1, 1_000, "w")])
        other.execute([cmd.Put("q", [Item("now", b"1")])])
        ((queue, _),) = listener.listen()
        assert queue == "q"
        assert total(other).sizes.total == 1
        for engine in (other, sleeper):
            engine.close()
        assert listener.listen() == []


def test_a_process_that_may_open_no_more_files_says_so(postgres_url: Callable[[], str]) -> None:
    url = postgres_url() + "&reconnect=0s"
    open_engine(url).close()
    with one_left(), pytest.raises(StoreUnavailable, match=r"Too many open files.*ulimit"):
        open_engine(url)
    open_engine(url).close()


def test_a_process_says_once_that_it_sleeps_until_it_is_woken(
    postgres: PostgresServer, postgres_url: Callable[[], str]
) -> None:
    url = postgres_url()
    sleeper, other = open_engine(url), open_engine(url)
    listener = sleeper.notifier()
    assert listener is not None

    def asleep(queue: str) -> tuple[object, ...] | None:
        """Claim, and return until when the process sleeps, and which version of the row says so."""
        sleeper.execute([cmd.Claim(queue, 1, 1_000, "w")])
        return before(queue)

    def before(queue: str) -> tuple[object, ...] | None:
        """Return what the process has said."""
        with postgres.client() as client:
            query = f"SELECT until, xmin, ctid FROM {sleeper.schema}.sleeper WHERE queue = %s"
            return client.execute(query.encode(), (queue,)).fetchone()

    assert asleep("none") == asleep("none")  # no such queue yet
    due = int(time.time() * 1000) + 600_000
    for late in (0, 50, 200):
        other.execute([cmd.Put("short", [Item(f"m{late}", b"1", at=due + late)])])
    begin = asleep("short")
    other.execute([cmd.Cancel("short", ["m0"])])
    assert begin == asleep("short")  # close enough
    other.execute([cmd.Cancel("short", ["m50"])])
    assert begin != asleep("short")
    other.execute([cmd.Put("q", [Item("soon", b"1", delay=600_000)])])
    other.execute([cmd.Put("q", [Item("later", b"1", delay=900_000)])])
    first = asleep("q")
    assert first == asleep("q")
    other.execute([cmd.Put("q", [Item("sooner", b"1", delay=300_000)])])  # wakes nobody: not soon
    assert first == before("q")
    other.execute([cmd.Reschedule("q", ["sooner"], delay=240_000)])
    assert listener.listen()[0][0] == "q"
    second = asleep("q")
    assert second is not None
    assert second != first
    assert second == asleep("q")
    other.execute([cmd.Configure("q", paused=True)])
    assert asleep("q") == asleep("q")
    sleeper.close()
    other.close()
    assert listener.listen() == []


# Stores that are none.


def test_a_schema_that_somebody_else_made_is_left_alone(postgres: PostgresServer) -> None:
    with postgres.client() as client:
        client.execute("CREATE SCHEMA theirs")
        client.execute("CREATE TABLE theirs.message (x integer)")
        with pytest.raises(NotAStore, match="bide did not make it"):
            open_engine(f"{postgres.url}&schema=theirs")
        client.execute("DROP SCHEMA theirs CASCADE")


def test_many_first_users_make_one_schema(postgres: PostgresServer) -> None:
    url = f"{postgres.url}&schema=made_by_many"
    failed: list[BaseException] = []

    def make() -> None:
        try:
            open_engine(url).close()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.parametrize("option", ["port=5432", "options=-c%20statement_timeout%3D77s"])
def test_a_url_without_a_host_is_that_of_libpq(
    postgres_url: Callable[[], str], option: str
) -> None:
    url = postgres_url().replace("//bide@/", "///") + f"&user=bide&reconnect=9s&{option}"
    with closing(open_engine(url)) as engine:
        assert total(engine).sizes.total == 0


def test_errors_name_the_cause_and_no_password(postgres: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="createdb") as caught:
        open_engine(
            postgres.url.replace("/postgres?", "/nothing?").replace("bide@", "bide:secret@")
        )
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="createuser"):
        open_engine(postgres.url.replace("bide@", "nobody@"))
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_engine(f"postgresql://bide:pw@/postgres?host={tmp_path}")
    with pytest.raises(InvalidArgument, match="postgresql://"):
        open_engine("postgresql://bide@/x?no_such_option=1")
    with pytest.raises(InvalidArgument, match="schema"):
        open_engine(f"{postgres.url}&schema=pg_mine")


def test_a_standby_says_that_it_is_read_only(postgres_url: Callable[[], str]) -> None:
    url = postgres_url()
    open_engine(url).close()
    engine = open_engine(f"{url}&options=-cdefault_transaction_read_only%3Don")
    assert total(engine).sizes.total == 0
    with pytest.raises(StoreReadOnly, match="standby"):
        engine.execute([cmd.Put("q", [Item("a", b"1")])])
    engine.close()


def test_what_is_committed_is_answered_though_nobody_can_be_woken(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with postgres.client() as client:
        client.execute("DROP SCHEMA IF EXISTS unwakeable CASCADE")
        engine = open_engine(f"{postgres.url}&schema=unwakeable")
        client.execute("DROP FUNCTION unwakeable._wake")
        (reply,) = engine.execute([cmd.Put("q", [Item("a", b"1")])])
        assert isinstance(reply, Outcomes)
        assert reply.outcomes[0].done
        assert total(engine).sizes.total == 1
        assert "no claim could be woken" in caplog.text
        engine.close()
        client.execute("DROP SCHEMA unwakeable CASCADE")


def test_a_batch_notes_of_each_queue_how_far_the_log_had_come(
    postgres_url: Callable[[], str],
) -> None:
    engine = open_engine(postgres_url())
    places = []
    for id in ("first", "second", "third"):
        engine.execute([cmd.Put(queue, [Item(id, b"1")]) for queue in ("a", "b")])
        places.append(dict(engine._witness._confirmed))
    assert all(place.keys() == {"a", "b"} for place in places)
    assert all(places[n][queue] < places[n + 1][queue] for n in (0, 1) for queue in ("a", "b"))
    assert all(place["a"] < place["b"] for place in places)
    engine.close()


def test_a_port_that_accepts_and_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "CONNECT_TIMEOUT", 2)  # the least of libpq
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop?reconnect=0s"
        with pytest.raises(StoreUnavailable, match="timeout expired"):
            open_engine(url)
