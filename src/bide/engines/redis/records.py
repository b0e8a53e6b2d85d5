"""Messages as they stand in Redis: what a put sends of each, and what is made of what comes back.

A record is one line of numbers and words, which `redis-cli` shows, and behind it the body. Of a
message that has nothing but a body the line is short; `kind` is `j` for JSON, `b` for bytes:

    seq due kind priority attempt attempts

Else `kind` is `J` or `B`, the line goes on, and behind it stand group, headers, failures and body,
end to end:

    seq due kind priority attempt attempts expires aside ended |group| |headers| |failures|

Many messages that are put together, and are alike, get records that are whole when they are sent.
Then a tag stands instead of the first ten digits of seq, and a delay where due stands; the server
knows what they mean (`lua/_tags.lua`), and tells it to claims.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from bide.model.message import STATES, Alike, Failure, Item, Message, State
from bide.model.replies import Outcome

__all__ = [
    "NAME",
    "SEQ",
    "Arg",
    "are_alike",
    "as_claimed",
    "as_message",
    "as_outcome",
    "is_plain",
    "mark",
    "read_tags",
    "seq_of",
    "when",
    "write",
    "write_plain",
    "write_whole",
]

SEQ = 13
"""How many digits the number has with which records, members and leases begin."""

NAME = 10
"""How many of them are the name of a chunk of the order of puts."""

LONGEST = 10**12
"""A delay from so many milliseconds on has no room in a record."""

_DUE = slice(SEQ + 1, SEQ + 14)
_KIND = SEQ + 15

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
_STATES: dict[str, State] = {state: state for state in STATES}

Arg = bytes | str | int

_NOTHING_MORE = (b"-", b"-", b"-", b"0", b"0", b"0")


def when(at: int | None, delay: int) -> Arg:
    """Return a moment as scripts read it: as it is, or + and milliseconds from now."""
    return f"+{delay}" if at is None else at


def is_plain(item: Item) -> bool:
    """Tell whether an item has nothing but a body, a priority and a number of attempts."""
    return (
        item.group is None
        and item.expires is None
        and item.headers is None
        and item.died is None
        and not item.attempt
        and not item.failures
    )


@lru_cache(256)
def _plain_line(json: bool, priority: int, attempts: int) -> bytes:
    return b"%b %d 0 %d\n" % (b"j" if json else b"b", priority, attempts)


def write(item: Item) -> bytes:
    """Return the record of an item that is put, from the kind on."""
    if is_plain(item):
        return _plain_line(item.json, item.priority, item.attempts) + item.data
    group = (item.group or "").encode()
    headers = _encode(item.headers) if item.headers is not None else b""
    failures = _encode(item.failures) if item.failures else b""
    line = (
        f"{'J' if item.json else 'B'} {item.priority} {item.attempt} {item.attempts} "
        f"{'-' if item.expires is None else item.expires} "
        f"{'- -' if item.died is None else f'dead {item.died}'} "
        f"{len(group)} {len(headers)} {len(failures)}\n"
    )
    return b"".join((line.encode(), group, headers, failures, item.data))


def are_alike(items: Sequence[Item]) -> bool:
    """Tell whether items that begin with a plain one differ in nothing but id and body."""
    if len(items) == 1 or isinstance(items, Alike):
        return True
    first = items[0]
    json, at, delay = first.json, first.at, first.delay
    priority, attempts = first.priority, first.attempts
    for item in items:  # the fields one by one: to compare them as tuples takes twice as long
        if (
            item.delay != delay
            or item.at != at
            or item.priority != priority
            or item.attempts != attempts
            or item.json != json
            or item.group is not None
            or item.expires is not None
            or item.headers is not None
            or item.died is not None
            or item.attempt
            or item.failures
        ):
            return False
    return True


def write_plain(items: Sequence[Item]) -> list[bytes]:
    """Return the records of plain items that are alike."""
    first = items[0]
    line = _plain_line(first.json, first.priority, first.attempts)
    return [line + item.data for item in items]


_PLACES = [b"%03x" % place for place in range(4096)]


def write_whole(items: Sequence[Item], tag: bytes) -> list[bytes]:
    """Return the records of plain items that are alike, whole, with a tag of ten characters."""
    first = items[0]
    line = _plain_line(first.json, first.priority, first.attempts)
    due = b"+%012d" % first.delay if first.at is None else b"%013d" % first.at
    tail = b" %b %b" % (due, line)
    return [tag + place + tail + item.data for place, item in zip(_PLACES, items, strict=False)]


def mark(item: Item) -> Arg:
    """Return what the script `put` has to know of an item beside its record."""
    if item.group is None and item.died is None:
        return item.priority
    return f"{item.priority} {'-' if item.died is None else item.died} {item.group or ''}"


def as_outcome(id: str, told: Any) -> Outcome:
    """Return an outcome that a script tells: done, state, due, until, holder; or due alone."""
    if type(told) is int:  # it has gone
        return Outcome(id, True, None, told)
    return Outcome(id, *told)


@lru_cache(1024)
def _plain(line: bytes) -> tuple[bool, int, int, int] | None:
    """Read a line from the kind on, if it is a short one."""
    if line[:1].isupper():
        return None
    kind, priority, attempt, attempts = line.split(b" ")
    return kind == b"j", int(priority), int(attempt), int(attempts)


Tags = Mapping[bytes, tuple[bytes, int]]
"""What tags mean: the name of the chunk, and the moment from which on delays count."""

NO_TAGS: Tags = {}

_LOST = b"f" * NAME, 0
"""What a tag means of which a server that died has left nothing."""


def read_tags(lines: bytes) -> Tags:
    """Read what the script `claim` tells of tags."""
    told = (line.split(b" ") for line in lines.splitlines())
    return {tag: (name, int(moment)) for tag, name, moment in told}


def seq_of(record: bytes, tags: Tags) -> bytes:
    """Return the number of a message by its record."""
    if not record.startswith(b"~"):
        return record[:SEQ]
    return tags.get(record[:NAME], _LOST)[0] + record[NAME:SEQ]


def _due_of(record: bytes, tags: Tags) -> int:
    stamp = record[_DUE]
    if not stamp.startswith(b"+"):
        return int(stamp)
    return tags.get(record[:NAME], _LOST)[1] + int(stamp)


def as_claimed(
    queue: str,
    ids: Sequence[str],
    records: Sequence[bytes],
    now: int,
    holder: str,
    until: int,
    tags: Tags = NO_TAGS,
) -> list[Message]:
    """Return the messages that a claim brought."""
    found: list[Message] = []
    add = found.append
    tag, head, line = b"", b"-", b"-"  # as of the one before, since most have them in common
    plain: tuple[bool, int, int, int] | None = None
    json, due, priority, attempt, attempts, end = True, 0, 0, 0, 0, 0
    for id, record in zip(ids, records, strict=True):
        if not record.startswith(head, SEQ) or (tag and not record.startswith(tag)):
            if not record.startswith(line, _KIND):
                end = record.index(b"\n", _KIND) + 1
                line = record[_KIND:end]
                plain = _plain(line[:-1])
            if plain is None:
                head = b"-"
                add(as_message(queue, id, record, now, holder=holder, until=until))
                continue
            json, priority, attempt, attempts = plain
            due, head, tag = _due_of(record, tags), record[SEQ:end], record[:NAME] if tags else b""
        add(
            Message(
                id, queue, record[end:], json, due, priority, attempt + 1, attempts, "leased",
                None, None, None, (), holder, until,
            )
        )  # fmt: skip
    return found


def as_message(
    queue: str,
    id: str,
    record: bytes,
    now: int,
    *,
    ready: bool = False,
    holder: str | None = None,
    until: int | None = None,
) -> Message:
    """Return a record as the message that it tells of.

    Args:
        queue: the queue it is from.
        id: its id.
        record: its record.
        now: the moment that decides whether it is due.
        ready: it stands among the ready ones, whatever its due moment.
        holder: who holds it, `None` if nobody does.
        until: when the lease lapses.
    """
    line, _, rest = record.partition(b"\n")
    _, due_, kind, priority, attempt, attempts, *more = line.split(b" ")
    expires, aside, ended, group_, headers_, failures_ = more or (
        b"-",
        b"-",
        b"-",
        b"0",
        b"0",
        b"0",
    )
    due = int(due_)
    state: State
    if holder is not None:
        state = "leased"
    elif aside != b"-":
        state = _STATES[aside.decode()]
    else:
        state = "ready" if ready or due <= now else "delayed"
    group: str | None = None
    headers: dict[str, str] | None = None
    failures: tuple[Failure, ...] = ()
    if group_ != b"0":
        size = int(group_)
        group, rest = rest[:size].decode(), rest[size:]
    if headers_ != b"0":
        size = int(headers_)
        headers, rest = _headers(rest[:size]), rest[size:]
    if failures_ != b"0":
        size = int(failures_)
        failures, rest = _failures(rest[:size]), rest[size:]
    return Message(
        id, queue, rest, kind in b"jJ", due, int(priority), int(attempt) + (holder is not None),
        int(attempts), state, None if expires == b"-" else int(expires), group, headers,
        failures, holder, until, None if ended == b"-" else int(ended),
    )  # fmt: skip
