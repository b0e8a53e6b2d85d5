"""The rank of a message, its order within a state; and the turns of groups. Smallest goes first.

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


# Turns: the numbers by which the groups of a limited queue are ordered. The smallest goes first.
#
# A queue keeps one number, `turn`. A group whose line was empty gets the next one, `turn + 1`. A
# group that is served gets a number `GAP` beyond: so those that enter until the next service come
# before it, in the order of entering, and behind all that wait for longer.
#
# A claim puts no more than `PROMOTE` due messages into lines. If more are due, it looks ahead, so
# that a burst of one group delays no other: of each group without a line, it puts the first due
# message into line. It goes through the groups by name, and remembers how far it came if it did not
# come to the end. A group with many messages is left out: to find its first one takes too long.

GAP = 4096
"""So many groups, less one, may enter between two services and come before the one served last;
others come behind it. With 2**12, Redis keeps numbers exactly for 2**41 services."""

LOOK_GROUPS = 512
"""How many groups a claim looks ahead at, at most."""

LOOK_MESSAGES = 2048
"""A look ahead ends after the group with which it has looked at so many messages."""

LOOK_MOST = 1000
"""A group with more messages than this, in any state, is left out of a look ahead."""


def after_service(turn: int) -> int:
    """Return the number of a queue after a service; the group that was served gets `GAP` more.

    Example:
        >>> after_service(0), after_service(3), after_service(GAP)
        (4096, 4096, 8192)
    """
    return (turn // GAP + 1) * GAP
