"""All keys in Redis: those of a shard, which share a hash tag, and those of the whole store."""

from functools import cache, lru_cache
from typing import Final, NamedTuple
from zlib import crc32

from redis.crc import key_slot

VERSION: Final = b"bide:version"
"""A string: the version of the layout of all other keys."""

LAYOUT: Final = 2
"""The version of the layout that this engine reads and writes."""

QUEUES: Final = b"bide:queues"
"""A sorted set, every score is 0: the names of the queues."""

CHANNEL: Final = "bide:wake:"
"""In front of the name of a lane: the channel over which its waiting claims are woken."""

SHARDS: Final = 64
"""A queue has at most so many shards."""

SLOTS: Final = 16384
"""How many slots a cluster has."""

_COPIES = 6
"""In so many parts of the slots of a cluster there is a copy of what belongs to no queue."""

_PARTS = (
    "meta", "records", "delayed", "ready", "dead", "kept", "leases", "leased", "groups", "waiters",
    "ended", "endings", "lines", "turns", "shares", "forwarded",
)  # fmt: skip


def _prefix(queue: str, shard: int) -> str:
    return f"bide:{{{queue}#{shard}}}:"


def shard_of(id: str, shards: int) -> int:
    """Return in which shard a message is.

    Example:
        >>> shard_of("order-42", 8)
        6
    """
    return crc32(id.encode()) % shards if shards > 1 else 0


def meta_key(queue: str, shard: int = 0) -> bytes:
    """Return the key of the hash with a shard's counters and settings: it exists with the shard."""
    return f"{_prefix(queue, shard)}meta".encode()


def records_key(queue: str, shard: int = 0) -> bytes:
    """Return the key of the hash with a shard's messages: id to record."""
    return f"{_prefix(queue, shard)}records".encode()


class ScriptKeys(NamedTuple):
    """The keys of a shard, as a script takes them."""

    slot: int
    names: tuple[bytes, ...]
    """All but the last."""
    replay: bytes
    """What the last one begins with, behind which stands the place of a call in a pipeline: there
    is the reply that a lane may ask for again."""


@lru_cache(1024)
def script_keys(queue: str, lane: str, shard: int = 0) -> ScriptKeys:
    """Return the keys of a shard for the scripts of a lane.

    Example:
        >>> script_keys("orders", "4f").replay
        b'bide:{orders#0}:try:4f:'
    """
    prefix = _prefix(queue, shard)
    *names, replay = (f"{prefix}{part}".encode() for part in (*_PARTS, f"try:{lane}:"))
    return ScriptKeys(slot_of(replay), tuple(names), replay)


def slot_of(key: bytes) -> int:
    """Return the slot of a key in a cluster.

    Example:
        >>> slot_of(b"bide:{orders#0}:meta") == slot_of(b"bide:{orders#0}:dead")
        True
    """
    slot: int = key_slot(key)
    return slot


@cache
def copies(key: bytes) -> tuple[bytes, ...]:
    """Return the names of the copies of a key in a cluster, spread so that no node has all of them.

    Example:
        >>> copies(b"bide:queues")[:2]
        (b'bide:queues', b'bide:queues:2')
    """
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < _COPIES:
        name = b"%s:%d" % (key, number) if number else key
        found.setdefault(slot_of(name) * _COPIES // SLOTS, name)
        number += 1
    return tuple(found.values())
