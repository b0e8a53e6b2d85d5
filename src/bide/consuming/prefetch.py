"""Claiming a little ahead: what waits in this process for one of its places."""

from collections import deque

from bide.consuming.handling import Handling

__all__ = ["HOLD", "MOST", "Prefetch"]

SOON = 0.02
"""What is claimed ahead is to be started within so many seconds, by the pace of late."""

MOST = 960
"""How many messages of one queue wait in a process at most: so many a crash delays beside those
that ran, and so many others cannot take meanwhile."""

HOLD = 0.05
"""After so many seconds what waits is handed back, for others to start."""

SLOW = 1.0
"""The pace, in seconds a delivery, that is assumed until another one has been seen: so slow that
nothing is claimed ahead."""

WEIGHT = 0.05
"""How much the last delivery says about the next."""


class Prefetch:
    """The messages of a queue that were claimed before a place was free, and how many may be.

    Handlers that end at once free their places in ones and twos. If no more were claimed than
    these, each claim would be a commit for a handful of messages; so as many more are claimed as
    are going to be started at once anyway. Handlers that take their time get nothing ahead.

    Args:
        concurrency: how many places there are.
        lease: in seconds.
    """

    def __init__(self, concurrency: int, lease: float) -> None:
        self.waiting: deque[Handling] = deque()
        """In the order in which they are going to be started."""
        self.hold = min(HOLD, lease / 4)
        """For how many seconds a message may wait; its lease is not extended meanwhile."""
        self._soon = min(SOON, lease / 10) * concurrency
        self._pace = SLOW

    @property
    def most(self) -> int:
        """How many may wait, by the pace of late."""
        return MOST if self._soon > MOST * self._pace else int(self._soon / self._pace)

    def ended(self, took: float) -> None:
        """A delivery has taken so many seconds."""
        self._pace += (took - self._pace) * WEIGHT

    def overdue(self, now: float) -> list[Handling]:
        """Take out and return what has waited too long; the pace was not what it seemed."""
        over = []
        while self.waiting and self.waiting[0].arrived + self.hold <= now:
            over.append(self.waiting.popleft())
        if over:
            self._pace = SLOW
        return over

    def take_all(self) -> list[Handling]:
        """Take out and return everything."""
        everything = list(self.waiting)
        self.waiting.clear()
        return everything
