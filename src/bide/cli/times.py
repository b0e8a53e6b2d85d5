"""Times and durations as people write and read them."""

import re
import time
from contextlib import suppress
from datetime import datetime, tzinfo

import click

from bide.cli.errors import in_options
from bide.model import times
from bide.model.errors import InvalidArgument
from bide.model.times import LATEST, format_duration, milliseconds, unix

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITH_ZONE_NAME = re.compile(r"(.*\d)\s*[ \[]([A-Za-z][\w/+-]+)\]?")
"""A time and the name of a zone: behind a space, or in brackets as RFC 9557 has it."""

_PYTHON_HINT = re.compile(r" \(in Python .*\)")


def when(ms: int) -> str:
    """Return a time for people, and how far it is from now.

    Example:
        >>> when(now_ms()).endswith("(now)")
        True
    """
    return f"{local(ms)} ({relative(ms)})"


def read_duration(value: str | float, what: str) -> float:
    """Read a duration, "1h30m" or a plain number of seconds; return seconds.

    Args:
        value: what the user wrote.
        what: "delay" where the user could give `--at` instead, else "time".

    Raises:
        click.BadParameter: it is neither, or ends past the year 2100.
    """
    number = _number(value)
    try:
        ms = milliseconds(number, what)
    except InvalidArgument as error:
        # The same text without what is only for Python.
        reason = str(error).removeprefix(f"{what}={number!r} ").replace(" or a timedelta", "")
        raise click.BadParameter(f"{value!r} {in_options(reason)}") from None
    if now_ms() + ms > LATEST:
        raise click.BadParameter(f"{value!r} from now is past the year 2100")
    return ms / 1000


def read_moment(value: str | float, what: str) -> float:
    """Read a time, ISO 8601 with an offset or the name of a zone, or Unix seconds.

    Args:
        value: what the user wrote.
        what: the name of the option, as the argument in Python is called.

    Returns:
        Unix seconds.

    Raises:
        click.BadParameter: it is neither, has no zone, or its zone skips it or has it twice.
    """
    number = _number(value)
    moment = _as_datetime(number) if isinstance(number, str) else number
    try:
        return unix(moment, what) / 1000
    except InvalidArgument as error:
        reason = _PYTHON_HINT.sub("", str(error).removeprefix(f"{what}={moment!r} "))
        raise click.BadParameter(f"{value!r} {in_options(reason)}") from None


def read_due(value: str | float) -> float | str:
    """Read a due time: as `read_moment` does, or a local date, which is returned as it is.

    Raises:
        click.BadParameter: it is neither.
    """
    if isinstance(value, str) and is_local_date(value):
        return value
    return read_moment(value, "at")


def is_local_date(text: str) -> bool:
    """Return whether a text is a date and time without a zone.

    Example:
        >>> is_local_date("2026-12-01 09:00"), is_local_date("2026-12-01 09:00Z")
        (True, False)
    """
    with suppress(ValueError):
        return datetime.fromisoformat(text.strip()).tzinfo is None and not text.strip().isdigit()
    return False


def _as_datetime(text: str) -> datetime:
    """Read a time with an offset or the name of a zone.

    Raises:
        click.BadParameter: it is not one, or does not name one moment.
    """
    time_text, zone = text, None
    if (match := _WITH_ZONE_NAME.fullmatch(text)) is not None:
        time_text, zone = match[1], _zone(match[2])
    try:
        moment = datetime.fromisoformat(time_text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a valid time; write ISO 8601 with a zone, as "
            "2026-12-01T09:00+01:00, 2026-12-01T08:00Z or '2026-12-01 09:00 Europe/Berlin', or "
            "Unix seconds"
        ) from None
    if not 1970 <= moment.year <= 2100:
        raise click.BadParameter(f"{text!r} is not between 1970 and 2100")
    if moment.tzinfo is not None:
        if zone is not None and moment.astimezone(zone).utcoffset() != moment.utcoffset():
            raise click.BadParameter(
                f"{text!r} has an offset that its zone does not have at that time"
            )
        return moment
    # Both differ where the clocks of the zone are changed; without a zone, that of this machine.
    first, second = (moment.replace(tzinfo=zone, fold=fold).astimezone(zone) for fold in (0, 1))
    if first.timestamp() != second.timestamp():
        raise click.BadParameter(
            f"{text!r} is a time that the clocks of the zone skip or show twice; write an offset, "
            "as in 2026-12-01T09:00+01:00"
        )
    if zone is None:
        raise click.BadParameter(
            f"{text!r} has no time zone; for the zone of this machine write "
            f"{first.isoformat()}, for UTC add a Z"
        )
    return first


def _zone(name: str) -> tzinfo:
    """Return the time zone of a name.

    Raises:
        click.BadParameter: it is not known here; the error names a similar one.
    """
    from bide.model.zones import zone_of

    try:
        return zone_of(name)
    except InvalidArgument as error:
        similar_zone = _similar_zone(name)
        if similar_zone is None:
            raise click.BadParameter(str(error).removeprefix("timezone=")) from None
        hint = f"did you mean {similar_zone!r}?"
        raise click.BadParameter(f"{name!r} is not known here; {hint}") from None


def _similar_zone(name: str) -> str | None:
    """Return the time zone whose name, or city, is most like a name; `None`: none is like it."""
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    zones: dict[str, str] = {}
    for zone in sorted(available_timezones()):
        zones[zone.lower()] = zone
        zones.setdefault(zone.rpartition("/")[2].lower(), zone)
    similar = get_close_matches(name.lower(), zones, 1, 0.75)
    return zones[similar[0]] if similar else None


def read_zone(name: str) -> str:
    """Read the name of a time zone.

    Raises:
        click.BadParameter: it is not known here.
    """
    _zone(name)
    return name


def read_cron(text: str) -> str:
    """Read a cron expression.

    Raises:
        click.BadParameter: it is not valid; if it is too short, the shell may have divided it.
    """
    from bide.model.recurrence import CronTimes
    from bide.model.zones import zone_of

    try:
        return CronTimes(text, zone_of("UTC")).text
    except InvalidArgument as error:
        reason = str(error).removeprefix("cron=")
        if len(text.split()) < 5:
            reason = reason.replace("write five fields, as in", "write five in quotes, as in")
        raise click.BadParameter(reason) from None


def read_hours(text: str) -> str:
    """Read the hours of a window; return them in their usual form.

    Raises:
        click.BadParameter: they cannot be read; without quotes, the shell has divided them.
    """
    from bide.model.window import Window

    try:
        return Window(text).hours
    except InvalidArgument as error:
        raise click.BadParameter(str(error).removeprefix("window=")) from None


def read_holidays(text: str) -> list[str]:
    """Return holidays as dates such as "2026-12-25".

    Args:
        text: dates with commas between them, or the path of a calendar file.

    Raises:
        click.BadParameter: a date does not exist, or the file cannot be read.
    """
    from bide.model.window import Window

    days = [day.strip() for day in text.split(",")]
    holidays: list[str] | str = days if all(map(_DATE.fullmatch, days)) else text
    try:
        return [str(day) for day in Window("Mon", holidays=holidays).holidays]
    except InvalidArgument as error:
        reason = str(error).removeprefix("holidays=").removeprefix("holidays: ")
        raise click.BadParameter(
            reason.replace("a list of dates such as ['2026-12-25']", "dates: 2026-12-25,2027-01-01")
        ) from None


def read_period(value: str) -> str:
    """Read the period of a message that repeats; return it in its usual form.

    Raises:
        click.BadParameter: it is no duration, or too short.
    """
    from bide.model.recurrence import exact_text, period

    number = _number(value)
    try:
        return exact_text(period(number))
    except InvalidArgument as error:
        reason = str(error).removeprefix(f"every={number!r} ").replace(" or a timedelta", "")
        raise click.BadParameter(f"{value!r} {in_options(reason)}") from None


def _number(text: str | float) -> str | float:
    """Return a number if a text is one, else the text."""
    with suppress(ValueError):
        return float(text)
    return text


def now_ms() -> int:
    """Return this machine's time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def iso(ms: int | None) -> str:
    """Return a time for programs: ISO 8601 in UTC; empty for none."""
    return "" if ms is None else times.iso(ms)


def local(ms: int, now: int | None = None) -> str:
    """Return a time in the local zone, without the date if it is today.

    Example:
        >>> len(local(0, 0)), len(local(0, 1_700_000_000_000))
        (8, 16)
    """
    moment = datetime.fromtimestamp(ms / 1000).astimezone()
    today = datetime.fromtimestamp((now_ms() if now is None else now) / 1000).astimezone()
    time_format = "%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return moment.strftime(time_format)


def relative(ms: int, now: int | None = None) -> str:
    """Return how far a time is from now.

    Example:
        >>> relative(1_800_000, 0), relative(0, 4_200), relative(0, 0)
        ('in 30m', '4.2s ago', 'now')
    """
    distance = ms - (now_ms() if now is None else now)
    if abs(distance) < 100:
        return "now"
    return f"in {rounded(distance)}" if distance > 0 else f"{rounded(-distance)} ago"


def span(start: int | None, end: int) -> str:
    """Return the start, the end and the length of something; without a start, only the end.

    Example:
        >>> span(None, 0) == local(0), span(0, 2_000).endswith("(2.0s)")
        (True, True)
    """
    if start is None:
        return local(end)
    return f"{local(start)} to {local(end)} ({rounded(max(0, end - start))})"


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
