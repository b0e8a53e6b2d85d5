"""Names of queues, messages and groups: which are valid, and how random ids are made."""

import os
import re
import threading
import time
from functools import lru_cache

from bide.model.errors import InvalidArgument
from bide.model.forks import in_child, notice_fork
from bide.model.limits import MAX_ACTOR, MAX_NAME, MAX_QUEUE

SERVER_NAMESPACE = "bide.server"
"""The namespace of the queues that are internal to servers: no client reaches them."""

_PART = rf"[A-Za-z0-9][A-Za-z0-9_.:-]{{0,{MAX_QUEUE - 1}}}"
_QUEUE = re.compile(rf"(?:{_PART}/)?{_PART}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def text_of(reason: object) -> str:
    """Return a reason as text that every store can hold."""
    return str(reason).encode(errors="backslashreplace").decode()


def plain_text(text: str) -> str:
    """Return a text as a plain `str`, which is what stores know.

    Subclasses, such as Django's SafeString, may have methods of their own: `str(...)` of one can
    return the same object.
    """
    return text if type(text) is str else str.__str__(text)


def check_queue(name: str) -> str:
    """Return the name of a queue after a check.

    A name is 1 to 128 ASCII letters, digits and `_ . : -`, and begins with a letter or digit. A
    namespace of the same form and a slash may precede it.

    Raises:
        InvalidArgument: it is not valid.
    """
    return _match("queue", name)


def check_namespace(name: str) -> str:
    """Return the name of a namespace after a check; the rule is that of queues.

    Raises:
        InvalidArgument: it is not valid.
    """
    return _match("namespace", name, is_allowed="/" not in name)


def split_name(name: str) -> tuple[str | None, str]:
    """Return the namespace of a queue or a subscription, `None` without one, and the name in it.

    Example:
        >>> split_name("shop/orders"), split_name("orders")
        (('shop', 'orders'), (None, 'orders'))
    """
    namespace, _, name_within = name.rpartition("/")
    return namespace or None, name_within


def check_subscription(name: str) -> str:
    """Return the name of a subscription after a check; the rule is that of queues.

    Raises:
        InvalidArgument: it is not valid, or its namespace is that of servers.
    """
    is_allowed = not name.startswith(f"{SERVER_NAMESPACE}/")
    return _match("subscription", name, is_allowed=is_allowed, field="name")


def _match(what: str, name: str, *, is_allowed: bool = True, field: str | None = None) -> str:
    """Return a name after a check that it has the form of queues.

    Args:
        what: the name is of, for the error.
        name: to be checked.
        is_allowed: whether it also obeys the rule of its own kind.
        field: the argument or field that has it, for the error; `what` by default.
    """
    if not is_allowed or not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidArgument(
            f"{field or what}={_shown(name)} is not a valid name of a {what}: 1 to {MAX_QUEUE} "
            "of A-Z a-z 0-9 _ . : -, beginning with a letter or digit"
        )
    return plain_text(name)


def check_name(name: str, what: str = "id") -> str:
    """Return an id or a group after a check: 1 to 512 bytes, no control characters.

    Raises:
        InvalidArgument: it is not valid.
    """
    if type(name) is not str:
        if not isinstance(name, str):
            raise InvalidArgument(
                f"{what} must be a str, not {type(name).__name__}; convert it with str(...)"
            )
        name = plain_text(name)
    is_plain = name.isascii() and name.isprintable()  # as most names are
    size = len(name) if is_plain else _careful_size(name, what)
    if not 0 < size <= MAX_NAME:
        raise InvalidArgument(
            f"{what} is {size} bytes long; it may have 1 to {MAX_NAME}"
            + (", so use a hash of it" if size else "")
        )
    return name


def check_prefix(prefix: str, what: str = "prefix") -> str:
    """Check a prefix of queue names, which may be empty, and return it.

    Raises:
        InvalidArgument: it is not valid.
    """
    return "" if prefix == "" else check_name(prefix, what)


def check_actor(name: str) -> str:
    """Return the name of who changes something after a check: 1 to 64 bytes, no control characters.

    Raises:
        InvalidArgument: it is not valid.
    """
    actor = check_name(name, "actor")
    if len(actor.encode()) > MAX_ACTOR:
        raise InvalidArgument(
            f"actor={actor[:MAX_ACTOR]!r}... is longer than {MAX_ACTOR} bytes; give the name or "
            "the id of a user alone"
        )
    return actor


def actor_of(name: str, through: str = "") -> str:
    """Return a name, cut to the length of an actor; control characters become spaces.

    Args:
        name: who acts.
        through: the name of the token of the program that says who acts: it is shown, too; empty:
            nobody says so for another.

    Example:
        >>> actor_of("ann"), actor_of("ann", "shop-api"), len(actor_of("a" * 100))
        ('ann', 'ann via shop-api', 64)
    """
    if not through and len(name) <= MAX_ACTOR and name.isascii() and name.isprintable():
        return name
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
    while prefix:  # the text behind all with the prefix has its last character one higher
        next_code = ord(prefix[-1]) + 1
        if next_code == 0xD800:  # no text has half of a surrogate pair
            next_code = 0xE000
        if next_code <= 0x10FFFF:
            return first, prefix[:-1] + chr(next_code)
        prefix = prefix[:-1]  # there is no higher character
    return first, None


def _careful_size(name: str, what: str) -> int:
    """Return the size of a name in bytes.

    Raises:
        InvalidArgument: it has control characters, or is not valid Unicode.
    """
    if _CONTROL.search(name):
        raise InvalidArgument(f"{what}={_shown(name)} has control characters in it; remove them")
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}={_shown(name)} is not valid Unicode text") from None


def _shown(name: object) -> str:
    """Return a value for an error; only its beginning if it is too long for any name."""
    if isinstance(name, str) and len(name) > MAX_NAME:
        return f"{name[:MAX_NAME]!r}..."
    return repr(name)


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""The two characters of each number of 10 bits."""

_lock = threading.RLock()  # which knows its thread; nothing enters it twice
_last_ms = 0
_next = 0
"""The part of the next id behind its time: 80 bits."""


def new_id() -> str:
    """Return a new random id; see `new_ids`."""
    number = _reserve(1)
    high, low = divmod(number, 1024)
    return _head(high) + _PAIRS[low]


def new_ids(count: int) -> list[str]:
    """Return new ids: ULIDs (https://github.com/ulid/spec), 26 characters that sort by time.

    An id has 48 bits of milliseconds, and a counter of 80 bits that starts at a random number in
    each process. So ids of one process sort in the order in which they were made.
    """
    number = _reserve(count)
    ids: list[str] = []
    while len(ids) < count:  # at once those that differ only in their last two characters
        high, low = divmod(number + len(ids), 1024)
        head = _head(high)
        ids += [head + pair for pair in _PAIRS[low : low + count - len(ids)]]
    return ids


def _reserve(count: int) -> int:
    """Return the first of `count` new ids as a number; the others follow it."""
    global _last_ms, _next
    notice_fork()
    now = time.time_ns() // 1_000_000
    if _lock._is_owned():  # type: ignore[attr-defined]
        # A signal handler has interrupted the block below, and must not get the same numbers: it
        # gets random ones, which sort anywhere among those of this millisecond.
        return now << 80 | int.from_bytes(os.urandom(10))
    with _lock:
        _last_ms = max(now, _last_ms)
        first = _next
        _next += count
        return _last_ms << 80 | first


def _head(number: int) -> str:
    """Return 120 bits as 24 characters."""
    return _encode(number >> 60) + _encode(number & _HALF)


_HALF = 2**60 - 1


@lru_cache(maxsize=2)
def _encode(number: int) -> str:
    """Return 60 bits as 12 characters. The halves of most ids are those of the id before."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(50, -1, -10)])


@in_child
def _draw() -> None:
    """Draw the random part of this process: at the start, and again in a forked child."""
    global _lock, _next
    _lock = threading.RLock()
    _next = int.from_bytes(os.urandom(10)) >> 1  # so at least half of the range is left


_draw()
