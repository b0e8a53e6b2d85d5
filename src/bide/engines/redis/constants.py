"""Numbers that the functions on the server share with Python, where each is declared."""

from bide.engines.constants import SHARED
from bide.engines.redis.layout import ORDER
from bide.model.replies import PAUSES
from bide.model.times import DAY_MS

SLICE = 500
"""The maximum number of messages of one call, so that no script blocks the server for long."""

DELETED_KEEP = 7 * DAY_MS
"""How long the store remembers at least, in milliseconds, how far the numbers of changes and leases
of a deleted queue had got: a week."""

CONSTANTS = {
    **SHARED,
    "AUDITED": 200,
    "AUDITED_BYTES": 4_000_000,
    "DELETED_KEEP": DELETED_KEEP,
    "GROUP_ENTRIES": 300,
    "ORDER": ORDER,
    "PAUSES": PAUSES,
    "SLICE": SLICE,
    "SPARE": 100,
}
"""By the names that they have in Lua. A chunk may have 200 local names: these would be too many.

`AUDITED`, `GROUP_ENTRIES`: how many messages, and entries of a group, a call looks at; `SPARE`:
members that a scan reads beyond what it returns."""
