"""Numbers that the functions on the server share with Python, where each is declared."""

from bide.engines.constants import SHARED
from bide.engines.redis.layout import ORDER
from bide.model.replies import PAUSES

SLICE = 500
"""The maximum number of messages of one call, so that no script blocks the server for long."""

CONSTANTS = {
    **SHARED,
    "AUDITED": 200,
    "AUDITED_BYTES": 4_000_000,
    "GROUP_ENTRIES": 300,
    "ORDER": ORDER,
    "PAUSES": PAUSES,
    "SLICE": SLICE,
    "SPARE": 100,
}
"""By the names that they have in Lua. A chunk may have 200 local names: these would be too many.

`AUDITED`, `GROUP_ENTRIES`: how many messages, and entries of a group, a call looks at; `SPARE`:
members that a scan reads beyond what it returns."""
