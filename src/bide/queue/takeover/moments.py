"""Moments of other libraries, as bide has them."""

from datetime import UTC, datetime

from bide.model.times import LATEST
from bide.queue.takeover.source import Refused

NOW = 0
"""The due time of a message that waits: at once."""


def iso_seconds(text: str) -> float:
    """Return a time in ISO 8601, of UTC if it names no zone, in Unix seconds."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def created_at(seconds: float) -> int | None:
    """Return a creation time in Unix milliseconds; `None` if it is no time of bide."""
    return round(seconds * 1000) if 0 < seconds * 1000 <= LATEST else None


def lasting(due: int, end: int, now: int) -> int | None:
    """Return how long after its due time a message expires, in milliseconds.

    Args:
        due: its due time in Unix milliseconds, or `NOW`.
        end: when it expires, in Unix milliseconds.
        now: the present time.

    Returns:
        A negative number if it expires before it is due; `None` if it expires later than any time
        of bide.

    Example:
        >>> lasting(1_000, 61_000, 500), lasting(NOW, 61_000, 1_000)
        (60000, 60000)
    """
    if end > LATEST:
        return None
    return end - (now if due == NOW else due)


def due_at(seconds: float) -> int:
    """Return a due time in Unix milliseconds.

    Raises:
        Refused: it is no time of bide.
    """
    due = seconds * 1000
    if not 0 <= due <= LATEST:
        raise Refused(f"{seconds!r} is no time before the year 2100")
    return round(due)
