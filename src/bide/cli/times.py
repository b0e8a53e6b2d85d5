"""Times and durations as people read them."""

import time
from datetime import UTC, datetime

from bide.model.moments import format_duration

__all__ = ["iso", "local", "now_ms", "relative", "rounded"]


def now_ms() -> int:
    """Return this machine's time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def iso(ms: int | None) -> str:
    """Return a time for programs: ISO 8601 in UTC; empty for none."""
    if ms is None:
        return ""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(ms: int, now: int) -> str:
    """Return a time in the local zone, without the date if it is today.

    Example:
        >>> len(local(0, 0)), len(local(0, 1_700_000_000_000))
        (8, 16)
    """
    moment = datetime.fromtimestamp(ms / 1000).astimezone()
    today = datetime.fromtimestamp(now / 1000).astimezone()
    form = "%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return moment.strftime(form)


def relative(ms: int, now: int) -> str:
    """Return how far a time is from now.

    Example:
        >>> relative(1_800_000, 0), relative(0, 4_200), relative(0, 0)
        ('in 30m', '4.2s ago', 'now')
    """
    away = ms - now
    if abs(away) < 100:
        return "now"
    return f"in {rounded(away)}" if away > 0 else f"{rounded(-away)} ago"


def rounded(ms: float) -> str:
    """Return a duration, rounded to what people need.

    Example:
        >>> rounded(1_799_900), rounded(4_234), rounded(7.4), rounded(90_061_000)
        ('30m', '4.2s', '7ms', '1d1h')
    """
    if ms < 1_000:
        return f"{ms:.0f}ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    for limit, unit in ((600_000, 1_000), (36_000_000, 60_000)):
        if ms < limit:
            return format_duration(round(ms / unit) * unit)
    days = ms / 86_400_000
    if days >= 730:
        return f"{days / 365.25:.0f}y"
    if days >= 10:
        return f"{days:.0f}d"
    return format_duration(round(ms / 3_600_000) * 3_600_000)
