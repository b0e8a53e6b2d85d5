"""All keys in Redis: how a queue's messages, and what belongs to no queue, are named there.

The keys of one shard share a hash tag, the part in braces, so that a cluster keeps them together
and one script may touch them all.
"""

from typing import Final
from zlib import crc32

__all__ = [
    "CHANNEL", "LONE", "QUEUES", "SHARDS", "SLOTS", "VERSION", "meta_key", "probe_key",
    "script_keys", "shard_of",
]  # fmt: skip

VERSION: Final = b"bide:version"
"""A string: the version of the layout of all other keys."""

QUEUES: Final = b"bide:queues"
"""A sorted set, all of score 0: the names of the queues."""

CHANNEL: Final = "bide:wake:"
"""What the channels begin with by which waiting lanes are told; behind it stands the lane."""

SLOTS: Final = 64
"""So many calls travel at once, at most, and of each its lane can be told the answer again."""

SHARDS: Final = 64
"""Of so many shards a queue can be made at most."""

_PARTS = (
    "meta", "records", "delayed", "ready", "leased", "dead", "acked", "expired", "held", "leases",
    "groups", "waiters", "order", "alive", "tail",
)  # fmt: skip


_FEW: Final[dict[str, tuple[str, ...]]] = {
    "records": ("records",),
    "lease": ("leases",),
    "put_one": ("meta", "records", "delayed", "tail"),
    "cancel_one": ("meta", "records", "delayed", "order", "alive"),
}
"""What is given to who is to cost as little as can be; all others are given all keys."""

LONE: Final = frozenset({"put_one", "cancel_one"})
"""The scripts that do one small thing alone in their pipeline."""


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


def script_keys(script: str, queue: str, lane: str, shard: int = 0) -> list[bytes]:
    """Return the KEYS of a script: the last is that under which the lane finds its answers again.

    Example:
        >>> script_keys("put_one", "orders", "4f")[0], script_keys("put_one", "orders", "4f")[-1]
        (b'bide:{orders#0}:meta', b'bide:{orders#0}:try:4f')
    """
    prefix = _prefix(queue, shard)
    return [f"{prefix}{part}".encode() for part in (*_FEW.get(script, _PARTS), f"try:{lane}")]
