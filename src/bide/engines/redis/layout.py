"""How messages are stored in Redis: the keys, and the records.

The keys of a shard share a hash tag; a few keys belong to the whole store. A record is a line that
`redis-cli` shows, and behind it group, headers, failures and body:

    order due created kind priority attempt attempts expires state ended planned
        |group| |headers| |failures|

A put sends the line from `kind` on; the script adds the order of putting, the due time, and when
the message was first put. Without group, headers and failures, their lengths are left out. If the
message was revived, `planned` is followed by a colon and the due time that was asked for before.
"""

from functools import cache, lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
from redis.crc import key_slot

from bide.model.errors import StoreCorrupt
from bide.model.message import Failure, Item, Message, State, unreadable
from bide.model.rank import ready_rank
from bide.model.replies import Outcome

VERSION: Final = b"bide:version"
"""A string: the version of the layout of all other keys."""

LAYOUT: Final = 3
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
    """The beginning of the last key; the place of a call in a pipeline follows. The key holds the
    reply, which a lane may request again."""


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


ORDER = 12
"""Digits of the order of putting, in front of each record and each member of a sorted set."""

_DUE = slice(ORDER + 1, ORDER + 14)
_CREATED = slice(ORDER + 15, ORDER + 28)
_KIND = ORDER + 29

Arg = bytes | str | int

DAMAGED = (ValueError, LookupError, msgspec.MsgspecError)
"""What reading a record raises that bide has not written so."""

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
as_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode


_STATES: dict[bytes, State | None] = {
    b"-": None, b"dead": "dead", b"acked": "acked", b"expired": "expired",
}  # fmt: skip


def blank(value: int | None) -> int | str:
    """Return a number as an argument of a script, an empty one for `None`."""
    return "" if value is None else value


def number(word: bytes) -> int | None:
    """Return the number that a word is, `None` for -."""
    return None if word == b"-" else int(word)


def as_message(
    queue: str,
    id: str,
    record: bytes,
    now: int,
    *,
    ready: bool = False,
    lease: bytes | None = None,
) -> Message:
    """Return the message that a record describes, a dead letter if it cannot be read.

    The arguments are those of `read_record`.
    """
    try:
        return read_record(queue, id, record, now, ready=ready, lease=lease)
    except DAMAGED:
        return unreadable(queue, id, record, now)


def as_outcome(queue: str, id: str, done: bool, *rest: Any) -> Outcome | StoreCorrupt:
    """Return what became of a message, or the error of one whose record cannot be read."""
    if rest[:1] != ("unreadable",):
        return Outcome(id, done, *rest)
    return StoreCorrupt(
        f"the record of {id!r} in queue {queue!r} cannot be read, so the message was not changed: "
        "something else has written to the keys of bide; once it is due, a claim makes a dead "
        "letter of it, with those bytes as its body"
    )


def read_record(
    queue: str,
    id: str,
    record: bytes,
    now: int,
    *,
    ready: bool = False,
    lease: bytes | None = None,
    holder: str | None = None,
    until: int | None = None,
) -> Message:
    """Return the message that a record describes.

    Args:
        queue: its queue.
        id: its id.
        record: as Redis stores it.
        now: Unix milliseconds, to tell ready messages from delayed ones.
        ready: it is among the ready ones, whatever its due time.
        lease: the lease as Redis stores it, which says the next two.
        holder: the worker that holds it; `None` without one.
        until: when its lease lapses.

    Raises:
        Exception: one of `DAMAGED`: the record cannot be read.
    """
    successor: Item | None = None
    if lease is not None:
        lease, _, follows = lease.partition(b"\n")
        if follows:
            successor = _as_successor(queue, id, follows)
        _order, _token, expiry, name = lease.split(b" ", 3)
        holder, until = name.partition(b"\t")[0].decode(), int(expiry)
    end = record.index(b"\n", _KIND)
    line = _read_line(record[_KIND:end])
    due, at = int(record[_DUE]), end + 1
    group = headers = failures = b""
    if line.lengths:
        of_group, of_headers, of_failures = line.lengths
        group, at = record[at : at + of_group], at + of_group
        headers, at = record[at : at + of_headers], at + of_headers
        failures, at = record[at : at + of_failures], at + of_failures
    state = line.state
    if holder is not None:
        state = "leased"
    elif state is None:
        state = "ready" if ready or due <= now else "delayed"
    return Message(
        id, queue, record[at:], line.json, due, line.priority,
        line.attempt + (holder is not None), line.attempts, state, line.expires,
        group.decode() if group else None, _decode_headers(headers) if headers else None,
        as_failures(failures) if failures else (), holder, until, line.ended, line.planned,
        int(record[_CREATED]) or None, successor, None, line.asked,
    )  # fmt: skip


class _Line(NamedTuple):
    """What the line of a record says, from `kind` on."""

    json: bool
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    state: State | None
    ended: int | None
    planned: int | None
    asked: int | None
    lengths: list[int]
    """Of group, headers and failures; empty if there are none."""


@lru_cache(1024)
def _read_line(line: bytes) -> _Line:
    kind, priority, attempt, attempts, expires, state, ended, planned, *rest = line.split(b" ")
    planned, _, asked = planned.partition(b":")
    return _Line(
        kind == b"j", int(priority), int(attempt), int(attempts), number(expires), _STATES[state],
        number(ended), number(planned), number(asked or b"-"), [int(length) for length in rest],
    )  # fmt: skip


def _as_successor(queue: str, id: str, record: bytes) -> Item:
    """Return the successor of a leased message; its record follows the lease."""
    read = read_record(queue, id, record, 0)
    return Item(
        id, read.data, read.json, read.due, 0, read.priority, read.expires, read.attempts,
        read.group, read.headers, created=read.created,
    )  # fmt: skip


def claim_rank(message: Message, record: bytes) -> tuple[int, bytes]:
    """Return the place of a message in the order of delivery."""
    return ready_rank(message.due, message.priority), record[:ORDER]
