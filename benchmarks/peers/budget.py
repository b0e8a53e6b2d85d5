"""How long each cell of the table may take, so that the whole table is done in time."""

import time
from collections.abc import Callable

__all__ = ["Budget"]

GENEROUS = 1.5
"""Many cells need less than half of their share, so each may take more than its part. With 2.5 the
last peers of a whole run had no time left."""

LEAST = 0.1
"""Seconds of a cell when the time is over; it says that it was stopped."""


class Budget:
    """Divides the time that is left among the cells that are left.

    Args:
        seconds: for all cells.
        shares: the seconds that the cells want at most, together.
        clock: tells the time.
    """

    def __init__(
        self, seconds: float, shares: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._shares = shares

    def take(self, share: float) -> float:
        """Return the seconds that the next cell may take, which wants so many at most.

        Cells that take all that they may leave less to the later ones, but never nothing.
        """
        remaining = max(self._end - self._clock(), LEAST)
        given = share * min(1.0, GENEROUS * remaining / self._shares)
        self._shares -= share
        return min(given, remaining)

    def skip(self, share: float) -> None:
        """Leave the time of a cell to the others."""
        self._shares -= share
