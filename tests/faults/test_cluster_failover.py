"""A master of a cluster is killed with -9 in mid-load, and its replica takes its place."""

import functools
import multiprocessing
import random
import time
from pathlib import Path

import pytest

import bide
from bide.engines.redis.cluster.slots import slot_of
from bide.engines.redis.keys import meta_key
from tests.cluster import RedisCluster, ask, eventually
from tests.faults.checker import check, check_counts
from tests.faults.journal import read
from tests.faults.worker import drain, work
from tests.servers import RedisServer

pytestmark = pytest.mark.process

PROCESSES = 3
SHARDS = 4


def test_nothing_confirmed_is_lost_when_a_master_is_killed(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    cluster = RedisCluster(tmp_path / "cluster", replicas=1)
    url = f"{cluster.url}?shards={SHARDS}&wait_replicas=1&timeout=2s&reconnect=20s"
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
        for shard in (0, 1):
            _wait_for_acks(url)
            time.sleep(chance.uniform(0, 0.5))  # a random point of whatever they are at
            slot = slot_of(meta_key("orders", shard))
            old = cluster.owner(slot)
            old.stop()
            eventually(functools.partial(_has_another, cluster, slot, old))
            old.start()  # as a replica of the one that took its place
            eventually(functools.partial(_has_replica, cluster, slot))
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
        cluster.stop()
    journals = [list(read(path)) for path in tmp_path.glob("*.journal")]
    assert check(journals) == []
    assert check_counts(journals, audit.counts) == []
    assert audit, audit.problems


def _has_another(cluster: RedisCluster, slot: int, old: RedisServer) -> bool:
    return cluster.owner(slot) is not old


def _has_replica(cluster: RedisCluster, slot: int) -> bool:
    return b"state=online" in ask(cluster.owner(slot), "INFO", "replication")


def _wait_for_acks(url: str) -> None:
    """Wait until the queue is at work: a hundred more messages are acked than before."""
    deadline = time.monotonic() + 40
    with bide.Queue("orders", url) as orders:
        before = orders.counts().flow.acked
        while orders.counts().flow.acked < before + 100:
            assert time.monotonic() < deadline, "nobody delivers any more"
            time.sleep(0.05)
