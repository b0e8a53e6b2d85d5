"""Redis is killed with -9 while processes work on it, and so are they, again and again."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

import bide
from tests.contract.conformance.shards import conforms
from tests.effort import effort
from tests.servers import RedisServer
from tests.system.faults.workload import Crew

pytestmark = pytest.mark.process

PROCESSES = 3
SECONDS = effort(5, 15)
PATIENCE = 60.0
"""On a machine that has other things to do it takes longer until enough has happened."""
KILLS = 8
ACKS = 500


def test_nothing_confirmed_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, appendonly="yes", appendfsync="always")
    url = f"{server.url}?timeout=15s"
    server_killed = 0
    begin = time.monotonic()
    try:
        with Crew(url, tmp_path, PROCESSES) as crew:
            while (passed := time.monotonic() - begin) < SECONDS or (
                passed < PATIENCE and not (server_killed >= KILLS and acked(url) >= ACKS)
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
    assert server_killed >= KILLS
    assert counts.flow.acked >= ACKS


def mend(server: RedisServer) -> None:
    """Cut half a change off the append-only file, as the documentation advises."""
    manifest = server.folder / "appendonlydir" / "appendonly.aof.manifest"
    command = ["redis-check-aof", "--fix", str(manifest)]
    subprocess.run(command, input=b"y\n", stdout=subprocess.DEVNULL, check=True)


def acked(url: str) -> int:
    with bide.Queue("orders", url) as orders:
        return orders.counts().flow.acked
