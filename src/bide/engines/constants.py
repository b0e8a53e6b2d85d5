"""Numbers that engines share; the rules in Lua and SQL have them by their names."""

import re
from collections.abc import Mapping

from bide.model.ended import ENDINGS, STOPPED_KEEP
from bide.model.limits import BULK, MAX_FORWARDED, MAX_RETURNED
from bide.model.message import ATTEMPTS, EXPIRED_KEEP, FORGET, KEPT_FAILURES, STATES
from bide.model.rank import (
    EVERYTHING,
    MAX_PRIORITY,
    PRIORITIES,
    PROMOTE,
    STRIPE,
)
from bide.model.times import CREDIT, HOUR_MS, MICROSECONDS, MINUTE_MS, SECOND_MS

COUNTED_SINGLY = 1_000
"""How many due messages are counted one by one before the counters of hours are asked."""

MAX_SENDERS = 1_000
"""The maximum number of senders of one owner that a store remembers; the oldest is forgotten."""

SENDER_KEEP = 900_000
"""How long a store remembers a sender after its last batch, in milliseconds: 15 minutes."""

MAX_KEPT = 64 * 1024
"""The maximum size of what a store remembers of one batch, in bytes."""

PART = 100
"""How many records a command has in memory at a time: each may have much beside its body."""

WHOLE_PART = 8
"""How many it has at a time if it needs their bodies, for their versions."""

ROW_BYTES = 100
"""What a row takes besides its texts, roughly, where the bytes of a queue are added up."""

PLACES = ("NO_HEAD", "HEAD_COMPETES", "HEAD_WAITS", "IDLE_GROUP")
"""Where a group of a limited queue is, by the number that it has in tables: it is full, or has only
leased messages; its head competes; its head waits for its rate; it has no messages, and is
remembered for its rate. See `bide.engines.limiter`."""

SHARED = {
    **{f"{state.upper()}_STATE": number for number, state in enumerate(STATES)},
    **{f"{ending.upper()}_END": number for number, ending in enumerate(ENDINGS)},
    **{place: number for number, place in enumerate(PLACES)},
    "BULK": BULK,
    "COUNTED_SINGLY": COUNTED_SINGLY,
    "CREDIT": CREDIT,
    "DEFAULT_ATTEMPTS": ATTEMPTS,
    "EVERYTHING": EVERYTHING,
    "EXPIRED_KEEP": EXPIRED_KEEP,
    "FORGET": FORGET,
    "HOUR_MS": HOUR_MS,
    "KEPT_FAILURES": KEPT_FAILURES,
    "MAX_FORWARDED": MAX_FORWARDED,
    "MAX_KEPT": MAX_KEPT,
    "MAX_PRIORITY": MAX_PRIORITY,
    "MAX_RETURNED": MAX_RETURNED,
    "MAX_SENDERS": MAX_SENDERS,
    "MICROSECONDS": MICROSECONDS,
    "MINUTE_MS": MINUTE_MS,
    "PRIORITIES": PRIORITIES,
    "PROMOTE": PROMOTE,
    "ROW_BYTES": ROW_BYTES,
    "SECOND_MS": SECOND_MS,
    "SENDER_KEEP": SENDER_KEEP,
    "STOPPED_KEEP": STOPPED_KEEP,
    "STRIPE": STRIPE,
}
"""By the names that they have in Lua and SQL, which no word of SQL has, in capitals or not."""


def with_constants(text: str, constants: Mapping[str, int | str]) -> str:
    """Return Lua or SQL with the values in place of their names, which are in capitals.

    Also in quoted text, so that a message can say a limit.

    Example:
        >>> with_constants("LIMIT BULK -- not BULK_LOAD, not bulk", {"BULK": 500})
        'LIMIT 500 -- not BULK_LOAD, not bulk'
    """
    names = re.compile(rf"\b(?:{'|'.join(constants)})\b")
    return names.sub(lambda name: str(constants[name[0]]), text)
