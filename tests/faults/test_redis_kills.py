"""Redis is killed with -9 while processes work on it, and so are they, again and again."""

import multiprocessing
import random
import signal
import subprocess
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import bide
from tests.faults.checker import check, check_counts
from tests.faults.journal import read
from tests.faults.worker import drain, work
from tests.servers import RedisServer

pytestmark = pytest.mark.process

PROCESSES = 3
SECONDS = 8.0
PATIENCE = 60.0
"""On a machine that has other things to do it takes longer until enough has happened."""
KILLS = 8
ACKS = 500


def test_nothing_confirmed_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, appendonly="yes", appendfsync="always")
    url = f"{server.url}?timeout=15s"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.worker"])
    chance = random.Random()
    born = 0

    def bear() -> BaseProcess:
        nonlocal born
        born += 1
        name, seed = f"w{born}", chance.randrange(1 << 32)
        process = context.Process(target=work, args=(url, name, seed, tmp_path), daemon=True)
        process.start()
        return process

    living = [bear() for _ in range(PROCESSES)]
    server_killed = 0
    begin = time.monotonic()
    try:
        while (passed := time.monotonic() - begin) < SECONDS or (
            passed < PATIENCE and not (server_killed >= KILLS and acked(url) >= ACKS)
        ):
            time.sleep(chance.uniform(0.2, 0.8))  # a random point of whatever they are at
            server.stop(signal.SIGKILL)
            mend(server)
            server.start(wait_for_data=False)
            server_killed += 1
            if server_killed % 3 == 0:
                victim = living.pop(chance.randrange(PROCESSES))
                assert victim.is_alive(), f"a worker died by itself: exit code {victim.exitcode}"
                victim.kill()
                victim.join()
                living.append(bear())
        assert all(process.is_alive() for process in living), "nobody hears of a restart"
        for process in living:
            process.kill()
            process.join()
        drain(url, tmp_path)
        with bide.Queue("orders", url) as orders:
            audit = orders.audit()
    finally:
        for process in living:
            process.kill()
            process.join()
        server.stop()
    journals = [list(read(path)) for path in tmp_path.glob("*.journal")]
    assert check(journals) == []
    assert check_counts(journals, audit.counts) == []
    assert audit, audit.problems
    # It was worth it: much was done, and the server died often while it was at it.
    assert server_killed >= KILLS
    assert audit.counts.flow.acked >= ACKS


def mend(server: RedisServer) -> None:
    """Cut half a change off the append-only file, as the documentation advises."""
    manifest = server.folder / "appendonlydir" / "appendonly.aof.manifest"
    command = ["redis-check-aof", "--fix", str(manifest)]
    subprocess.run(command, input=b"y\n", stdout=subprocess.DEVNULL, check=True)


def acked(url: str) -> int:
    with bide.Queue("orders", url) as orders:
        return orders.counts().flow.acked
