"""The rank of a message, its order within a state. Smallest goes first.

Every rank is below 2**53, so a store that keeps numbers as doubles keeps it exactly.

| state | rank |
|---|---|
| delayed | `due * 256 + (255 - priority)`: earliest first; of equals the highest priority |
| ready | `(255 - priority) * 2**42 + due`: highest priority first; of equals the earliest |
| leased | when the lease expires |
| dead, acked, expired | when the message entered this state |
"""

from bide.model.times import HOUR_MS

PRIORITIES = 256
"""How many priorities there are, from 0 on."""

MAX_PRIORITY = PRIORITIES - 1
"""The highest priority, which goes first."""

STRIPE = 1 << 42
"""The ranks of ready messages of one priority: 2**42 ms is the year 2109."""

PROMOTE = 1024
"""The maximum number of due messages that one claim makes ready, so that it takes little time.

A claim orders by priority what is ready and the next `max(PROMOTE, count)` due messages.
"""

EVERYTHING = 1 << 53
"""Larger than any rank, and than any due time."""


def delayed_rank(due: int, priority: int) -> int:
    """Return the rank of a delayed message that is due at `due` (Unix milliseconds)."""
    return due * PRIORITIES + (MAX_PRIORITY - priority)


def delayed_reach(now: int) -> int:
    """Return the largest rank of a delayed message that is due at `now`."""
    return now * PRIORITIES + MAX_PRIORITY


def ready_rank(due: int, priority: int) -> int:
    """Return the rank of a ready message."""
    return (MAX_PRIORITY - priority) * STRIPE + due


def rank_when_ready(rank: int) -> int:
    """Return the rank that a delayed message of a rank has when it is ready.

    Example:
        >>> rank_when_ready(delayed_rank(1_000, 7)) == ready_rank(1_000, 7)
        True
    """
    return rank % PRIORITIES * STRIPE + rank // PRIORITIES


def forecast_start(now: int, bucket: int) -> int:
    """Return the start of the first bucket of a forecast, in Unix milliseconds.

    Buckets of an hour or more begin on whole hours: the first is then partly past.

    Example:
        >>> forecast_start(7_200_005, 60_000), forecast_start(7_200_005, 3_600_000)
        (7200005, 7200000)
    """
    return now if bucket < HOUR_MS else now - now % HOUR_MS
