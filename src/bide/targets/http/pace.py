"""A rate limit: a token bucket of the requests that may start."""

SAVED = 0.1
"""Seconds for which unused requests are saved: no second has more than a tenth too many."""


class Pace:
    """Limits how many requests start in a second. Times are seconds of the monotonic clock.

    Args:
        rate: requests per second; `None`: no limit.
        now: the time of the start.

    Example:
        >>> pace = Pace(20, 0.0)
        >>> pace.room(10, 0.0), pace.take(2), pace.room(10, 0.0), pace.wait(0.0)
        (2, None, 0, 0.05)
    """

    def __init__(self, rate: float | None, now: float) -> None:
        self.rate = rate
        self._at = now
        self._there = 0.0 if rate is None else _full(rate)

    def set(self, rate: float | None, now: float) -> None:
        """Change the rate; saved requests are kept up to the new maximum."""
        self._fill(now)
        if self.rate is None and rate is not None:
            self._there = _full(rate)
        self.rate = rate
        self._fill(now)

    def room(self, most: int, now: float) -> int:
        """Return how many of `most` may start."""
        if self.rate is None:
            return most
        self._fill(now)
        return min(most, int(self._there + 1e-9))

    def take(self, count: int) -> None:
        """Count requests that have started."""
        if self.rate is not None:
            self._there -= count

    def wait(self, now: float) -> float:
        """Return in how many seconds the next may start."""
        if self.rate is None:
            return 0.0
        self._fill(now)
        return max(0.0, (1 - self._there) / self.rate)

    def _fill(self, now: float) -> None:
        if self.rate is not None:
            saved = self._there + (now - self._at) * self.rate
            self._there = min(_full(self.rate), saved)
        self._at = now


def _full(rate: float) -> float:
    return max(1.0, rate * SAVED)
