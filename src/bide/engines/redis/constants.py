"""Numbers that the functions on the server share with Python, where each is declared."""

import re

from bide.engines.redis.layout import ORDER
from bide.engines.repetition import MAX_KEPT, MAX_SENDERS, SENDER_KEEP
from bide.model.limits import BULK, MAX_FORWARDED, MAX_RETURNED
from bide.model.rank import (
    GAP,
    LOOK_GROUPS,
    LOOK_MESSAGES,
    LOOK_MOST,
    PRIORITIES,
    PROMOTE,
    STRIPE,
)
from bide.model.times import CREDIT

SLICE = 500
"""The maximum number of messages of one call, so that no script blocks the server for long."""

CONSTANTS = {
    "AUDITED": 200,
    "AUDITED_BYTES": 4_000_000,
    "BULK": BULK,
    "CREDIT": CREDIT,
    "GAP": GAP,
    "GROUP_ENTRIES": 300,
    "HOUR": 3_600_000,
    "LOOK_GROUPS": LOOK_GROUPS,
    "LOOK_MESSAGES": LOOK_MESSAGES,
    "LOOK_MOST": LOOK_MOST,
    "MAX_FORWARDED": MAX_FORWARDED,
    "MAX_KEPT": MAX_KEPT,
    "MAX_RETURNED": MAX_RETURNED,
    "MAX_SENDERS": MAX_SENDERS,
    "MICROSECONDS": 1_000,
    "ORDER": ORDER,
    "PRIORITIES": PRIORITIES,
    "PROMOTE": PROMOTE,
    "SECOND": 1_000,
    "SENDER_KEEP": SENDER_KEEP,
    "SLICE": SLICE,
    "SPARE": 100,
    "STRIPE": STRIPE,
}
"""By the names that they have in Lua. Times are milliseconds.

`AUDITED`, `GROUP_ENTRIES`: how many messages, and entries of a group, a call looks at;
`MICROSECONDS`: of a millisecond; `SPARE`: members that a scan reads beyond what it returns."""


_NAMES = re.compile(rf"\b(?:{'|'.join(CONSTANTS)})\b")


def with_constants(text: str) -> str:
    """Return the text of the library with the numbers in place of their names.

    A chunk of Lua may have 200 local names, and these would be too many.

    Example:
        >>> with_constants("min(count, SLICE)")
        'min(count, 500)'
    """
    return _NAMES.sub(lambda name: str(CONSTANTS[name[0]]), text)
