"""By which rule a message repeats: `Cron` or `Every`, as users write it.

The message carries it as data, see `bide.model.time_rule`. `bide.model.runs` says which run comes
next.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_RULE, check_whole
from bide.model.recurrence import CronTimes, PeriodTimes, Recurrence, exact_text
from bide.model.recurrence import period as as_period
from bide.model.times import (
    LATEST,
    Duration,
    Moment,
    iso,
    milliseconds,
    to_datetime,
    unix,
)
from bide.model.zones import ZoneData, own_version, remembers_zones, zone_of

Missed = Literal["once", "all", "skip"]
"""What becomes of runs whose time passes while no worker can begin them."""

MISSED: tuple[Missed, ...] = ("once", "all", "skip")

SHORTEST_GRACE = 100
"""The shortest `grace`, in milliseconds: workers need some time to begin."""

MAX_TIMES = 1_000_000_000
"""The maximum of `times`."""


class Repeat(ABC):
    """The rule by which a message repeats."""

    text: str
    """The rule as JSON, which the message carries if nothing else says when it is delivered."""

    start: datetime | None
    until: datetime | None
    times: int | None
    missed: Missed
    grace: str | None

    @abstractmethod
    def recurrence(self) -> Recurrence:
        """Return its times, from before `start` and without an end."""

    @abstractmethod
    def _named(self) -> dict[str, Any]:
        """Return what says when it repeats, by the names that texts have for it."""

    @property
    def zones(self) -> str:
        """The version of the time zones of this process; empty if its times need none."""
        return ""

    def by(self, zones: ZoneData) -> Recurrence:
        """Return its times as `recurrence` does, by other data of time zones.

        Raises:
            InvalidArgument: they do not have its zone.
        """
        return self.recurrence()

    def after(self, moment: int) -> int | None:
        """Return the first of its times that is later than a moment; `None`: there is none.

        Both are Unix milliseconds. `times` is not considered.

        Example:
            >>> Every("15m").after(0)
            900000
        """
        return self._within_bounds(self._after(moment))

    def _after(self, moment: int) -> int:
        """Return the first of its times that is later than a moment, also after its end."""
        return self.recurrence().after(max(moment, self._first - 1))

    def latest(self, moment: int, floor: int) -> int:
        """Return the last of its times up to a moment; `floor` if there is none after that.

        All are Unix milliseconds. The floor may be no time of the rule, and be before its start.
        """
        last = self.recurrence().latest(min(moment, self.end), floor)
        return last if last >= self._first else floor

    def grace_of(self, moment: int) -> int:
        """Return how late the run of a time may begin, in milliseconds, and is not missed."""
        longest = self._after(moment) - moment - 1
        return longest if self.grace is None else min(longest, milliseconds(self.grace))

    def _within_bounds(self, moment: int) -> int | None:
        """Return a time unless it is after the end."""
        return moment if moment <= self.end else None

    @property
    def _first(self) -> int:
        """Its first possible time."""
        return 1 if self.start is None else unix(self.start)

    @property
    def end(self) -> int:
        """Its last possible time: `until`, or as late as a message may be due."""
        return LATEST if self.until is None else unix(self.until)

    def __str__(self) -> str:
        texts = [self._title()]
        if self.start is not None:
            texts.append(f"from {iso(unix(self.start))}")
        if self.until is not None:
            texts.append(f"until {iso(unix(self.until))}")
        if self.times is not None:
            texts.append(f"{self.times} times")
        if self.missed != "once":
            texts.append(f"missed runs: {self.missed}")
        if self.grace is not None:
            texts.append(f"grace: {self.grace}")
        return ", ".join(texts)

    @property
    def fields(self) -> dict[str, Any]:
        """What is given of the rule, by the names of the arguments, as JSON has it."""
        fields = self._named()
        for name in ("start", "until"):
            moment = getattr(self, name)
            if moment is not None:
                fields[name] = iso(unix(moment))
        if self.times is not None:
            fields["times"] = self.times
        if self.missed != "once":
            fields["missed"] = self.missed
        if self.grace is not None:
            fields["grace"] = self.grace
        return fields

    @abstractmethod
    def _title(self) -> str:
        """Return when it repeats, for people."""

    def _bound(
        self,
        start: Moment | None,
        until: Moment | None,
        times: int | None,
        missed: Missed,
        grace: Duration | None,
    ) -> None:
        """Check what both kinds of rule have, and keep it.

        Raises:
            InvalidArgument: an argument is not valid.
        """
        start_ms = None if start is None else unix(start, "start")
        until_ms = None if until is None else unix(until, "until", rounding="down")
        if start_ms is not None and until_ms is not None and until_ms < start_ms:
            raise InvalidArgument(f"until={iso(until_ms)} is before start={iso(start_ms)}")
        if times is not None:
            check_whole(times, "times", 1, MAX_TIMES)
        if missed not in MISSED:
            raise InvalidArgument(f"missed={missed!r} must be one of {', '.join(MISSED)}")
        values = {
            "start": None if start_ms is None else to_datetime(start_ms),
            "until": None if until_ms is None else to_datetime(until_ms),
            "times": times,
            "missed": missed,
            "grace": None if grace is None else exact_text(_checked_grace(grace)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "text", msgspec.json.encode(self.fields).decode())
        if len(self.text) > MAX_RULE:
            raise InvalidArgument(f"the rule {self} is longer than {MAX_RULE} characters as text")


@dataclass(frozen=True, init=False)
class Cron(Repeat):
    """A message repeats at the times of a cron expression in a time zone.

    Args:
        expression: five fields, as "0 9 * * MON-FRI": minute, hour, day of the month, month, day of
            the week; or "@hourly", "@daily", "@weekly", "@monthly", "@yearly".
        timezone: its time zone, such as "Europe/Berlin". Where the clocks change, a skipped time
            happens right after the gap, and a repeated one happens once.
        start: not before this time: an aware `datetime`, or Unix seconds.
        until: not after this time.
        times: how many runs there are.
        missed: what becomes of runs whose time passes while no worker can begin them: "once": they
            are one run; "all": each is a run, one after the other; "skip": they are left out.
        grace: how late a run may begin and is not missed; by default, and at most, until the time
            of the next one.

    Raises:
        InvalidArgument: an argument is not valid, or the package cronsim is missing.

    Example:
        >>> print(Cron("0 9 * * MON", "Europe/Berlin", times=10))
        0 9 * * MON in Europe/Berlin, 10 times
    """

    expression: str
    timezone: str
    start: datetime | None
    until: datetime | None
    times: int | None
    missed: Missed
    grace: str | None

    def __init__(
        self,
        expression: str,
        timezone: str = "UTC",
        *,
        start: Moment | None = None,
        until: Moment | None = None,
        times: int | None = None,
        missed: Missed = "once",
        grace: Duration | None = None,
    ) -> None:
        if not isinstance(expression, str):
            raise InvalidArgument(f"cron must be a str, not {type(expression).__name__}")
        recurrence = CronTimes(expression, zone_of(timezone))
        object.__setattr__(self, "expression", recurrence.text)
        object.__setattr__(self, "timezone", timezone)
        self._bound(start, until, times, missed, grace)

    def recurrence(self) -> Recurrence:
        """Return its times, from before `start` and without an end."""
        return _cron_times(self.expression, self.timezone)

    @property
    def zones(self) -> str:
        """The version of the time zones of this process; empty if its times need none."""
        return "" if self.timezone == "UTC" else own_version()

    def by(self, zones: ZoneData) -> Recurrence:
        """Return its times as `recurrence` does, by other data of time zones.

        Raises:
            InvalidArgument: they do not have its zone.
        """
        if zones.zone is zone_of:
            return self.recurrence()
        return CronTimes(self.expression, zones.zone(self.timezone))

    def _named(self) -> dict[str, Any]:
        return {"cron": self.expression, "timezone": self.timezone}

    def _title(self) -> str:
        return f"{self.expression} in {self.timezone}"


@dataclass(frozen=True, init=False)
class Every(Repeat):
    """A message repeats after a period.

    Args:
        period: seconds, a `timedelta`, or a text such as "15m"; at least 100 ms.
        start: one of the times, and not before it: an aware `datetime`, or Unix seconds. Without
            it, times are counted from 1970 in UTC: "15m" is at the full quarters of an hour.
        until: not after this time.
        times: how many runs there are.
        missed: what becomes of runs whose time passes while no worker can begin them: "once": they
            are one run; "all": each is a run, one after the other; "skip": they are left out.
        grace: how late a run may begin and is not missed; by default, and at most, until the time
            of the next one.

    Raises:
        InvalidArgument: an argument is not valid.

    Example:
        >>> print(Every("15m", missed="skip"))
        every 15m, missed runs: skip
    """

    period: str
    start: datetime | None
    until: datetime | None
    times: int | None
    missed: Missed
    grace: str | None

    def __init__(
        self,
        period: Duration,
        *,
        start: Moment | None = None,
        until: Moment | None = None,
        times: int | None = None,
        missed: Missed = "once",
        grace: Duration | None = None,
    ) -> None:
        object.__setattr__(self, "period", exact_text(as_period(period)))
        self._bound(start, until, times, missed, grace)

    def recurrence(self) -> Recurrence:
        """Return its times, from before `start` and without an end."""
        anchor = 0 if self.start is None else unix(self.start)
        return PeriodTimes(milliseconds(self.period), zone_of("UTC"), anchor)

    def _named(self) -> dict[str, Any]:
        return {"every": self.period}

    def _title(self) -> str:
        return f"every {self.period}"


def _checked_grace(grace: Duration) -> int:
    """Return how late a run may begin, in milliseconds.

    Raises:
        InvalidArgument: it is no duration, or so short that no worker could be in time.
    """
    ms = milliseconds(grace, "grace")
    if ms < SHORTEST_GRACE:
        raise InvalidArgument(f"grace={grace!r} must be {SHORTEST_GRACE} ms or longer")
    return ms


@lru_cache(maxsize=512)
def _cron_times(expression: str, timezone: str) -> CronTimes:
    """Return the times of a cron expression: to check one takes long."""
    return CronTimes(expression, zone_of(timezone))


remembers_zones(_cron_times.cache_clear)


def repeat(
    *,
    cron: str | None = None,
    every: Duration | None = None,
    timezone: str | None = None,
    start: Moment | None = None,
    until: Moment | None = None,
    times: int | None = None,
    missed: Missed = "once",
    grace: Duration | None = None,
) -> Repeat:
    """Return the rule of arguments as HTTP, the command line and texts have them.

    Raises:
        InvalidArgument: an argument is not valid, or `cron` and `every` are both given, or neither.
    """
    bounds: dict[str, Any] = {
        "start": start,
        "until": until,
        "times": times,
        "missed": missed,
        "grace": grace,
    }
    if cron is not None and every is None:
        return Cron(cron, "UTC" if timezone is None else timezone, **bounds)
    if every is None or cron is not None:
        raise InvalidArgument(
            "a message repeats by a cron expression or a period, not by both: "
            '"0 9 * * MON-FRI", or "15m"'
        )
    if timezone is not None:
        raise InvalidArgument("timezone goes with a cron expression: a period has none")
    return Every(every, **bounds)
