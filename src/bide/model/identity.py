"""Names: which are allowed for queues, messages and groups, and how an id is made up."""

import os
import re
import threading
import time
from collections.abc import Iterator

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_NAME

__all__ = [
    "OWN", "RESERVED", "check_name", "check_namespace", "check_queue", "is_listed", "is_own",
    "new_id", "new_ids",
]  # fmt: skip

OWN = "bide:"
"""How the names begin of queues that bide keeps for itself, beside those that they are about."""

RESERVED = "bide.server"
"""The namespace in which servers keep what is their own."""

_QUEUE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}/)?[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_queue(name: str) -> str:
    """Return the name of a queue if it keeps the rule.

    The rule: 1 to 128 letters, digits and `_ . : -` of ASCII, a letter or digit first; a namespace
    of the same form may stand before it with a slash.

    Raises:
        InvalidArgument: when it does not.
    """
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidArgument(
            f"queue={name!r} cannot be the name of a queue: 1 to 128 of A-Z a-z 0-9 _ . : -, "
            "beginning with a letter or digit"
        )
    return name


def check_namespace(name: str) -> str:
    """Return the name of a namespace if it keeps the rule, which is that for queues.

    Raises:
        InvalidArgument: when it does not.
    """
    if "/" in name or not _QUEUE.fullmatch(name):
        raise InvalidArgument(
            f"namespace={name!r} cannot be the name of a namespace: 1 to 128 of A-Z a-z 0-9 _ . : "
            "-, beginning with a letter or digit"
        )
    return name


def is_own(queue: str) -> bool:
    """Tell whether a queue is one that bide keeps for itself.

    Example:
        >>> is_own("bide:workers"), is_own("shop/bide:move"), is_own("bide.server/tokens")
        (True, True, True)
        >>> is_own("orders"), is_own("shop/orders")
        (False, False)
    """
    namespace, _, name = queue.rpartition("/")
    return namespace == RESERVED or name.startswith(OWN)


def is_listed(queue: str, prefix: str = "") -> bool:
    """Tell whether a queue is listed among those that begin with a prefix.

    Those that bide keeps for itself are only where all that begin so are its own.

    Example:
        >>> is_listed("orders"), is_listed("bide:move"), is_listed("bide:move", "bide:")
        (True, False, True)
    """
    return is_own(prefix) or not is_own(queue)


def check_name(name: str, what: str = "id") -> str:
    """Return a message's id or group if it keeps the rule: 1 to 512 bytes, no control characters.

    Raises:
        InvalidArgument: when it does not.
    """
    if not isinstance(name, str):
        raise InvalidArgument(
            f"{what} must be a str, not {type(name).__name__}: str(...) makes one"
        )
    plain = name.isascii() and name.isprintable()
    size = len(name) if plain else _careful_size(name, what)
    if not 0 < size <= MAX_NAME:
        raise InvalidArgument(
            f"{what} is {size} bytes long; it may have 1 to {MAX_NAME}"
            + (" (a hash of it would do)" if size else "")
        )
    return name


def _careful_size(name: str, what: str) -> int:
    if _CONTROL.search(name):
        raise InvalidArgument(f"{what}={name!r} has control characters in it; remove them")
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}={name!r} is no valid Unicode text") from None


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

_AHEAD = 128
"""How many ids are made ready at most, for as long as the millisecond lasts."""

_lock = threading.Lock()
_last_ms = 0
_moment = ""
_process = ""
_count = 0
_ready: Iterator[str] = iter(())
_until = 0
"""When the millisecond of those that are ready is over, in Unix nanoseconds."""


def new_id() -> str:
    """Return an id that nobody has used; see `new_ids`."""
    # Without the lock, which costs as much again: an iterator gives no two threads the same.
    if time.time_ns() < _until and (id := next(_ready, None)):
        return id
    return _make_ready()


def _make_ready() -> str:
    """Make ids ready that differ in their last two characters alone, and return the first."""
    global _ready, _until
    with _lock:
        count = min(_AHEAD, 1024 - (_count & 1023))
        n, prefix = _reserve(count)
        head = prefix + _PAIRS[n >> 20] + _PAIRS[n >> 10 & 1023]
        made = map(head.__add__, _PAIRS[n & 1023 : (n & 1023) + count])
        first = next(made)
        _ready, _until = made, (_last_ms + 1) * 1_000_000
        return first


def new_ids(count: int) -> list[str]:
    """Return ids that nobody has used: ULIDs, 26 characters that sort by the time of their making.

    48 bits of milliseconds; 50 bits of chance, drawn once a process; and 30 bits that count up from
    a place of chance, so that ids of one process also sort as they were made. After the ULID
    specification (https://github.com/ulid/spec), whose ids these are.
    """
    global _ready
    with _lock:
        start, prefix = _reserve(count)
        _ready = iter(())  # they would sort before these
    ids: list[str] = []
    while len(ids) < count:  # those that differ in their last two characters alone, at once
        high, low = divmod(start + len(ids), 1024)
        head = prefix + _PAIRS[high >> 10] + _PAIRS[high & 1023]
        ids += [head + pair for pair in _PAIRS[low : low + count - len(ids)]]
    return ids


def _reserve(count: int) -> tuple[int, str]:
    """Return the first of `count` numbers that are nobody else's, and what stands before them.

    Whoever calls this holds the lock.
    """
    global _last_ms, _moment, _count
    now = time.time_ns() // 1_000_000
    if now > _last_ms or _count + count >= 1 << 30:
        # When the counter is used up the next millisecond is borrowed, and it starts again.
        _last_ms = max(now, _last_ms + 1)
        _moment = _encode(_last_ms, 10) + _process
        if _count + count >= 1 << 30:
            _count = 0
    _count += count
    return _count - count, _moment


def _encode(number: int, width: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range((width - 2) * 5, -1, -10)])


def _draw() -> None:
    """Draw the part that is this process's own: at the start, and again in a forked child."""
    global _lock, _last_ms, _process, _count, _ready
    chance = int.from_bytes(os.urandom(10))
    _lock = threading.Lock()
    _last_ms = 0
    _ready = iter(())
    _process = _encode(chance >> 30, 10)
    _count = (chance & (1 << 30) - 1) >> 1  # half of the range is left to count in


_draw()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_draw)
