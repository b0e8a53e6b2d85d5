"""The master of a Sentinel group dies or falls silent in mid-load, again and again."""

import functools
import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest

import bide
from tests.faults.checker import check, check_counts
from tests.faults.journal import read
from tests.faults.worker import drain, work
from tests.sentinels import SentinelGroup

pytestmark = pytest.mark.process

PROCESSES = 3


def test_nothing_confirmed_is_lost_when_the_master_dies_or_is_silent(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    group = SentinelGroup(tmp_path / "group")
    url = f"{group.url}?wait_replicas=1&timeout=2s&reconnect=20s"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.worker"])
    chance = random.Random()
    worker = functools.partial(work, url, folder=tmp_path, tolerant=True)
    living = [
        context.Process(
            target=worker, kwargs={"name": f"w{n}", "seed": chance.randrange(1 << 32)}, daemon=True
        )
        for n in range(PROCESSES)
    ]
    try:
        for process in living:
            process.start()
        for ending in (signal.SIGKILL, signal.SIGSTOP):
            _wait_for_acks(url)
            time.sleep(chance.uniform(0, 0.5))  # a random point of whatever they are at
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
        _wait_for_acks(url)
        assert all(process.is_alive() for process in living), "somebody did not go on"
        for process in living:
            process.kill()
            process.join()
        drain(url, tmp_path)
        with bide.Queue("orders", url) as orders:
            audit = orders.audit()
    finally:
        for process in living:
            if process.pid is not None:
                process.kill()
                process.join()
        group.stop()
    journals = [list(read(path)) for path in tmp_path.glob("*.journal")]
    assert check(journals) == []
    assert check_counts(journals, audit.counts) == []
    assert audit, audit.problems


def _wait_for_acks(url: str) -> None:
    """Wait until the queue is at work: a hundred more messages are acked than before."""
    deadline = time.monotonic() + 30
    with bide.Queue("orders", url) as orders:
        before = orders.counts().flow.acked
        while orders.counts().flow.acked < before + 100:
            assert time.monotonic() < deadline, "nobody delivers any more"
            time.sleep(0.05)
