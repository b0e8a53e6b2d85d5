"""A master of a cluster is killed with -9 in mid-load, and its replica takes its place."""

import functools
import time
from pathlib import Path

import pytest

from bide.engines.redis.cluster.slots import slot_of
from bide.engines.redis.keys import meta_key
from tests.cluster import RedisCluster, ask, eventually
from tests.faults.crew import Crew
from tests.servers import RedisServer

pytestmark = pytest.mark.process

PROCESSES = 3
SHARDS = 4


def test_nothing_confirmed_is_lost_when_a_master_is_killed(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    cluster = RedisCluster(tmp_path / "cluster", replicas=1)
    url = f"{cluster.url}?shards={SHARDS}&wait_replicas=1&timeout=2s&reconnect=20s"
    try:
        with Crew(url, tmp_path, PROCESSES, tolerant=True) as crew:
            for shard in (0, 1):
                crew.until_at_work()
                time.sleep(crew.chance.uniform(0, 0.5))  # a random point of whatever they are at
                slot = slot_of(meta_key("orders", shard))
                old = cluster.owner(slot)
                old.stop()
                eventually(functools.partial(_has_another, cluster, slot, old))
                old.start()  # as a replica of the one that took its place
                eventually(functools.partial(_has_replica, cluster, slot))
            crew.until_at_work()
            crew.dismiss()
    finally:
        cluster.stop()


def _has_another(cluster: RedisCluster, slot: int, old: RedisServer) -> bool:
    return cluster.owner(slot) is not old


def _has_replica(cluster: RedisCluster, slot: int) -> bool:
    return b"state=online" in ask(cluster.owner(slot), "INFO", "replication")
