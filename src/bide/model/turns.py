"""Turns: the numbers by which the groups of a limited queue are ordered. The smallest goes first.

A queue keeps one number, `turn`. A group whose line was empty gets the next one, `turn + 1`. A
group that is served gets a number `GAP` beyond: so those that enter until the next service come
before it, in the order of entering, and behind all that wait for longer.
"""

GAP = 4096
"""So many groups, less one, may enter between two services and come before the one served last;
others come behind it. With 2**12, Redis keeps numbers exactly for 2**41 services."""


def after_service(turn: int) -> int:
    """Return the number of a queue after a service; the group that was served gets `GAP` more.

    Example:
        >>> after_service(0), after_service(3), after_service(GAP)
        (4096, 4096, 8192)
    """
    return (turn // GAP + 1) * GAP
