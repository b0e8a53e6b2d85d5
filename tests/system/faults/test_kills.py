"""Processes that work on one store are killed with -9 at random, and so are the servers."""

import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

import bide
from tests.contract.conformance.shards import conforms
from tests.effort import effort
from tests.sentinels import SentinelGroup
from tests.servers import RedisServer
from tests.system.faults.workload import Crew

pytestmark = pytest.mark.process

PATIENCE = 60.0
"""On a machine that has other things to do it takes longer until enough has happened."""


def test_nothing_confirmed_is_lost_in_a_file_whoever_is_killed_whenever(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    killed = 0
    begin = time.monotonic()
    with Crew(url, tmp_path, 4) as crew:
        while (passed := time.monotonic() - begin) < effort(2, 15) or (
            passed < PATIENCE and not (killed > 30 and enough(url))
        ):
            time.sleep(crew.chance.uniform(0.02, 0.12))  # a random point of whatever they are at
            crew.replace_one()
            killed += 1
        crew.dismiss()
    connection = sqlite3.connect(tmp_path / "bide.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert killed > 30
    assert enough(url)


def enough(url: str) -> bool:
    """Tell whether it was worth it: much was done, and many died while they were at it."""
    with bide.Queue("orders", url) as orders:
        flow = orders.counts().flow
    return flow.acked > 200 and flow.cancelled > 5 and flow.lapsed > 5


def test_nothing_confirmed_is_lost_when_redis_is_killed(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, appendonly="yes", appendfsync="always")
    url = f"{server.url}?timeout=15s"
    server_killed = 0
    begin = time.monotonic()
    try:
        with Crew(url, tmp_path, 3) as crew:
            while (passed := time.monotonic() - begin) < effort(2, 15) or (
                passed < PATIENCE and not (server_killed >= 8 and acked(url) >= 500)
            ):
                time.sleep(crew.chance.uniform(0.2, 0.8))  # a random point of what they are at
                server.stop(signal.SIGKILL)
                mend(server)
                server.start(wait_for_data=False)
                server_killed += 1
                if server_killed % 3 == 0:
                    crew.replace_one()
                    crew.until_at_work()  # one that starts does not wait for a server that is away
            counts = crew.dismiss()
        conforms(url)
    finally:
        server.stop()
    # It was worth it: much was done, and the server died often while it was at it.
    assert server_killed >= 8
    assert counts.flow.acked >= 500


def mend(server: RedisServer) -> None:
    """Cut half a change off the append-only file, as the documentation advises."""
    manifest = server.folder / "appendonlydir" / "appendonly.aof.manifest"
    command = ["redis-check-aof", "--fix", str(manifest)]
    subprocess.run(command, input=b"y\n", stdout=subprocess.DEVNULL, check=True)


def acked(url: str) -> int:
    with bide.Queue("orders", url) as orders:
        return orders.counts().flow.acked


@pytest.mark.full
def test_nothing_confirmed_is_lost_when_the_master_of_a_group_dies_or_is_silent(
    tmp_path: Path,
) -> None:
    (tmp_path / "group").mkdir()
    group = SentinelGroup(tmp_path / "group")
    url = f"{group.url}?wait_replicas=1&timeout=2s&reconnect=20s"
    try:
        with Crew(url, tmp_path, 3, tolerant=True) as crew:
            for ending in (signal.SIGKILL, signal.SIGSTOP):
                crew.until_at_work()
                time.sleep(crew.chance.uniform(0, 0.5))  # a random point of whatever they are at
                old = group.master()
                assert old.process is not None
                old.process.send_signal(ending)
                group.wait_for_another(old)
                if ending == signal.SIGSTOP:
                    old.process.send_signal(signal.SIGCONT)
                else:
                    old.stop()
                    old.start()
                group.wait_for_replica()
            crew.until_at_work()
            crew.dismiss()
        conforms(url)
    finally:
        group.stop()
