"""PostgreSQL under load: killed, a standby promoted, connections cut, answers lost."""

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

import bide
from bide.engines import losses
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.errors import OutcomeUnknown, StoreError, StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes
from tests.effort import effort
from tests.postgres_server import PostgresServer, new_folder, until
from tests.proxy import Faults, Proxy
from tests.system.faults.ledger import Ledger
from tests.system.faults.strikes import Struck
from tests.system.faults.workload import Crew

PROCESSES = 3
KILLS = effort(2, 8)


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with new_folder() as folder:
        server = PostgresServer(folder, fsync="on")
        yield server
        server.stop()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with new_folder() as folder:
        server = primary.standby(folder)
        yield server
        server.stop()


def of_both(primary: PostgresServer, standby: PostgresServer) -> str:
    """Return the URL of whichever of two servers is the primary."""
    hosts = f"{primary.folder},{standby.folder}"
    return f"postgresql://bide@/postgres?host={hosts}&target_session_attrs=read-write&reconnect=30s"


@pytest.mark.process
def test_nothing_confirmed_is_lost_when_the_server_is_killed(
    primary: PostgresServer, tmp_path: Path
) -> None:
    url = f"{primary.url}&reconnect=30s"
    with Crew(url, tmp_path, PROCESSES, tolerant=True) as crew:
        for _ in range(KILLS):
            crew.until_at_work()
            primary.kill()
            primary.start()
            crew.replace_one()
        crew.until_at_work()
        crew.dismiss()


@pytest.mark.full
@pytest.mark.process
def test_nothing_confirmed_is_lost_when_the_standby_is_promoted(
    primary: PostgresServer, standby: PostgresServer, tmp_path: Path
) -> None:
    before = losses.counted()  # those that other tests of this process have made
    with primary.client() as client:
        client.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        client.execute("ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
    primary.stop(
        "fast"
    )  # after a mere reload, commits wait for nobody until the checkpointer has seen it
    primary.start()
    with primary.client() as client:
        until(client, "SELECT sync_state FROM pg_stat_replication", [("sync",)])
    with Crew(of_both(primary, standby), tmp_path, PROCESSES, tolerant=True) as crew:
        crew.until_at_work()
        primary.kill()
        standby.promote()
        crew.until_at_work()
        crew.dismiss()
    primary.start()  # which the fixture stops
    assert losses.counted() == before


@pytest.mark.process
def test_a_standby_that_lacks_what_was_confirmed_is_noticed(
    primary: PostgresServer, standby: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bool] = []
    with (
        bide.Queue("lossy", of_both(primary, standby)) as lossy,
        bide.Queue("cancels", of_both(primary, standby)) as cancels,
        losses.listening(lambda: heard.append(True)),
    ):
        lossy.put(1, id="there")
        cancels.put(1, id="there", delay=600)
        with standby.client() as follower:
            until(follower, "SELECT to_regclass('bide.message') IS NULL", [(False,)])
            until(follower, "SELECT count(*) FROM bide.message", [(2,)])
            follower.execute("ALTER SYSTEM SET primary_conninfo = ''")
            follower.execute("SELECT pg_reload_conf()")
            until(follower, "SELECT pid FROM pg_stat_wal_receiver", [])
        lossy.put(2, id="lost")
        assert cancels.cancel("there")
        primary.kill()
        standby.promote()
        with caplog.at_level(logging.ERROR, "bide.store"):
            assert lossy.get("lost") is None
            lossy.put(3, id="after")
        assert cancels.get("there") is not None
        assert {message.id for message in lossy.scan()} == {"there", "after"}
    assert heard == [True, True]
    assert losses.counted().pop("lossy") == 1
    assert losses.counted().pop("cancels") == 1
    assert "has lost at least 1" in caplog.text
    primary.start()


# Connections that are cut.


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(f"{postgres.folder}/.s.PGSQL.5432")
    yield proxy
    proxy.close()


def until_known(engine: PostgresEngine, command: cmd.Command) -> list[object]:
    """Send a command until something is answered, as the lane does with what is idempotent."""
    for _ in range(3):
        try:
            (reply,) = engine.execute([command])
        except OutcomeUnknown:
            continue
        assert isinstance(reply, Outcomes)
        return [(outcome.id, outcome.done, outcome.state) for outcome in reply.outcomes]
    raise AssertionError("the connection was cut once")


# About 500 bytes go up for each of these, and 300 come down.
UP = range(0, 1100, effort(180, 7))
DOWN = range(0, 700, effort(120, 5))


@pytest.mark.process
@pytest.mark.parametrize("side", ["cut_up", "cut_down"])
def test_a_connection_cut_at_any_byte_loses_and_doubles_nothing(
    postgres: PostgresServer, postgres_url: Callable[[], str], proxy: Proxy, side: str
) -> None:
    url = postgres_url()
    near = from_url(urlsplit(url))()
    by_proxy = f"host=127.0.0.1&port={proxy.port}&sslmode=disable"
    far = from_url(urlsplit(url.replace(f"host={postgres.folder}", by_proxy)))()
    ids = (f"m{number}" for number in itertools.count())
    acked = put = 0
    for place in UP if side == "cut_up" else DOWN:
        id = next(ids)
        setattr(proxy, side, place)
        told = until_known(far, cmd.Put("q", [Item(id, b"1")]))
        put += 1
        assert told in ([(id, True, "ready")], [(id, False, "ready")])
        (claimed,) = near.execute([cmd.Claim("q", 9, 60_000, "w")])
        assert isinstance(claimed, Claimed)
        assert [message.id for message in claimed.messages] == [id]  # once
        setattr(proxy, side, place)
        try:
            far.execute([cmd.Ack("q", [cmd.Lease(id, claimed.token)])])
        except StoreError:
            near.execute([cmd.Ack("q", [cmd.Lease(id, claimed.token)])])
        acked += 1
        setattr(proxy, side, None)
        with suppress(OutcomeUnknown):  # it may have been cut behind the last answer
            far.execute([cmd.Count("q")])
    (counts,) = near.execute([cmd.Count("q", recount=True)])
    assert isinstance(counts, Counts)
    assert (counts.flow.put, counts.flow.acked, counts.sizes.total) == (put, acked, 0)
    assert (counts.recount, counts.strays) == (counts.sizes, 0)
    near.close()
    far.close()


R = TypeVar("R")


class Unanswered:
    """Takes calls that have no answer, and says so, for such that were interrupted."""

    hits = 0

    def during(self, call: Callable[[], R]) -> R | Struck:
        try:
            return call()
        except (OutcomeUnknown, StoreUnavailable):
            self.hits += 1
            return Struck.STRUCK


@pytest.mark.process
def test_faults_of_the_network(
    postgres: PostgresServer,
    postgres_url: Callable[[], str],
    proxy_before: Callable[[str | int], Proxy],
) -> None:
    schema = postgres_url().rpartition("&schema=")[2]
    proxy = proxy_before(f"{postgres.folder}/.s.PGSQL.5432")
    address = f"postgresql://bide@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    ledger = Ledger(f"{address}&schema={schema}&reconnect=60s", Unanswered())
    faults = Faults(0.05, ("cut", "reset", "half", "lose", "crumbs"), seed=1)
    ledger.turn()
    proxy.faults = faults
    while sum(faults.counts.values()) < effort(100, 2_000):
        ledger.turn()
    proxy.faults = None
    assert ledger.problems() == []
