"""Local dates: nine o'clock on a day in Paris, whatever the clocks there will show then.

A message that is put with such a date keeps it, and the zone, in its rule. Which instant that is,
the data of time zones say, and governments change these: what was planned by an old version is
planned anew by a greater one. All here are pure functions of date and zone.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.times import LATEST, to_datetime
from bide.model.zones import (
    ZoneData,
    is_newer,
    own_version,
    own_zones,
    remembers_zones,
    zone_of,
)


class LocalDate(msgspec.Struct, frozen=True):
    """A date and time in a time zone, as people say it.

    Where the clocks change: a time that is skipped happens right after the gap, and one that is
    repeated happens once, the first time.

    Example:
        >>> print(LocalDate("2027-03-28 02:30", "Europe/Paris").at)
        2027-03-28 01:00:00+00:00
    """

    date: str
    """Date and time, such as "2027-03-28 09:00"."""
    timezone: str
    """The name of the zone, such as "Europe/Paris"."""

    @property
    def at(self) -> datetime:
        """The instant, by the time zones of this process.

        Raises:
            InvalidArgument: the zone is not known here.
        """
        return to_datetime(instant(self, own_zones()))

    def __str__(self) -> str:
        return f"{self.date} {self.timezone}"


class PlannedDate(msgspec.Struct, frozen=True):
    """A local date that a message has, and what it was planned for."""

    local: LocalDate
    at: int
    """The instant that it was planned for, in Unix milliseconds. If the due time which was asked
    for last is not that of the plan, somebody has rescheduled the message, and the date does not
    count any more."""
    zones: str = ""
    """The version of the time zones by which it was planned; empty: not known."""
    spread: int = 0
    """How long after the date it is due, in milliseconds: its place in a span (`spread`)."""
    opens: int | None = None
    """When its window is open from `at` on, in Unix milliseconds: when it is due. `None`: it has no
    window."""
    put_off: int | None = None
    """When it was due instead, in Unix milliseconds, as it came from another queue: there a release
    or a plan for what was overdue had put it off. `None`: it had not been."""

    def due(self, zones: ZoneData) -> int:
        """Return when it is due by some data, in Unix milliseconds.

        Raises:
            InvalidArgument: they do not have its zone.
        """
        return min(LATEST, instant(self.local, zones) + self.spread)

    def replanned(self, zones: ZoneData) -> "PlannedDate | None":
        """Return the date as planned by greater data; `None`: these are none.

        One whose instant stays is returned as it is.

        Raises:
            InvalidArgument: they do not have its zone.
        """
        if not is_newer(zones.version, self.zones):
            return None
        due = self.due(zones)
        if due == self.at:
            return self
        return msgspec.structs.replace(self, at=due, zones=zones.version, put_off=None)


def local_date(at: object, timezone: object) -> LocalDate:
    """Return the date that a user gives.

    Args:
        at: a text as "2027-03-28 09:00", or a naive `datetime`.
        timezone: the name of a zone.

    Raises:
        InvalidArgument: it is no such date, it has an offset, the zone is not known here, or it is
            not between 1970 and 2100.
    """
    if not isinstance(timezone, str):
        raise InvalidArgument(
            f"timezone must be the name of a zone, as 'Europe/Paris', not a "
            f"{type(timezone).__name__}"
        )
    moment = _naive(at)
    if not 1970 <= moment.year <= 2100:
        raise InvalidArgument(f"at={str(at)[:64]!r} is not between 1970 and 2100")
    moment += timedelta(microseconds=-moment.microsecond % 1000)  # rounded up: it is never early
    timespec = "minutes"
    if moment.microsecond:
        timespec = "milliseconds"
    elif moment.second:
        timespec = "seconds"
    date = LocalDate(moment.isoformat(" ", timespec), timezone)
    instant(date, own_zones())  # raises what is wrong with it
    return date


def _naive(at: object) -> datetime:
    """Return the date and time that a user gives, without a zone.

    Raises:
        InvalidArgument: it is missing, no date, or has a zone.
    """
    example = "write at='2027-03-28 09:00', timezone='Europe/Paris'"
    if at is None:
        raise InvalidArgument(f"timezone= goes with a local date: {example}")
    if isinstance(at, str):
        try:
            moment = datetime.fromisoformat(at.strip())
        except ValueError:
            raise InvalidArgument(f"at={at[:64]!r} is not a date and time; {example}") from None
    elif isinstance(at, datetime):
        moment = at
    else:
        raise InvalidArgument(
            f"at={at!r} is an instant, which has no time zone; {example}, or leave out timezone="
        )
    if moment.tzinfo is not None:
        raise InvalidArgument(
            f"at={str(at)[:64]!r} has an offset, so it is an instant; leave the offset out, or "
            "timezone="
        )
    if moment.fold:
        raise InvalidArgument(
            f"at={at!r} with fold=1: a local date that occurs twice is the first one; for the "
            "second one give an instant, without timezone="
        )
    # Subclasses redefine the operators.
    fields = moment.timetuple()[:6]
    return datetime(*fields, moment.microsecond, tzinfo=UTC).replace(tzinfo=None)


def instant(date: LocalDate, zones: ZoneData) -> int:
    """Return when a local date is by some data of time zones, in Unix milliseconds.

    Raises:
        InvalidArgument: they do not have its zone, or it is not between 1970 and 2100.
    """
    if zones.zone is zone_of:
        return _own_instant(date)
    return _instant(date, zones.zone(date.timezone))


@lru_cache(maxsize=4096)
def _own_instant(date: LocalDate) -> int:
    """Return when a local date is by the data of this process."""
    return _instant(date, zone_of(date.timezone))


remembers_zones(_own_instant.cache_clear)


def _instant(date: LocalDate, zone: ZoneInfo) -> int:
    """Return when a local date is in a zone, in Unix milliseconds."""
    try:
        local = datetime.fromisoformat(date.date)
    except ValueError:
        raise InvalidArgument(f"at={date.date!r} is not a date and time") from None
    if not 1970 <= local.year <= 2100:
        raise InvalidArgument(f"at={date.date!r} is not between 1970 and 2100")
    first = _unix(local.replace(tzinfo=zone))
    if not _is_shown(local, first, zone):
        first = _end_of_gap(_unix(local.replace(tzinfo=zone, fold=1)), first, zone)
    if not 0 <= first <= LATEST:
        raise InvalidArgument(f"at={date.date!r} in {date.timezone} is not between 1970 and 2100")
    return first


def _unix(moment: datetime) -> int:
    """Return an aware time in Unix milliseconds."""
    return round(moment.timestamp() * 1000)


def _is_shown(local: datetime, moment: int, zone: ZoneInfo) -> bool:
    """Return whether the clocks of a zone show a local time at a moment."""
    return to_datetime(moment).astimezone(zone).replace(tzinfo=None, fold=0) == local


def _end_of_gap(before: int, after: int, zone: ZoneInfo) -> int:
    """Return when the clocks of a zone were changed.

    Args:
        before: a moment before that, in Unix milliseconds.
        after: a moment after it, or just then.
        zone: the zone.
    """
    offset_after = to_datetime(after).astimezone(zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if to_datetime(middle).astimezone(zone).utcoffset() == offset_after:
            after = middle
        else:
            before = middle
    return after


def planned_date(at: object, timezone: object, *, spread: int = 0) -> PlannedDate:
    """Return the date that a user gives, as planned by the time zones of this process.

    Args:
        at, timezone: as for `local_date`.
        spread: how long after the date it is due, in milliseconds.

    Raises:
        InvalidArgument: it is no date, or not between 1970 and 2100.
    """
    date = PlannedDate(local_date(at, timezone), 0, own_version(), spread)
    return msgspec.structs.replace(date, at=date.due(own_zones()))
