"""The delay before a dead process is replaced: short, unless it dies again and again."""

from bide.model.backoff import Backoff

__all__ = ["Restarts"]

STEADY = 30.0
"""Seconds after which the death of a process is not part of a crash loop."""

PAUSES = Backoff(first="500ms", factor=2, ceiling="30s", jitter=0)


class Restarts:
    """Counts how often in a row a process died young.

    Example:
        >>> restarts = Restarts()
        >>> [restarts.pause(lived) for lived in (0.1, 0.1, 0.1, 300, 0.1)]
        [0.5, 1.0, 2.0, 0.5, 0.5]
    """

    def __init__(self) -> None:
        self._young = 0

    def pause(self, lived: float) -> float:
        """Return how many seconds to wait before the next process is started."""
        if lived >= STEADY:
            self._young = 0
            return PAUSES.delay(1, 0.5) / 1000
        self._young += 1
        return PAUSES.delay(self._young, 0.5) / 1000
