"""What `bide` exports of schedules: a tick, and when one is due next."""

from dataclasses import dataclass
from datetime import datetime

from bide.lane.shared import present_clock
from bide.model.recurrence import recurrence
from bide.model.times import Duration, Moment, to_datetime, unix


@dataclass(frozen=True)
class Tick:
    """One scheduled call of a function.

    Example:
        >>> import bide
        >>> app = bide.App("memory://")
        >>> @app.schedule("reports", every="15m")
        ... def report(tick: bide.Tick) -> None:
        ...     print(f"of {tick.previous:%H:%M} to {tick.due:%H:%M}")
    """

    schedule: str
    """The name of the schedule: its queue."""
    due: datetime
    """The scheduled time, in the time zone of the schedule."""
    previous: datetime | None
    """The time of the tick before it that was not skipped; `None` for the first one."""
    missed: bool
    """Whether no worker began with it in time, or it stands for earlier times that nobody ran."""


def next_time(
    after: Moment | None = None,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    timezone: str = "UTC",
) -> datetime:
    """Return when a cron expression or a period is due next.

    For schedules that are not known when the program is written, such as one of each customer:
    the handler of a message puts the next one. See `App.schedule` for those that are.

    Args:
        after: the returned time is later than this one: an aware `datetime` or Unix seconds; by
            default this machine's time, or in a test that of its clock.
        cron: five fields, as "0 9 * * MON-FRI": minute, hour, day of month, month, weekday.
        every: a period instead, counted from 1970 in UTC: "15m" is due at the full quarters.
        timezone: the time zone of `cron` and of the returned time, such as "Europe/Berlin".

    Returns:
        An aware `datetime` in the time zone.

    Raises:
        InvalidArgument: neither or both of `cron` and `every` are given, or an argument is not
            valid.

    Example:
        >>> from datetime import UTC, datetime
        >>> friday = datetime(2026, 3, 27, 12, tzinfo=UTC)
        >>> print(next_time(friday, cron="0 9 * * MON", timezone="Europe/Berlin"))
        2026-03-30 09:00:00+02:00
    """
    rule = recurrence(cron, every, timezone)
    start = present_clock().now() if after is None else unix(after, "after", rounding="down")
    return to_datetime(rule.after(start)).astimezone(rule.zone)
