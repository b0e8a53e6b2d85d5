"""Turns: the numbers by which the groups of a limited queue are ordered. The smallest goes first.

A queue keeps one number, `turn`. A group whose line was empty gets the next one, `turn + 1`. A
group that is served gets a number `GAP` beyond: so those that enter until the next service come
before it, in the order of entering, and behind all that wait for longer.

A claim puts no more than `rank.PROMOTE` due messages into lines. If more are due, it looks ahead,
so that a burst of one group delays no other: of each group without a line, it puts the first due
message it sees there into line. It goes through the groups by name, and remembers how far it came
if it did not come to the end.
"""

GAP = 4096
"""So many groups, less one, may enter between two services and come before the one served last;
others come behind it. With 2**12, Redis keeps numbers exactly for 2**41 services."""

LOOK_GROUPS = 1024
"""How many groups a claim looks ahead at, at most."""

LOOK_MESSAGES = 2048
"""A look ahead ends after the group with which it has seen so many messages."""

LOOK_ENDS = 16
"""Of a group, a look ahead sees so many of the oldest messages, and so many of the newest ones."""


def after_service(turn: int) -> int:
    """Return the number of a queue after a service; the group that was served gets `GAP` more.

    Example:
        >>> after_service(0), after_service(3), after_service(GAP)
        (4096, 4096, 8192)
    """
    return (turn // GAP + 1) * GAP
