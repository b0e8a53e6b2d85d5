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


def due_at(seconds: float) -> int:
    """Return a due time in Unix milliseconds.

    Raises:
        Refused: it is no time of bide.
    """
    due = seconds * 1000
    if not 0 <= due <= LATEST:
        raise Refused(f"{seconds!r} is no time before the year 2100")
    return round(due)
