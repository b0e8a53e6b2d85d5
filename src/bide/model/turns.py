"""Turns: the numbers by which the groups of a limited queue are ordered. The smallest goes first.

A queue keeps one number, `turn`. A group whose line was empty gets the next one, `turn + 1`. A
group that is served gets a number `GAP` beyond: so those that enter until the next service come
before it, in the order of entering, and behind all that wait for longer.

A claim puts no more than `rank.PROMOTE` due messages into lines. If more are due, it looks ahead,
so that a burst of one group delays no other: of each group without a line, it puts the first due
message into line. It goes through the groups by name, and remembers how far it came if it did not
come to the end. A group with many messages is left out: to find its first one takes too long.
"""

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
