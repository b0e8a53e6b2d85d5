"""Prefetch messages: claim more than there are free places, if they start soon."""

from collections import deque

from bide.consuming.handling import Handling

SOON = 0.02
"""Seconds within which prefetched messages should start, by the recent pace."""

MOST = 960
"""The maximum number of prefetched messages of one queue in a process: a crash delays them, and
other processes cannot take them."""

HOLD = 0.05
"""Seconds after which a prefetched message is released, so that others can start it."""

SLOW = 1.0
"""The initial pace, in seconds a delivery: so slow that nothing is prefetched."""

WEIGHT = 0.05
"""The weight of the last delivery in the pace."""


class Prefetch:
    """The prefetched messages of a queue, and how many there may be.

    Fast handlers free one or two places at a time. If a claim took only one or two messages, each
    commit would be for a handful. So a claim prefetches the messages that will start within about
    20 ms anyway. Slow handlers prefetch nothing.

    Args:
        concurrency: how many places there are.
        lease: in seconds.
    """

    def __init__(self, concurrency: int, lease: float) -> None:
        self.waiting: deque[Handling] = deque()
        """In the order in which they will start."""
        self.hold = min(HOLD, lease / 4)
        """How many seconds a message may wait; its lease is not extended during that time."""
        self._soon = min(SOON, lease / 10) * concurrency
        self._pace = SLOW

    @property
    def most(self) -> int:
        """How many may wait, by the recent pace."""
        return MOST if self._soon > MOST * self._pace else int(self._soon / self._pace)

    def ended(self, took: float) -> None:
        """Update the pace with the duration of a delivery, in seconds."""
        self._pace += (took - self._pace) * WEIGHT

    def overdue(self, now: float) -> list[Handling]:
        """Remove and return messages that waited too long; the pace estimate was wrong."""
        over = []
        while self.waiting and self.waiting[0].arrived + self.hold <= now:
            over.append(self.waiting.popleft())
        if over:
            self._pace = SLOW
        return over

    def take_all(self) -> list[Handling]:
        """Remove and return all prefetched messages."""
        everything = list(self.waiting)
        self.waiting.clear()
        return everything
