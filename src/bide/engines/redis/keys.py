"""All keys in Redis: how a queue's messages, and what belongs to no queue, are named there.

The keys of one shard share a hash tag, the part in braces, so that a cluster keeps them together
and one script may touch them all.
"""

from typing import Final
from zlib import crc32

__all__ = [
    "CHANNEL", "KEYS", "QUEUES", "SHARDS", "SLOTS", "VERSION", "meta_key", "probe_key",
    "shard_keys", "shard_of",
]  # fmt: skip

VERSION: Final = b"bide:version"
"""A string: the version of the layout of all other keys."""

QUEUES: Final = b"bide:queues"
"""A sorted set, all of score 0: the names of the queues."""

CHANNEL: Final = "bide:wake:"
"""What the channels begin with by which waiting lanes are told; behind it stands the lane."""

SLOTS: Final = 64
"""Of so many of its last changes a lane can still be told the reply, and so many travel at once."""

SHARDS: Final = 64
"""Of so many shards a queue can be made at most."""

_PARTS = (
    "meta", "records", "delayed", "ready", "leased", "dead", "acked", "expired", "held", "leases",
    "groups", "waiters", "order", "alive", "tail",
)  # fmt: skip


KEYS: Final = len(_PARTS) + 1
"""How many keys each script is given."""


def _prefix(queue: str, shard: int) -> str:
    return f"bide:{{{queue}#{shard}}}:"


def shard_of(id: str, shards: int) -> int:
    """Return in which shard a message is.

    Example:
        >>> shard_of("order-42", 8)
        6
    """
    return crc32(id.encode()) % shards


def meta_key(queue: str, shard: int = 0) -> bytes:
    """Return the key of the hash with a shard's counters and settings: it exists with the shard."""
    return f"{_prefix(queue, shard)}meta".encode()


def probe_key(queue: str, shard: int = 0) -> bytes:
    """Return a key that is written to find out whether replicas follow; it is gone in a second."""
    return f"{_prefix(queue, shard)}probe".encode()


def shard_keys(queue: str, lane: str, shard: int = 0) -> list[list[bytes]]:
    """Return the KEYS of a script, for each of a lane's slots.

    Example:
        >>> shard_keys("orders", "4f", 0)[7][0], shard_keys("orders", "4f", 0)[7][-1]
        (b'bide:{orders#0}:meta', b'bide:{orders#0}:try:4f:7')
    """
    prefix = _prefix(queue, shard)
    shared = [f"{prefix}{part}".encode() for part in _PARTS]
    return [[*shared, f"{prefix}try:{lane}:{slot}".encode()] for slot in range(SLOTS)]
