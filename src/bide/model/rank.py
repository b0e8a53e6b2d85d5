"""The order inside a state, as one integer: the smallest goes first.

Every rank stays below 2**53, so that a store which keeps numbers as doubles holds it exactly.

| state | rank |
|---|---|
| delayed | `due * 256 + (255 - priority)`: earliest first; among equals the weightiest |
| ready | `(255 - priority) * 2**42 + due`: weightiest first; among equals the oldest |
| leased | the moment at which the lease lapses |
| dead, acked, expired | the moment at which the message came there |
"""

__all__ = ["PROMOTE", "delayed_rank", "delayed_reach", "forecast_start", "ready_rank"]

PROMOTE = 1024
"""How many due messages one claim moves to ready at most, so that a burst never stops the store.

A claim weighs what is ready already and the next `max(PROMOTE, count)` that are due.
"""


def delayed_rank(due: int, priority: int) -> int:
    """Return the rank of a delayed message that falls due at `due` (Unix milliseconds)."""
    return due * 256 + (255 - priority)


def delayed_reach(now: int) -> int:
    """Return the largest rank of a delayed message that is due at `now`, whatever its priority."""
    return now * 256 + 255


def ready_rank(due: int, priority: int) -> int:
    """Return the rank of a ready message."""
    return (255 - priority) * 4_398_046_511_104 + due  # 2**42 ms is the year 2109


def forecast_start(now: int, bucket: int) -> int:
    """Return where the first bucket of a forecast begins, in Unix milliseconds.

    Buckets of an hour or more begin on whole hours: the first is then partly past.

    Example:
        >>> forecast_start(7_200_005, 60_000), forecast_start(7_200_005, 3_600_000)
        (7200005, 7200000)
    """
    return now if bucket < 3_600_000 else now - now % 3_600_000
