"""A master of a cluster dies or falls silent in mid-load, and its replica takes its place."""

import functools
import signal
import time
from pathlib import Path

import pytest

from bide.engines.redis.layout import meta_key, slot_of
from tests.cluster import RedisCluster, ask, eventually
from tests.conformance.shards import conforms
from tests.faults.workload import Crew
from tests.servers import RedisServer

pytestmark = pytest.mark.process

PROCESSES = 3
SHARDS = 4


def test_nothing_confirmed_is_lost_when_a_master_dies_or_is_silent(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    cluster = RedisCluster(tmp_path / "cluster", replicas=1)
    url = f"{cluster.url}?shards={SHARDS}&wait_replicas=1&timeout=2s&reconnect=20s"
    try:
        with Crew(url, tmp_path, PROCESSES, tolerant=True) as crew:
            for shard, ending in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
                crew.until_at_work()
                time.sleep(crew.chance.uniform(0, 0.5))  # a random point of whatever they are at
                slot = slot_of(meta_key("orders", shard))
                old = cluster.owner(slot)
                assert old.process is not None
                old.process.send_signal(ending)
                eventually(functools.partial(_has_another, cluster, slot, old))
                if ending == signal.SIGSTOP:
                    old.process.send_signal(signal.SIGCONT)
                else:
                    old.stop()
                    old.start()
                # Either way it becomes a replica of the one that took its place.
                eventually(functools.partial(_has_replica, cluster, slot, old))
            crew.until_at_work()
            crew.dismiss()
        conforms(url)
    finally:
        cluster.stop()


def _has_another(cluster: RedisCluster, slot: int, old: RedisServer) -> bool:
    return cluster.owner(slot, besides=old) is not old


def _has_replica(cluster: RedisCluster, slot: int, old: RedisServer) -> bool:
    return b"state=online" in ask(cluster.owner(slot, besides=old), "INFO", "replication")
