"""A server that is silent while the connection stays open: it is given up after a time."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

import pytest

import bide
from bide.engines.findings import examine
from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.bounded_connection import silence
from bide.lane.lane import Lane
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument, OutcomeUnknown, StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Outcomes
from bide.outbox.postgres import PostgresTable
from tests.postgres_server import PostgresServer, until
from tests.proxy import Fault, Proxy


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
