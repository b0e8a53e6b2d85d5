"""The rank of a message: its order within a state, as one integer. The smallest goes first.

Every rank is below 2**53, so a store that keeps numbers as doubles keeps it exactly.

| state | rank |
|---|---|
| delayed | `due * 256 + (255 - priority)`: earliest first; of equals the highest priority |
| ready | `(255 - priority) * 2**42 + due`: highest priority first; of equals the earliest |
| leased | when the lease expires |
| dead, acked, expired | when the message entered this state |
"""

PROMOTE = 1024
"""The maximum number of due messages that one claim makes ready, so that it takes little time.

A claim orders by priority what is ready and the next `max(PROMOTE, count)` due messages.
"""

EVERYTHING = 1 << 53
"""Larger than any rank, and than any due time."""


def delayed_rank(due: int, priority: int) -> int:
    """Return the rank of a delayed message that is due at `due` (Unix milliseconds)."""
    return due * 256 + (255 - priority)


def delayed_reach(now: int) -> int:
    """Return the largest rank of a delayed message that is due at `now`."""
    return now * 256 + 255


def ready_rank(due: int, priority: int) -> int:
    """Return the rank of a ready message."""
    return (255 - priority) * 4_398_046_511_104 + due  # 2**42 ms is the year 2109


def forecast_start(now: int, bucket: int) -> int:
    """Return the start of the first bucket of a forecast, in Unix milliseconds.

    Buckets of an hour or more begin on whole hours: the first is then partly past.

    Example:
        >>> forecast_start(7_200_005, 60_000), forecast_start(7_200_005, 3_600_000)
        (7200005, 7200000)
    """
    return now if bucket < 3_600_000 else now - now % 3_600_000
