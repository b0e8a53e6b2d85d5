"""Short ways to say what tests of queues that are spread over a cluster ask."""

from typing import Any

from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import meta_key, slot_of
from bide.model.commands import Command, Put
from bide.model.message import Item
from tests.cluster import RedisCluster, ask

__all__ = ["HOUR", "SHARDS", "ids", "is_waited_for", "one", "put", "slot"]

HOUR = 3_600_000
SHARDS = 8


def one(engine: RedisEngine, command: Command) -> Any:
    (reply,) = engine.execute([command])
    return reply


def put(queue: str, *ids: str, **fields: Any) -> Put:
    return Put(queue, [Item(id, b"1", **fields) for id in ids])


def ids(count: int) -> list[str]:
    return [f"m{number:03}" for number in range(count)]


def slot(queue: str, shard: int) -> int:
    return slot_of(meta_key(queue, shard))


def is_waited_for(cluster: RedisCluster, queue: str) -> bool:
    """Whether in each shard somebody waits."""
    for shard in range(SHARDS):
        owner, key = cluster.owner(slot(queue, shard)), f"bide:{{{queue}#{shard}}}"
        if not ask(owner, "ZCARD", f"{key}:waiters"):
            return False
    return True
