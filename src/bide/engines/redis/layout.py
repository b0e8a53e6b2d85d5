"""How messages are stored in Redis: the keys, and the records.

The keys of a shard share a hash tag; a few keys belong to the whole store. A record is an array in
MessagePack: `StoredRecord`. A put sends its fields from `json` on; the script adds the others.
"""

from functools import cache
from typing import Any, Final, Literal
from zlib import crc32

import msgspec
from redis.crc import key_slot

from bide.model.errors import StoreCorrupt
from bide.model.message import Failure, Item, Message, State, unreadable
from bide.model.progress import Progress
from bide.model.replies import Outcome

VERSION: Final = b"bide:version"
"""A string: the version of the layout of all other keys."""

LAYOUT: Final = 5
"""The version of the layout that this engine reads and writes."""

QUEUES: Final = b"bide:queues"
"""A sorted set, every score is 0: the names of the queues."""

NUMBERS: Final = b"bide:queues:shards"
"""A sorted set: the names of the queues, by the number of their shards."""

CHANNEL: Final = "bide:wake:"
"""In front of the name of a lane: the channel over which its waiting claims are woken."""

EVERYBODY: Final = f"{CHANNEL}all"
"""The channel over which all lanes learn which messages have workers that are to stop."""

SHARDS: Final = 64
"""A queue has at most so many shards."""

SLOTS: Final = 16384
"""How many slots a cluster has."""

_COPIES = 6
"""In so many parts of the slots of a cluster there is a copy of what belongs to no queue."""

_PARTS = (
    "meta",
    "records",
    "delayed",
    "ready",
    "kept",
    "leases",
    "leased",
    "groups",
    "waiters",
    "ended",
    "endings",
    "lines",
    "heads",
    "tags",
    "forwarded",
    "returns",
    "turns",
    "shares",
)


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


def script_keys(queue: str, shard: int = 0) -> list[bytes]:
    """Return the keys of a shard for scripts.

    Example:
        >>> script_keys("orders")[0]
        b'bide:{orders#0}:meta'
    """
    prefix = _prefix(queue, shard)
    return [f"{prefix}{part}".encode() for part in _PARTS]


def replay_key(queue: str, shard: int, lane: str, place: int) -> bytes:
    """Return the key of the reply that a lane may request again.

    Args:
        queue: the name of the queue.
        shard: the number of the shard.
        lane: the name of the lane.
        place: that of the call in its pipeline.

    Example:
        >>> replay_key("orders", 0, "4f", 2)
        b'bide:{orders#0}:try:4f:2'
    """
    return f"{_prefix(queue, shard)}try:{lane}:{place}".encode()


def sender_keys(sender: str, owner: str, queue: str, shard: int | None) -> list[bytes]:
    """Return the keys of what is remembered of a sender, and of all senders of its owner.

    Args:
        sender: of commands that it may send again.
        owner: of the sender.
        queue: the name of the queue.
        shard: the number of the shard; `None`: one server keeps it for all queues.

    Example:
        >>> sender_keys("lane:4f", "lane", "orders", 2)
        [b'bide:{orders#2}:sent:lane:4f', b'bide:{orders#2}:senders:lane']
    """
    prefix = "bide:" if shard is None else _prefix(queue, shard)
    return [f"{prefix}sent:{sender}".encode(), f"{prefix}senders:{owner}".encode()]


def slot_of(key: bytes) -> int:
    """Return the slot of a key in a cluster.

    Example:
        >>> slot_of(b"bide:{orders#0}:meta") == slot_of(b"bide:{orders#0}:kept")
        True
    """
    return int(key_slot(key))


@cache
def copies(key: bytes) -> tuple[bytes, ...]:
    """Return the names of the copies of a key in a cluster, spread so that no node has all of them.

    Example:
        >>> copies(b"bide:queues")[:2]
        (b'bide:queues', b'bide:queues:2')
    """
    names: dict[int, bytes] = {}
    number = 0
    while len(names) < _COPIES:
        name = b"%s:%d" % (key, number) if number else key
        names.setdefault(slot_of(name) * _COPIES // SLOTS, name)
        number += 1
    return tuple(names.values())


ORDER = 12
"""Digits of the order of putting, in front of each member of a sorted set."""

Word = bytes | str
Arg = Word | int

_pack = msgspec.msgpack.Encoder().encode


def packed_values(values: tuple[Any, ...]) -> bytes:
    """Return up to 15 values in MessagePack, one behind the other: Lua needs no table for them."""
    return _pack(values)[1:]  # without the head of the array


DAMAGED = (ValueError, msgspec.MsgspecError)
"""What reading a record raises that bide has not written so."""

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class StoredRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as Redis stores it."""

    order: str
    """Of putting, in hexadecimal digits."""
    due: int
    created: int
    """When the message was first put; 0 if an import does not know."""
    json: bool
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    state: Literal["dead", "acked", "expired"] | None
    """`None`: it can be claimed, or is leased."""
    ended: int | None
    planned: int | None
    """The due time that was asked for, if a retry has moved `due`."""
    asked: int | None
    """The due time that was asked for, if a revival has moved `due`."""
    group: str
    """Empty without one, as are the headers."""
    headers: str
    """In JSON."""
    failures: tuple[Failure, ...]
    data: bytes


class StoredLease(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The lease of a message as Redis stores it, if nothing is noted of its worker."""

    order: str
    token: str
    until: int
    holder: str
    since: int
    extended: int
    """How many times."""
    successor: StoredRecord | None


class NotedLease(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The same, with what is noted of the worker."""

    order: str
    token: str
    until: int
    holder: str
    since: int
    extended: int
    stopping: str | None
    """Who has asked it to stop; empty: somebody who gave no name."""
    progress: str | None
    """Its last report, a `Progress` as JSON."""
    successor: StoredRecord | None


_decode_record = msgspec.msgpack.Decoder(StoredRecord).decode
_decode_lease = msgspec.msgpack.Decoder(StoredLease).decode
_decode_noted_lease = msgspec.msgpack.Decoder(NotedLease).decode
_decode_progress = msgspec.json.Decoder(Progress).decode


def decode_lease(lease: bytes) -> StoredLease | NotedLease:
    """Return what a lease says.

    Raises:
        Exception: one of `DAMAGED`: it cannot be read.
    """
    return _decode_noted_lease(lease) if lease[:1] == b"\x99" else _decode_lease(lease)


def as_message(
    queue: str, id: str, record: bytes, now: int, *, ready: bool = False, lease: bytes | None = None
) -> Message:
    """Return the message that a record describes, a dead letter if it cannot be read.

    The arguments are those of `read_record`, and the lease as Redis stores it, if there is one.
    """
    try:
        message = read_record(queue, id, record, now, ready=ready)
        return message if lease is None else _held(message, lease)
    except DAMAGED:
        return unreadable(queue, id, record, now)


def read_record(queue: str, id: str, record: bytes, now: int, *, ready: bool = False) -> Message:
    """Return the message that a record describes, as no worker holds it.

    Args:
        queue: its queue.
        id: its id.
        record: as Redis stores it.
        now: Unix milliseconds, to tell ready messages from delayed ones.
        ready: it is among the ready ones, whatever its due time.

    Raises:
        Exception: one of `DAMAGED`: the record cannot be read.
    """
    read = _decode_record(record)
    state: State = "ready" if ready or read.due <= now else "delayed"
    return Message(
        id,
        queue,
        read.data,
        read.json,
        read.due,
        read.priority,
        attempt=read.attempt,
        attempts=read.attempts,
        state=read.state or state,
        expires=read.expires,
        group=read.group or None,
        headers=_headers(read),
        failures=read.failures,
        ended=read.ended,
        planned=read.planned,
        created=read.created or None,
        asked=read.asked,
    )


def _held(message: Message, lease: bytes) -> Message:
    held = decode_lease(lease)
    successor: Item | None = None
    if held.successor is not None:
        successor = _as_successor(message.id, held.successor)
    stopping = progress = None
    if isinstance(held, NotedLease):
        stopping = held.stopping
        progress = None if held.progress is None else _decode_progress(held.progress)
    return msgspec.structs.replace(
        message,
        attempt=message.attempt + 1,
        state="leased",
        holder=held.holder,
        until=held.until,
        successor=successor,
        stopping=stopping,
        progress=progress,
    )


def claimed_message(queue: str, id: str, record: bytes, holder: str, until: int) -> Message:
    """Return the message that a worker gets, who holds it until a time.

    Raises:
        Exception: one of `DAMAGED`: the record cannot be read.
    """
    read = _decode_record(record)
    return Message(
        id,
        queue,
        read.data,
        read.json,
        read.due,
        read.priority,
        attempt=read.attempt + 1,
        attempts=read.attempts,
        state="leased",
        expires=read.expires,
        group=read.group or None,
        headers=_headers(read),
        failures=read.failures,
        holder=holder,
        until=until,
        planned=read.planned,
        created=read.created or None,
        asked=read.asked,
    )


def as_outcome(queue: str, id: str, done: bool, *rest: Any) -> Outcome | StoreCorrupt:
    """Return what became of a message, or the error of one whose record cannot be read."""
    if rest[:1] != ("unreadable",):
        return Outcome(id, done, *rest)
    return StoreCorrupt(
        f"the record of {id!r} in queue {queue!r} cannot be read, so the message was not changed: "
        "something else has written to the keys of bide; once it is due, a claim makes a dead "
        "letter of it, with those bytes as its body"
    )


def _headers(record: StoredRecord) -> dict[str, str] | None:
    return _decode_headers(record.headers) if record.headers else None


def _as_successor(id: str, record: StoredRecord) -> Item:
    return Item(
        id=id,
        data=record.data,
        json=record.json,
        at=record.due,
        priority=record.priority,
        expires=record.expires,
        attempts=record.attempts,
        group=record.group or None,
        headers=_headers(record),
        created=record.created or None,
    )
