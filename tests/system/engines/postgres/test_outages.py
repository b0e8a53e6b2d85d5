"""Servers that go away, are silent, changed by administrators; stores that are none."""

import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines import losses
from bide.engines.findings import examine
from bide.engines.postgres import PostgresEngine, bounded_connection, from_url
from bide.engines.postgres.bounded_connection import silence
from bide.engines.postgres.settings import PostgresSettings
from bide.lane.lane import Lane
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
from bide.outbox.postgres import PostgresTable
from bide.testing.engine_hooks import postgres_positions
from tests.descriptors import low_ones_taken
from tests.postgres_server import PostgresServer, new_folder, until
from tests.proxy import Fault, Proxy


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


class SleptTime:
    """Time that passes only while an engine sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_calls_wait_together_for_a_lost_server_and_after_that_fail_at_once(
    postgres: PostgresServer, postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres_url()}&application_name=lost"
    attempts = 0

    def refuse(settings: PostgresSettings) -> NoReturn:
        nonlocal attempts
        attempts += 1
        raise StoreUnavailable("away")

    def attempts_of_a_call() -> int:
        before = attempts
        with pytest.raises(StoreUnavailable):
            engine.execute([cmd.Count("q")])
        return attempts - before

    monkeypatch.setattr("bide.engines.postgres.engine.time", SleptTime())
    with closing(open_engine(url)) as engine, postgres.client() as client:
        for _ in range(2):
            with monkeypatch.context() as away:
                away.setattr(PostgresSettings, "connect", refuse)
                client.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                    "WHERE application_name = 'lost'"
                )
                assert attempts_of_a_call() > 1
                assert attempts_of_a_call() == attempts_of_a_call() == 1
            assert total(engine).sizes.total == 0  # it is back: after its next loss they wait again


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


ONE_DESCRIPTOR_LEFT = """
import os, resource, sys
from urllib.parse import urlsplit
from bide.engines.postgres import from_url
from bide.model.errors import StoreUnavailable
opened = from_url(urlsplit(sys.argv[1]))
opened().close()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
os.close(free := os.dup(0))
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
try:
    opened()
except StoreUnavailable as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
opened().close()
"""
"""In a process of its own: Python takes a folder that it cannot list for one without packages."""


@pytest.mark.process
def test_a_process_that_may_open_no_more_files_says_so(postgres_url: Callable[[], str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ONE_DESCRIPTOR_LEFT, postgres_url() + "&reconnect=0s"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    assert re.search(r"Too many open files.*ulimit", ended.stdout)


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
        places.append(postgres_positions(engine))
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


@pytest.fixture
def dropped(
    postgres: PostgresServer,
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Provide the URL of a store, and what drops its schema."""
    with postgres.client() as client:

        def drop() -> None:
            client.execute("DROP SCHEMA IF EXISTS dropped CASCADE")

        drop()
        yield f"{postgres.url}&schema=dropped", drop
        drop()


@pytest.mark.parametrize(
    "action",
    [
        lambda queue: queue.put(2, id="b"),
        lambda queue: queue.put_many([bide.NewMessage(2, id="b"), bide.NewMessage(3)]),
        lambda queue: queue.claim(),
        lambda queue: queue.cancel("a"),
        lambda queue: queue.get("a"),
    ],
)
def test_a_process_goes_on_after_its_schema_was_dropped(
    dropped: tuple[str, Callable[[], None]], action: Callable[[bide.Queue], Any]
) -> None:
    url, drop = dropped
    with bide.Queue("gone", url) as queue:
        for _ in range(2):
            queue.put(1, id="a", delay=60)
            action(queue)
        drop()
        action(queue)
        assert queue.put(4, id="after").done
        assert queue.audit()


def test_a_schema_that_was_dropped_is_a_loss(
    dropped: tuple[str, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    url, drop = dropped
    heard: list[bool] = []
    with bide.Queue("dropped", url) as queue, losses.listening(lambda: heard.append(True)):
        queue.put(1, id="a")
        drop()
        with bide.Queue("other", url) as other:  # makes the schema anew, and has lost nothing
            other.put(1)
        queue.put(2, id="b")
        queue.put(3, id="c")
    assert heard == [True]
    assert losses.counted()["dropped"] == 1
    assert "other" not in losses.counted()
    assert "queue dropped: the store has lost at least 1" in caplog.text


@pytest.fixture
def guarded() -> Iterator[PostgresServer]:
    """Provide a server with few connections, where the user app has a password."""
    with new_folder() as folder:
        server = PostgresServer(folder, max_connections="12")
        with server.client() as client:
            client.execute("CREATE ROLE app LOGIN PASSWORD 'old'")
            client.execute("GRANT CREATE ON DATABASE postgres TO app")
        rules = server.data / "pg_hba.conf"
        rules.write_text("local all app scram-sha-256\n" + rules.read_text())
        server.stop("fast")
        server.start()
        yield server
        server.stop()


def test_a_password_that_was_changed_is_not_tried_again_and_again(guarded: PostgresServer) -> None:
    url = guarded.url.replace("bide@", "app:old@") + "&reconnect=60s"
    engine = from_url(urlsplit(url))()
    with closing(engine), guarded.client() as client:
        client.execute("ALTER ROLE app PASSWORD 'new'")
        client.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'app'"
        )
        with pytest.raises(StoreUnavailable, match="refused the password"):
            engine.execute([cmd.Put("q", [Item("a", b"1")])])
        log = (guarded.folder / "log").read_text()
        assert log.count("password authentication failed") == 1
        client.execute("ALTER ROLE app PASSWORD 'old'")
        engine.execute([cmd.Put("q", [Item("a", b"1")])])


def test_a_server_without_a_connection_for_this_user_says_so(guarded: PostgresServer) -> None:
    url = guarded.url.replace("bide@", "app:old@")
    with ExitStack() as taken:
        with suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(url))
        with pytest.raises(StoreUnavailable, match="takes no more connections") as caught:
            from_url(urlsplit(url))()
        assert "reserved for roles" in str(caught.value)
    with guarded.client() as client:
        client.execute("ALTER ROLE app CONNECTION LIMIT 0")
    with pytest.raises(StoreUnavailable, match="takes no more connections"):
        from_url(urlsplit(url))()


def test_a_standby_without_its_primary_is_no_matter_of_the_address(
    postgres_url: Callable[[], str],
) -> None:
    url = postgres_url()
    with closing(from_url(urlsplit(url))()):
        read_only = f"{url}&options=-cdefault_transaction_read_only%3Don"
        with pytest.raises(StoreUnavailable, match="no standby is promoted") as caught:
            from_url(urlsplit(f"{read_only}&target_session_attrs=read-write"))()
    assert "firewall" not in str(caught.value)


def test_a_connection_that_was_ended_takes_one_line_of_the_log(
    postgres: PostgresServer, postgres_url: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    with bide.Queue("q", f"{postgres_url()}&application_name=ended") as queue:
        queue.put(1)
        assert len(queue.claim(wait=60)) == 1  # it listens from now on
        with postgres.client() as client:
            client.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE application_name = 'ended'"
            )
        queue.put(2)
        for _ in range(600):
            if "listens for puts was lost" in caplog.text:
                break
            queue.claim(wait=0.1)
    assert "listens for puts was lost" in caplog.text
    assert not any("\n" in message for message in caplog.messages)


@pytest.fixture
def proxy(postgres: PostgresServer, proxy_before: Callable[[str | int], Proxy]) -> Proxy:
    return proxy_before(f"{postgres.folder}/.s.PGSQL.5432")


def through(proxy: Proxy, url: str, options: str = "&timeout=0.3&reconnect=60s") -> str:
    """Return the URL of the same store by way of a proxy."""
    schema = url.rpartition("&schema=")[2]
    address = f"postgresql://bide@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    return f"{address}&schema={schema}{options}"


def put(id: str) -> cmd.Put:
    return cmd.Put("q", [Item(id, b"1", delay=60_000)])


@pytest.mark.parametrize("fault", ["hang", "hang after"])
@pytest.mark.parametrize("many", [False, True])
def test_a_call_on_a_connection_that_hangs_is_answered_on_another(
    proxy: Proxy, postgres_url: Callable[[], str], fault: Fault, many: bool
) -> None:
    lane = Lane(from_url(urlsplit(through(proxy, postgres_url()))))
    command = cmd.Cancel("q", where=cmd.Where(after=0)) if many else cmd.Cancel("q", ["a"])
    lane.call(put("b"))
    lane.call(command)
    lane.call(put("a"))
    proxy.strike(fault)
    reply = lane.call(command)
    assert proxy.struck
    assert reply.count == 1 if many else reply.outcomes[0].done  # type: ignore[union-attr]
    lane.close()


def test_without_a_repetition_the_caller_hears_that_it_is_not_known(
    proxy: Proxy, postgres_url: Callable[[], str]
) -> None:
    with closing(from_url(urlsplit(through(proxy, postgres_url())))()) as engine:
        engine.execute([put("a")])
        proxy.strike("hang after")
        with pytest.raises(OutcomeUnknown, match=r"silent for 0.3 s \(\?timeout= in the URL\)"):
            engine.execute([put("b")])
        (reply,) = engine.execute([put("b")])  # on another connection
        assert isinstance(reply, Outcomes)
        assert not reply.outcomes[0].done


def test_a_server_that_is_silent_when_a_store_is_opened_is_given_up(
    proxy: Proxy, postgres_url: Callable[[], str]
) -> None:
    url = through(proxy, postgres_url(), "&timeout=0.3&reconnect=0s")
    from_url(urlsplit(url))().close()
    with closing(from_url(urlsplit(url))()) as engine:
        proxy.freeze()
        proxy.silent = True
        with pytest.raises(OutcomeUnknown, match="silent for"):
            engine.execute([put("a")])
        with pytest.raises(StoreUnavailable, match="timeout"):
            from_url(urlsplit(f"{url}&connect_timeout=2"))()


def test_a_listener_whose_connection_hangs_opens_another(
    proxy: Proxy,
    postgres: PostgresServer,
    postgres_url: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = postgres_url()
    with closing(from_url(urlsplit(through(proxy, url)))()) as engine:
        notifier = engine.notifier()
        assert notifier is not None
        engine.execute([cmd.Claim("q", 1, 60_000, "w")])
        with closing(from_url(urlsplit(url))()) as other:
            _freeze_and_put(proxy, postgres, engine, other)
            assert [queue for queue, _ in notifier.listen()] == ["q"]
    assert notifier.listen() == []
    assert "the connection that listens for puts was lost (the server was silent" in caplog.text


def _freeze_and_put(
    proxy: Proxy, postgres: PostgresServer, engine: PostgresEngine, other: PostgresEngine
) -> None:
    """Put something once the listener has another connection."""
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with postgres.client() as client:
        before = set(client.execute(listening.encode()).fetchall())
    proxy.freeze()

    def put_when_it_listens() -> None:
        with postgres.client() as client:
            deadline = time.monotonic() + 60
            while set(client.execute(listening.encode()).fetchall()) <= before:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        other.execute([cmd.Put("q", [Item("now", b"1")])])

    threading.Thread(target=put_when_it_listens).start()


def test_what_takes_long_by_right_is_given_more_time(
    proxy: Proxy, postgres: PostgresServer, postgres_url: Callable[[], str]
) -> None:
    url = postgres_url()
    schema = url.rpartition("&schema=")[2]
    audits: list[bool] = []
    with bide.Queue("q", through(proxy, url)) as queue, postgres.client() as client:
        queue.put(1, delay="1h")
        queue.counts()
        with client.transaction():
            client.execute(f"LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE".encode())
            audit = threading.Thread(target=lambda: audits.append(bool(queue.audit())))
            audit.start()
            waits_for_long = (
                "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND clock_timestamp() - query_start > '1s'"
            )
            with postgres.client() as other:
                until(other, waits_for_long, [(True,)])
        audit.join(60)
    assert audits == [True]


def test_an_outbox_whose_server_is_silent_is_given_up(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.outbox.postgres.TIMEOUT", 0.3)
    url = f"postgresql://bide@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    with closing(PostgresTable(url)) as table:
        assert table.read(1) == []
        proxy.freeze()
        with pytest.raises(type(silence(1)), match="silent for"):
            table.read(1)


def test_the_time_must_be_long_enough(postgres_url: Callable[[], str]) -> None:
    with pytest.raises(InvalidArgument, match=r"\?timeout=0.05 is too short; it is 0.1 s or more"):
        from_url(urlsplit(f"{postgres_url()}&timeout=50ms"))
    assert list(examine(f"{postgres_url()}&timeout=1m"))
