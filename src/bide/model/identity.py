"""Names of queues, messages and groups: which are valid, and how random ids are made."""

import os
import re
import threading
import time
from collections.abc import Iterator

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_ACTOR, MAX_NAME

OWN = "bide:"
"""The prefix of queues that bide uses itself; a namespace may precede it."""

RESERVED = "bide.server"
"""The namespace of the queues that servers use themselves."""

_QUEUE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}/)?[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_queue(name: str) -> str:
    """Return the name of a queue after a check.

    A name is 1 to 128 ASCII letters, digits and `_ . : -`, and begins with a letter or digit. A
    namespace of the same form and a slash may precede it.

    Raises:
        InvalidArgument: it is not valid.
    """
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidArgument(
            f"queue={_shown(name)} is not a valid name of a queue: 1 to 128 of A-Z a-z 0-9 _ . : "
            "-, beginning with a letter or digit"
        )
    return name


def check_namespace(name: str) -> str:
    """Return the name of a namespace after a check; the rule is that of queues.

    Raises:
        InvalidArgument: it is not valid.
    """
    if "/" in name or not _QUEUE.fullmatch(name):
        raise InvalidArgument(
            f"namespace={_shown(name)} is not a valid name of a namespace: 1 to 128 of A-Z a-z 0-9 "
            "_ . : -, beginning with a letter or digit"
        )
    return name


def is_own(queue: str) -> bool:
    """Tell whether bide uses a queue itself.

    Example:
        >>> is_own("bide:workers"), is_own("shop/bide:move"), is_own("bide.server/tokens")
        (True, True, True)
        >>> is_own("orders"), is_own("shop/orders")
        (False, False)
    """
    namespace, _, name = queue.rpartition("/")
    return namespace == RESERVED or name.startswith(OWN)


def is_listed(queue: str, prefix: str = "") -> bool:
    """Tell whether a queue is listed among those with a prefix.

    Queues that bide uses itself are listed only if the prefix is one of theirs.

    Example:
        >>> is_listed("orders"), is_listed("bide:move"), is_listed("bide:move", "bide:")
        (True, False, True)
    """
    return is_own(prefix) or not is_own(queue)


def check_name(name: str, what: str = "id") -> str:
    """Return an id or a group after a check: 1 to 512 bytes, no control characters.

    Raises:
        InvalidArgument: it is not valid.
    """
    if not isinstance(name, str):
        raise InvalidArgument(
            f"{what} must be a str, not {type(name).__name__}; convert it with str(...)"
        )
    plain = name.isascii() and name.isprintable()
    size = len(name) if plain else _careful_size(name, what)
    if not 0 < size <= MAX_NAME:
        raise InvalidArgument(
            f"{what} is {size} bytes long; it may have 1 to {MAX_NAME}"
            + (", so use a hash of it" if size else "")
        )
    return name


def check_actor(name: str) -> str:
    """Return the name of who changes something after a check: 1 to 64 bytes, no control characters.

    Raises:
        InvalidArgument: it is not valid.
    """
    if len(check_name(name, "actor").encode()) > MAX_ACTOR:
        raise InvalidArgument(
            f"actor={name[:MAX_ACTOR]!r}... is longer than {MAX_ACTOR} bytes; give the name or the "
            "id of a user alone"
        )
    return name


def actor_of(name: str, through: str = "") -> str:
    """Return a name of any length as an actor: its beginning.

    Args:
        name: who acts, as they say.
        through: the token by which they act: who vouches for the name.

    Example:
        >>> actor_of("ann"), actor_of("ann", "shop-api"), len(actor_of("a" * 100))
        ('ann', 'ann via shop-api', 64)
    """
    plain = _CONTROL.sub(" ", name)
    if not through:
        return _beginning(plain, MAX_ACTOR)
    behind = " via " + _beginning(_CONTROL.sub(" ", through), MAX_ACTOR // 2)
    return _beginning(plain, MAX_ACTOR - len(behind.encode())) + behind


def _beginning(text: str, size: int) -> str:
    """Return as many whole characters of a text as fit into `size` bytes."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def range_of_ids(prefix: str, after: str = "") -> tuple[str, str | None]:
    """Return where the ids with a prefix begin, and before what they end (`None`: nothing).

    In the order of UTF-8; see `check_name`.

    Args:
        prefix: how they begin.
        after: one of them, behind which the range begins.

    Example:
        >>> range_of_ids("order-"), range_of_ids("order-", "order-7")[0] < "order-70"
        (('order-', 'order.'), True)
    """
    first = max(prefix, f"{after}\x01") if after else prefix  # no id has a control character
    while prefix:
        last = ord(prefix[-1]) + 1
        if last == 0xD800:  # no text has half of a surrogate pair
            last = 0xE000
        if last <= 0x10FFFF:
            return first, prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return first, None


def _careful_size(name: str, what: str) -> int:
    if _CONTROL.search(name):
        raise InvalidArgument(f"{what}={_shown(name)} has control characters in it; remove them")
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}={_shown(name)} is not valid Unicode text") from None


def _shown(name: object) -> str:
    """Return a value for an error; of a text that is too long for any name, the beginning."""
    long = isinstance(name, str) and len(name) > MAX_NAME
    return f"{name[:MAX_NAME]!r}..." if long else repr(name)  # type: ignore[index]


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

_AHEAD = 128
"""The maximum number of ids that are prepared; they are valid for one millisecond."""

_lock = threading.RLock()  # which knows its thread; nothing enters it twice
_last_ms = 0
_second = 0
"""1,024 milliseconds each, since 1970."""
_begin = ""
_moment = ""
_process = ""
_count = 0
_ready: Iterator[str] = iter(())
_until = 0
"""The end of the millisecond of the prepared ids, in Unix nanoseconds."""


def new_id() -> str:
    """Return a new random id; see `new_ids`."""
    # Without the lock, which doubles the cost: an iterator gives each item to one thread.
    if time.time_ns() < _until and (id := next(_ready, None)):
        return id
    return _make_ready()


def _make_ready() -> str:
    """Prepare ids that differ only in their last two characters, and return the first."""
    global _ready, _until
    if _lock._is_owned():  # type: ignore[attr-defined]
        return _drawn()
    with _lock:
        count = min(_AHEAD, 1024 - (_count & 1023))
        n, prefix = _reserve(count)
        head = prefix + _PAIRS[n >> 20] + _PAIRS[n >> 10 & 1023]
        # Each pair when its turn comes: a lone put needs one of them.
        made = map(head.__add__, map(_PAIRS.__getitem__, range(n & 1023, (n & 1023) + count)))
        first = next(made)
        _ready, _until = made, (_last_ms + 1) * 1_000_000
        return first


def new_ids(count: int) -> list[str]:
    """Return new ids: ULIDs (https://github.com/ulid/spec), 26 characters that sort by time.

    An id has 48 bits of milliseconds, 50 random bits of this process, and a counter of 30 bits that
    starts at a random number. So ids of one process sort in the order in which they were made.
    """
    global _ready
    if _lock._is_owned():  # type: ignore[attr-defined]
        return [_drawn() for _ in range(count)]
    with _lock:
        start, prefix = _reserve(count)
        _ready = iter(())  # the prepared ids would sort before these
    ids: list[str] = []
    while len(ids) < count:  # at once those that differ only in their last two characters
        high, low = divmod(start + len(ids), 1024)
        head = prefix + _PAIRS[high >> 10] + _PAIRS[high & 1023]
        ids += [head + pair for pair in _PAIRS[low : low + count - len(ids)]]
    return ids


def _drawn() -> str:
    """Return an id that is random behind its time: below a signal handler which interrupts others.

    Numbers reserved there might be those that the interrupted call is about to reserve.
    """
    return _encode(time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10)), 26)


def _reserve(count: int) -> tuple[int, str]:
    """Reserve `count` numbers; return the first, and the part of the ids before the number.

    The caller holds the lock.
    """
    global _last_ms, _second, _begin, _moment, _count
    now = time.time_ns() // 1_000_000
    if now > _last_ms or _count + count >= 1 << 30:
        # When the counter is used up, it starts again in the next millisecond.
        _last_ms = max(now, _last_ms + 1)
        if _last_ms >> 10 != _second:
            _second = _last_ms >> 10
            _begin = _encode(_second, 8)
        _moment = _begin + _PAIRS[_last_ms & 1023] + _process
        if _count + count >= 1 << 30:
            _count = 0
    _count += count
    return _count - count, _moment


def _encode(number: int, width: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range((width - 2) * 5, -1, -10)])


def _draw() -> None:
    """Draw the random part of this process: at the start, and again in a forked child."""
    global _lock, _last_ms, _process, _count, _ready
    chance = int.from_bytes(os.urandom(10))
    _lock = threading.RLock()
    _last_ms = 0
    _ready = iter(())
    _process = _encode(chance >> 30, 10)
    _count = (chance & (1 << 30) - 1) >> 1  # at least half of the range is left


_draw()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_draw)
