"""How messages are stored in Redis: the keys, and the records.

The keys of a shard share a hash tag; a few keys belong to the whole store. A record is an array in
MessagePack: `StoredRecord`, or `RuledRecord` of one whose time has a rule. A put sends its fields
from `json` on; the script adds the others.
"""

from functools import cache
from typing import Any, ClassVar, Final, Literal
from zlib import crc32

import msgspec
from redis.crc import key_slot

from bide.model.errors import StoreCorrupt
from bide.model.message import Failure, Item, Message, Progress, State, unreadable
from bide.model.replies import Outcome

VERSION: Final = b"bide:version"
"""A string: the version of the layout of all other keys."""

LAYOUT: Final = 5
"""The version of the layout of a new store."""

RULED_LAYOUT: Final = 6
"""The version from the first message with a rule on: a bide that does not know such records refuses
the store. All else is as before."""

LAYOUTS: Final = (LAYOUT, RULED_LAYOUT)
"""The versions that this engine reads and writes."""

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
"""How many copies a cluster has of a key that belongs to no queue: one in each sixth of its
slots."""

_SHARD_KEYS = (
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
    "closed",
)
"""The last words of the keys of a shard, in the order in which scripts get them: what each holds is
said at the head of lua/_prelude.lua."""


def _prefix(queue: str, shard: int) -> str:
    """Return how the keys of a shard begin; a cluster keeps keys of the same braces together."""
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


def ended_key(queue: str, shard: int = 0) -> bytes:
    """Return the key of the hash with a shard's ends: id to the last ends of its messages."""
    return f"{_prefix(queue, shard)}ended".encode()


def script_keys(queue: str, shard: int = 0) -> list[bytes]:
    """Return the keys of a shard for scripts.

    Example:
        >>> script_keys("orders")[0]
        b'bide:{orders#0}:meta'
    """
    prefix = _prefix(queue, shard)
    return [f"{prefix}{word}".encode() for word in _SHARD_KEYS]


def replay_key(queue: str, shard: int, lane: str, place: int) -> bytes:
    """Return the key of the reply to a call, which its lane may request again.

    Calls at the same place of later pipelines use the same key: a lane has one pipeline at a time.

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
    """Return two keys: of what is remembered of a sender, and of all senders of its owner.

    Args:
        sender: the name of one that may send its commands again.
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
    name_by_sixth: dict[int, bytes] = {}  # of the slots
    number = 0
    while len(name_by_sixth) < _COPIES:
        name = b"%s:%d" % (key, number) if number else key
        name_by_sixth.setdefault(slot_of(name) * _COPIES // SLOTS, name)
        number += 1
    return tuple(name_by_sixth.values())


ORDER = 12
"""Hexadecimal digits of the order of putting, in front of each member of a sorted set."""

Word = bytes | str
"""A word of a command as it goes to a server."""

Arg = Word | int
"""A word of a command before it is packed."""

_pack = msgspec.msgpack.Encoder().encode


def packed_values(values: tuple[Any, ...]) -> bytes:
    """Return up to 15 values in MessagePack, one behind the other: Lua needs no table for them."""
    # The head of an array of up to 15 values is one byte.
    return _pack(values)[1:]


DAMAGED = (ValueError, msgspec.MsgspecError)
"""What reading a record raises that bide has not written so."""

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class _RecordHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What all records begin with. Times are Unix milliseconds."""

    order: str
    """Of putting, in hexadecimal digits."""
    due: int
    created: int
    """When the message was first put; 0 if an import does not know."""
    json: bool
    """Whether the body is JSON; else it is bytes."""
    priority: int
    attempt: int
    """How many attempts have ended."""
    attempts: int
    """How many there may be."""
    expires: int | None
    """How many milliseconds after `due`."""
    state: Literal["dead", "acked", "expired"] | None
    """`None`: it can be claimed, or is leased."""
    ended: int | None
    """When it got that state."""
    planned: int | None
    """The due time that was asked for, if a retry has moved `due`."""
    asked: int | None
    """The due time that was asked for, if a revival has moved `due`."""
    group: str
    """Empty without one, as are the headers."""
    headers: str
    """In JSON."""
    failures: tuple[Failure, ...]


class StoredRecord(_RecordHead, array_like=True, frozen=True, gc=False):
    """A message as Redis stores it, if its time has no rule."""

    rule: ClassVar[None] = None
    run: ClassVar[None] = None
    data: bytes
    """The body."""


class RuledRecord(_RecordHead, array_like=True, frozen=True, gc=False):
    """A message whose time has a rule as Redis stores it."""

    rule: str
    run: str | None
    data: bytes
    """The body."""


class StoredLease(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The lease of a message as Redis stores it, if nothing is noted of its worker."""

    order: str
    """Of putting, as in the record of the message: else the lease is of an earlier one."""
    token: str
    until: int
    holder: str
    since: int
    extended: int
    """How many times."""
    next: msgspec.Raw
    """What takes the place of the message when its lease ends: the record of its successor; true:
    its own next run; nil: nothing."""

    @property
    def successor(self) -> StoredRecord | RuledRecord | None:
        """What was put to take the place of the message, if something was."""
        return _decode_successor(self.next)


class NotedLease(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A lease with what the worker was told and has reported."""

    order: str
    token: str
    until: int
    holder: str
    since: int
    extended: int
    stopping: str | None
    """The actor that has asked it to stop; empty: one without a name."""
    progress: str | None
    """Its last report, a `Progress` as JSON."""
    next: msgspec.Raw

    @property
    def successor(self) -> StoredRecord | RuledRecord | None:
        """What was put to take the place of the message, if something was."""
        return _decode_successor(self.next)


_HEAD_OF_RULED = b"\xdc\x00\x12"
"""The first bytes of an array of eighteen values in MessagePack: a `RuledRecord` has as
many."""

_HEAD_OF_NINE = b"\x99"
"""The first byte of an array of nine values in MessagePack: a `NotedLease` has as many fields."""

_decode_plain_record = msgspec.msgpack.Decoder(StoredRecord).decode
_decode_ruled_record = msgspec.msgpack.Decoder(RuledRecord).decode
_decode_lease = msgspec.msgpack.Decoder(StoredLease).decode
_decode_noted_lease = msgspec.msgpack.Decoder(NotedLease).decode
_decode_progress = msgspec.json.Decoder(Progress).decode


_NO_SUCCESSOR = (b"\xc0", b"\xc3")
"""nil and true in MessagePack."""


def _decode_successor(next: msgspec.Raw) -> StoredRecord | RuledRecord | None:
    """Return the successor in the last field of a lease.

    Raises:
        Exception: one of `DAMAGED`: it cannot be read.
    """
    record = bytes(next)
    return None if record in _NO_SUCCESSOR else _decode_record(record)


def _decode_record(record: bytes) -> StoredRecord | RuledRecord:
    """Return what a record says.

    Raises:
        Exception: one of `DAMAGED`: it cannot be read.
    """
    if record[:3] == _HEAD_OF_RULED:
        return _decode_ruled_record(record)
    return _decode_plain_record(record)


def decode_lease(lease: bytes) -> StoredLease | NotedLease:
    """Return what a lease says.

    Raises:
        Exception: one of `DAMAGED`: it cannot be read.
    """
    is_noted = lease[:1] == _HEAD_OF_NINE
    return _decode_noted_lease(lease) if is_noted else _decode_lease(lease)


def as_message(
    queue: str, id: str, record: bytes, now: int, *, ready: bool = False, lease: bytes | None = None
) -> Message:
    """Return the message that a record describes, a dead letter if it cannot be read.

    The arguments are those of `read_record`, and the lease as Redis stores it, if there is one.
    """
    try:
        message = read_record(queue, id, record, now, ready=ready)
        return message if lease is None else _leased(message, lease)
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
    stored = _decode_record(record)
    pending_state: State = "ready" if ready or stored.due <= now else "delayed"
    return Message(
        id,
        queue,
        stored.data,
        stored.json,
        stored.due,
        stored.priority,
        attempt=stored.attempt,
        attempts=stored.attempts,
        state=stored.state or pending_state,
        expires=stored.expires,
        group=stored.group or None,
        headers=_headers(stored),
        failures=stored.failures,
        ended=stored.ended,
        planned=stored.planned,
        created=stored.created or None,
        asked=stored.asked,
        rule=stored.rule,
        run=stored.run,
    )


def _leased(message: Message, lease: bytes) -> Message:
    """Return a message as a worker holds it, by its lease as Redis stores it.

    Raises:
        Exception: one of `DAMAGED`: the lease cannot be read.
    """
    stored = decode_lease(lease)
    successor: Item | None = None
    if (following := stored.successor) is not None:
        successor = _as_successor(message.id, following)
    stopping = progress = None
    if isinstance(stored, NotedLease):  # only this form has them
        stopping = stored.stopping
        progress = None if stored.progress is None else _decode_progress(stored.progress)
    return msgspec.structs.replace(
        message,
        attempt=message.attempt + 1,  # the record counts those that have ended
        state="leased",
        holder=stored.holder,
        until=stored.until,
        successor=successor,
        stopping=stopping,
        progress=progress,
    )


def claimed_message(queue: str, id: str, record: bytes, holder: str, until: int) -> Message:
    """Return the message that a worker gets, who holds it until a time.

    Raises:
        Exception: one of `DAMAGED`: the record cannot be read.
    """
    stored = _decode_record(record)
    return Message(
        id,
        queue,
        stored.data,
        stored.json,
        stored.due,
        stored.priority,
        attempt=stored.attempt + 1,
        attempts=stored.attempts,
        state="leased",
        expires=stored.expires,
        group=stored.group or None,
        headers=_headers(stored),
        failures=stored.failures,
        holder=holder,
        until=until,
        planned=stored.planned,
        created=stored.created or None,
        asked=stored.asked,
    ).with_rule(stored.rule, stored.run)


def order_of(record: bytes) -> bytes:
    """Return the order of putting: each record begins with it, behind a head of four bytes."""
    return record[4 : 4 + ORDER]


def as_outcome(queue: str, id: str, done: bool, *fields: Any) -> Outcome | StoreCorrupt:
    """Return what became of a message, or the error of one whose record cannot be read.

    `fields` are those of an `Outcome` from `state` on, of which there may be none.
    """
    is_unreadable = fields[:1] == ("unreadable",)
    if not is_unreadable:
        return Outcome(id, done, *fields)
    return StoreCorrupt(
        f"the record of {id!r} in queue {queue!r} cannot be read, so the message was not changed: "
        "something else has written to the keys of bide; once it is due, a claim makes a dead "
        "letter of it, with those bytes as its body"
    )


def _headers(record: StoredRecord | RuledRecord) -> dict[str, str] | None:
    """Return the headers of a message, `None` without any."""
    return _decode_headers(record.headers) if record.headers else None


def _as_successor(id: str, record: StoredRecord | RuledRecord) -> Item:
    """Return what takes the place of a message when its lease ends."""
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
        rule=record.rule,
        run=record.run,
    )
