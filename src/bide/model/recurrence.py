"""Recurring times: by a cron expression in a time zone, or by a period."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from heapq import merge
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

from bide.model.errors import InvalidArgument
from bide.model.times import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    Duration,
    format_duration,
    milliseconds,
)
from bide.model.zones import zone_of

LONGEST_EXPRESSION = 256
"""The maximum length of a cron expression, in characters."""

HORIZON_YEARS = 40
"""For how many years the next time of a cron expression is looked for. It may be 40 years until 29
February is a certain day of the week again, and an expression may name times that never come."""

SHORTEST = 100
"""The shortest period, in milliseconds."""

UNITS = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
"""The units of a period as text, and their lengths in milliseconds."""

_CHECKED_FROM = 1_600_000_000_000
"""From this time on, in Unix milliseconds, an expression must name one."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class PeriodTimes:
    """The times of a period, counted from 1970 in UTC: daylight saving does not move it.

    Args:
        period: in milliseconds.
        zone: the time zone in which users see the times.
        anchor: one of the times, in Unix milliseconds.

    Example:
        >>> quarters = PeriodTimes(900_000, ZoneInfo("UTC"))
        >>> quarters.after(0), quarters.after(900_000)
        (900000, 1800000)
    """

    def __init__(self, period: int, zone: ZoneInfo, anchor: int = 0) -> None:
        self.period = period
        self.zone = zone
        self._anchor = anchor
        self.text = f"every {format_duration(period)}"
        """The period for people."""
        self.spec = f"every {period} {zone.key}"
        """The period in milliseconds, and the zone."""

    def after(self, moment: int) -> int:
        """Return the first of these times that is later than `moment`."""
        past = (moment - self._anchor) // self.period
        return self._anchor + (past + 1) * self.period

    def latest(self, moment: int, floor: int) -> int:
        """Return the last of these times up to `moment`; `floor` if there is none after that."""
        return max(self.after(moment) - self.period, floor)


class CronTimes:
    """The times of a cron expression of five fields, with the rules of Debian's cron.

    An expression with a star in its minutes or hours follows elapsed time, so it leaves out what
    the clocks skip and repeats what they repeat. Any other names times of a day: a skipped time
    happens right after the gap, a repeated one happens once. The library knows when times of a day
    happen. For the others it gets a fixed offset, since it errs in zones that move their clocks by
    half an hour, or at a quarter to an hour.

    Args:
        expression: minute, hour, day of the month, month, day of the week.
        zone: the time zone of the expression.

    Raises:
        InvalidArgument: it is not such an expression, or never happens.
    """

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError as error:
            raise InvalidArgument(
                "cron= needs the package cronsim: pip install 'bide[schedules]'; every= needs none"
            ) from error
        if len(expression) > LONGEST_EXPRESSION:
            raise InvalidArgument(
                f"cron={expression[:40]!r}... is longer than {LONGEST_EXPRESSION} characters"
            )
        self._simulator: Any = CronSim
        self.text = " ".join(expression.split())
        """The expression."""
        self.spec = f"cron {self.text} {zone.key}"
        """The expression, and the zone."""
        self.zone = zone
        self._fields = ALIASES.get(self.text.lower(), self.text)
        fields = self._fields.split()
        if len(fields) != 5:
            count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise self._refusal(
                f"it has {count}, not 5: minute, hour, day of month, month, weekday"
            )
        self._known = 0, 0
        """A moment and the first time after it, which is that of all moments in between, too: many
        messages repeat by one rule."""
        self._last = 0, 0
        """One of the times and the one after it: the last time of all moments in between."""
        self._follows_elapsed_time = fields[0].startswith("*") or fields[1].startswith("*")
        try:  # the library finds some mistakes only when it looks for a time
            next(self._simulator(self._fields, datetime(2000, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise self._refusal(str(error).lower()) from None
        except StopIteration:
            raise self._refusal("it names no day that exists") from None
        self.after(_CHECKED_FROM)  # in its zone, a time that the clocks skip may be all it names

    def after(self, moment: int) -> int:
        """Return the first of these times that is later than `moment`.

        Raises:
            InvalidArgument: there is none for many years.
        """
        known = self._known
        if known[0] <= moment < known[1]:
            return known[1]
        after = self._look_for(moment)
        self._known = moment, after
        return after

    def latest(self, moment: int, floor: int) -> int:
        """Return the last of these times up to `moment`; `floor` if there is none after that.

        The library can be asked for the next time only. So this looks from longer and longer before
        `moment` on, and then halves the span in which later times may be.

        Raises:
            InvalidArgument: there is no time after one of these for many years.
        """
        last, following = self._last
        if not last <= moment < following:
            seen = self._seen_from_before(moment, floor)
            if seen is None:
                return floor
            # What is looked for is `last`, or is later and not later than `end`.
            last, end = seen, moment
            while (following := self.after(last)) <= moment:
                last, middle = following, (following + end) // 2
                if (later := self.after(middle)) <= moment:
                    last = later
                else:
                    end = middle
            self._last = last, following
        return max(last, floor)

    def _seen_from_before(self, moment: int, floor: int) -> int | None:
        """Return one of the times up to `moment`, soon before it; `None`: none is after `floor`."""
        span = MINUTE_MS
        while True:
            start = max(moment - span, floor)
            if (first := self.after(start)) <= moment:
                return first
            if start == floor:
                return None
            span *= 4

    def _look_for(self, moment: int) -> int:
        """Return the first of these times that is later than `moment`, by the calendar."""
        local = datetime.fromtimestamp(moment // 1000, self.zone)
        # In an hour that is repeated, the library may go back.
        later_times = (time for time in self._times(local) if time.timestamp() * 1000 > moment)
        try:
            return round(next(later_times).timestamp() * 1000)
        except (StopIteration, OverflowError):
            zone = self.zone.key
            raise self._refusal(f"in {zone} it names no time for {HORIZON_YEARS} years") from None

    def _times(self, start: datetime) -> Iterator[datetime]:
        """Return the times after a local time, without end."""
        end = start.year + HORIZON_YEARS
        if not self._follows_elapsed_time:
            times: Iterator[datetime] = self._simulator(self._fields, start)
            return takewhile(lambda time: time.year <= end, times)
        # The times under each offset of the next year; one counts if the zone has that offset then.
        # No zone keeps an offset for less than four weeks.
        samples = (start + timedelta(weeks=number) for number in range(0, 54, 4))
        offsets = {sample.utcoffset() or timedelta() for sample in samples}
        starts = [start.astimezone(timezone(offset)) for offset in offsets]
        times = merge(*(self._simulator(self._fields, local_start) for local_start in starts))
        return (
            time
            for time in takewhile(lambda time: time.year <= end, times)
            if time.astimezone(self.zone).utcoffset() == time.utcoffset()
        )

    def _refusal(self, why: str) -> InvalidArgument:
        """Return the error for an expression that is not valid."""
        return InvalidArgument(
            f"cron={self.text!r} is not valid: {why}; write five fields, as in "
            "'0 9 * * MON-FRI': nine o'clock on weekdays"
        )


Recurrence = PeriodTimes | CronTimes
"""Recurring times, in Unix milliseconds, and the time zone in which users see them."""


def recurrence(cron: str | None, every: Duration | None, timezone: str) -> Recurrence:
    """Return the recurrence of a cron expression or a period.

    Raises:
        InvalidArgument: neither or both are given, or one of them is not valid.
    """
    zone = zone_of(timezone)
    if cron is not None and every is None:
        if not isinstance(cron, str):
            raise InvalidArgument(f"cron must be a str, not {type(cron).__name__}")
        return CronTimes(cron, zone)
    if every is not None and cron is None:
        return PeriodTimes(period(every), zone)
    raise InvalidArgument(
        "a schedule needs cron= or every=, and not both: cron='0 9 * * MON-FRI' or every='15m'"
    )


def period(every: Duration) -> int:
    """Return a period in milliseconds.

    Raises:
        InvalidArgument: it is not a duration, or shorter than 100 ms.
    """
    ms = milliseconds(every, "every")
    if ms < SHORTEST:
        raise InvalidArgument(f"every={every!r} must be {SHORTEST} ms or longer")
    return ms


def exact_text(ms: int) -> str:
    """Return a duration in milliseconds as a text that loses nothing.

    Example:
        >>> exact_text(90_000), exact_text(90_250), exact_text(0)
        ('1m30s', '1m30s250ms', '0s')
    """
    remaining, parts = ms, []
    for unit, length in UNITS.items():
        count, remaining = divmod(remaining, length)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def parse(spec: str) -> Recurrence:
    """Return the recurrence with this `spec`.

    Raises:
        InvalidArgument: it is not a spec.
    """
    keyword, _, rest = spec.partition(" ")
    value, _, zone = rest.rpartition(" ")
    if keyword == "cron":
        return CronTimes(value, zone_of(zone))
    if keyword == "every" and value.isdecimal() and int(value) >= SHORTEST:
        return PeriodTimes(int(value), zone_of(zone))
    raise InvalidArgument(f"{spec!r} is not a schedule")
