"""Messages as they stand in Redis: what a put sends of each, and what is made of what comes back.

A record is one line of numbers and words, which `redis-cli` shows, and behind it the group, the
headers, the failures and the body, end to end:

    seq due priority attempt attempts expires aside ended kind |group| |headers| |failures|
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.model.message import STATES, Failure, Item, Message, State
from bide.model.replies import Outcome

__all__ = ["as_message", "as_outcome", "when", "write"]

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
_STATES: dict[str, State] = {state: state for state in STATES}

Arg = bytes | str | int


def when(at: int | None, delay: int) -> Arg:
    """Return a moment as scripts read it: as it is, or + and milliseconds from now."""
    return f"+{delay}" if at is None else at


def write(item: Item, into: list[Arg]) -> str:
    """Add the four arguments of an item that is put; return its flags, as the script `put` says."""
    flags = ""
    if (
        item.group is None
        and item.expires is None
        and item.headers is None
        and item.died is None
        and not item.attempt
        and not item.failures
    ):
        kind = "j" if item.json else "b"
        rest = b"%d 0 %d - - - %b 0 0 0\n" % (item.priority, item.attempts, kind.encode())
        into += (item.id, when(item.at, item.delay), item.priority, rest + item.data)
        return "w" if item.priority else ""
    group = (item.group or "").encode()
    headers = _encode(item.headers) if item.headers is not None else b""
    failures = _encode(item.failures) if item.failures else b""
    dead = item.died is not None
    line = (
        f"{item.priority} {item.attempt} {item.attempts} "
        f"{'-' if item.expires is None else item.expires} "
        f"{'dead' if dead else '-'} {item.died if dead else '-'} {'j' if item.json else 'b'} "
        f"{len(group)} {len(headers)} {len(failures)}\n"
    )
    mark = f"{item.priority} {item.died if dead else '-'} {item.group or ''}"
    rest = b"".join((line.encode(), group, headers, failures, item.data))
    into += (item.id, when(item.at, item.delay), mark, rest)
    for flag, has in (("w", item.priority), ("g", group), ("e", item.expires is not None)):
        if has:
            flags += flag
    return flags


def as_outcome(id: str, told: Sequence[Any]) -> Outcome:
    """Return an outcome that a script tells: done, state, due, until, holder."""
    return Outcome(id, *told)


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
    (_, due_, priority, attempt, attempts, expires, aside, ended, kind, group_, headers_,
     failures_) = line.split(b" ")  # fmt: skip
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
        id, queue, rest, kind == b"j", due, int(priority), int(attempt) + (holder is not None),
        int(attempts), state, None if expires == b"-" else int(expires), group, headers,
        failures, holder, until, None if ended == b"-" else int(ended),
    )  # fmt: skip
