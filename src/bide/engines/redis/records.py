"""Records: messages as Redis stores them.

A record is a line that `redis-cli` shows, and behind it group, headers, failures and body:

    order due created kind priority attempt attempts expires state ended planned
        |group| |headers| |failures|

A put sends the line from `kind` on; the script adds the order of putting, the due moment, and when
the message was first put. Records of older versions do not have that. Where there are no group,
headers and failures, their lengths are left out. If the message was revived, a colon and the due
moment that was asked for before stand behind `planned`.
"""

from functools import lru_cache
from typing import NamedTuple

import msgspec

from bide.model.errors import StoreCorrupt
from bide.model.message import Failure, Item, Message, State, unreadable
from bide.model.rank import ready_rank

ORDER = 12
"""Digits of the order of putting, in front of each record and each member of a sorted set."""

_DUE = slice(ORDER + 1, ORDER + 14)
_CREATED = slice(ORDER + 15, ORDER + 28)
_OLD_KIND, _KIND = ORDER + 15, ORDER + 29

_LETTERS = ord("a")

Arg = bytes | str | int

DAMAGED = (ValueError, IndexError, msgspec.MsgspecError)
"""What reading a record raises that bide has not written so."""

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
as_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode


class _Fields(NamedTuple):
    """The line of a record, from `kind` on."""

    json: bool
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    state: State | None
    ended: int | None
    planned: int | None
    asked: int | None = None
    group: int = 0
    headers: int = 0
    failures: int = 0
    """The last three are lengths in bytes."""


@lru_cache(1024)
def _read_line(line: bytes) -> _Fields:
    kind, *words = line.split(b" ")
    planned, _, asked = words[6].partition(b":")
    words[6:7] = planned, asked or b"-"
    values = msgspec.convert(
        [kind == b"j", *(None if word == b"-" else word.decode() for word in words)],
        _Fields,
        strict=False,
    )
    return values


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


def refuse(queue: str, id: str) -> StoreCorrupt:
    """Return the error of a change of a message whose record cannot be read."""
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
        ready: it stands among the ready ones, whatever its due moment.
        lease: the lease as Redis stores it, which says the next two.
        holder: who holds it, `None` if nobody does.
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
    created: int | None = None
    kind = _OLD_KIND
    if record[kind] < _LETTERS:
        created = int(record[_CREATED]) or None
        kind = _KIND
    end = record.index(b"\n", kind)
    fields = _read_line(record[kind:end])
    due = int(record[_DUE])
    group: str | None = None
    headers: dict[str, str] | None = None
    failures: tuple[Failure, ...] = ()
    at = end + 1
    if fields.group:
        group = record[at : at + fields.group].decode()
        at += fields.group
    if fields.headers:
        headers = _decode_headers(record[at : at + fields.headers])
        at += fields.headers
    if fields.failures:
        failures = as_failures(record[at : at + fields.failures])
        at += fields.failures
    state: State
    if holder is not None:
        state = "leased"
    else:
        state = fields.state or ("ready" if ready or due <= now else "delayed")
    return Message(
        id, queue, record[at:], fields.json, due, fields.priority,
        fields.attempt + (holder is not None), fields.attempts, state, fields.expires, group,
        headers, failures, holder, until, fields.ended, fields.planned, created,
        successor, asked=fields.asked,
    )  # fmt: skip


def _as_successor(queue: str, id: str, record: bytes) -> Item:
    """Return the successor of a leased message, whose record stands behind the lease."""
    read = read_record(queue, id, record, 0)
    return Item(
        id, read.data, read.json, read.due, 0, read.priority, read.expires, read.attempts,
        read.group, read.headers, created=read.created,
    )  # fmt: skip


def claim_rank(message: Message, record: bytes) -> tuple[int, bytes]:
    """Return the place of a message in the order of delivery."""
    return ready_rank(message.due, message.priority), record[:ORDER]
