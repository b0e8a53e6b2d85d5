"""Durations and due times as callers write them, in whole milliseconds; rates in microseconds."""

import hashlib
import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal

from msgspec import Meta

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_DURATION_TEXT

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
"""Units in milliseconds."""

MICROSECONDS = 1_000
"""Of a millisecond."""

MAX_YEARS = 130
"""No duration is longer: such a delay would end after `LATEST`."""

LATEST = 4_102_444_800_000  # 2100-01-01 00:00 UTC: a later time is taken for a mistake
EARLIEST = 978_307_200
"""2001-01-01 00:00 UTC in Unix seconds. A smaller number is no time, but a year or a delay; a delay
that is not smaller is a time."""
_FAR = 20 * 365 * DAY_MS
"""Delays up to this length, in milliseconds, end before 2100; longer ones are checked."""

Duration = float | timedelta | str
"""Seconds, a `timedelta`, or a string of numbers with units: "250ms", "30m", "1h30m", "7d"."""

Moment = float | datetime
"""Unix seconds, or an aware `datetime`."""

UnixMs = Annotated[int, Meta(ge=0, le=2 * LATEST)]
Ms = Annotated[int, Meta(ge=0, le=LATEST)]
"""A time and a duration in milliseconds, as commands have them."""
ExpiryMs = Annotated[int, Meta(ge=-LATEST, le=LATEST)]
"""How long after its due time a message is worth delivering, in milliseconds: below 0 if a retry is
due later than that."""

_UNITS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
"""The length of each unit of a duration, in milliseconds."""

_US = timedelta(microseconds=1)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|[smhdw])\s*")
"""A number and its unit; a duration has one or more."""

_WHOLE = re.compile(rf"\s*(?:{_PART.pattern})+")


def milliseconds(duration: Duration, what: str = "delay") -> int:
    """Return a duration in whole milliseconds, rounded up.

    Args:
        duration: seconds, a `timedelta`, or a string such as "1h30m" (units ms, s, m, h, d, w).
        what: the name of the argument, for the error.

    Raises:
        InvalidArgument: it is negative, not finite, not of one of these forms, longer than 130
            years, or a plain number that looks like a time.

    Example:
        >>> milliseconds("1h30m"), milliseconds(0.25), milliseconds(timedelta(days=1))
        (5400000, 250, 86400000)
    """
    if type(duration) is int and duration < EARLIEST:  # as most are
        ms = duration * 1000
    elif isinstance(duration, str):
        # The length first: the cache and the pattern must not see long texts.
        parsed_ms = _parse(duration) if len(duration) <= MAX_DURATION_TEXT else None
        if parsed_ms is None:
            shown = repr(duration[:MAX_DURATION_TEXT]) + "..." * (len(duration) > MAX_DURATION_TEXT)
            raise InvalidArgument(
                f"{what}={shown} is not a valid duration; write '250ms', '30s', '30m', "
                "'1h30m' or '7d', or give seconds or a timedelta"
            )
        ms = parsed_ms
    elif isinstance(duration, timedelta):
        # Subclasses redefine the operators: pendulum's cannot be divided by a timedelta.
        ms = _rounded_up(_whole_us(timedelta.total_seconds(duration), what))
    else:
        forms = "seconds, a timedelta, or a string such as '30m'"
        ms = _rounded_up(_whole_us(duration, what, forms))
        check_length(duration, what)
    if 0 <= ms <= LATEST:
        return ms
    if ms < 0:
        hint = "; for now give 0, for a time in the past use at=" if what == "delay" else ""
        raise InvalidArgument(f"{what}={duration!r} is negative{hint}")
    hint = "" if isinstance(duration, str) else "; are those seconds?"
    raise InvalidArgument(f"{what}={duration!r} is longer than {MAX_YEARS} years{hint}")


def check_length(seconds: float, what: str, weeks: str = "'2000w'") -> None:
    """Refuse Unix seconds as a length of time: `delay=time.time() + 60` would be due in 2083.

    Args:
        seconds: a number that a caller gave for a duration.
        what: the name of the argument, for the error.
        weeks: how to write a length of two thousand weeks instead.

    Raises:
        InvalidArgument: it is a time from 2001 to 2100.
    """
    if EARLIEST <= seconds <= LATEST // 1000:
        fix = "for a time use at=" if what == "delay" else "give a length"
        raise InvalidArgument(
            f"{what}={seconds!r} looks like a time in Unix seconds, "
            f"{iso(round(seconds * 1000))}, but it is a length of "
            f"{seconds / (365.25 * 86_400):.0f} years; {fix}, or write such a length in weeks, "
            f"as {weeks}"
        )


def _whole_us(seconds: float, what: str, forms: str = "") -> int:
    """Return whole microseconds, from which callers round to milliseconds.

    1.1 seconds are 1,100.0000000000002 ms in floating point, and must not be 1,101.

    Args:
        seconds: a number.
        what: the name of the argument, for the error.
        forms: the forms that it may have, for the error if it is no number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"{what} cannot be of type {type(seconds).__name__}; give {forms}")
    if isinstance(seconds, float) and not math.isfinite(seconds * 1000):
        raise InvalidArgument(f"{what}={seconds!r} is not a finite number of seconds")
    if abs(seconds) > LATEST:  # the caller refuses it
        return round(seconds * 1000) * 1000
    return round(seconds * 1_000_000)


def _rounded_up(us: int) -> int:
    """Return microseconds as whole milliseconds: a message is never early."""
    return -(-us // MICROSECONDS)


@lru_cache(maxsize=512)
def _parse(text: str) -> int | None:
    """Return a duration that is a text in milliseconds; `None`: the text is none.

    One that is negative is refused by the caller, with another error.
    """
    unsigned = text.lstrip().removeprefix("-")
    if not _WHOLE.fullmatch(unsigned):
        return None
    seconds = 0.0
    for number, unit in _PART.findall(unsigned):
        seconds += float(number) * _UNITS[unit] / 1000
    ms = _rounded_up(_whole_us(seconds, "duration"))
    is_negative = unsigned != text.lstrip()
    return -ms if is_negative else ms


def unix(moment: Moment, what: str = "at", *, rounding: Literal["up", "down"] = "up") -> int:
    """Return a time in whole Unix milliseconds.

    Args:
        moment: an aware `datetime`, or Unix seconds.
        what: the name of the argument, for the error.
        rounding: "up" so that a message is never early; "down" for a time after which something
            is looked for, so that nothing within its millisecond is left out.

    Raises:
        InvalidArgument: the datetime is naive, the time is before 1970 or after 2100, or a number
            is not 0 and a time before 2001: then it is a year or a delay.

    Example:
        >>> unix(datetime(2030, 1, 1, tzinfo=UTC))
        1893456000000
        >>> unix(1_900_000_000.0001), unix(1_900_000_000.0001, rounding="down")
        (1900000000001, 1900000000000)
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None or moment.utcoffset() is None:
            raise InvalidArgument(
                f"{what}={moment.isoformat(sep=' ')} has no time zone; add "
                "one: datetime(..., tzinfo=UTC), datetime.now(UTC), or .astimezone() for local time"
            )
        # Subclasses redefine the operators: pendulum's difference is none of the standard library.
        us = datetime.__sub__(moment, _EPOCH) // _US
    else:
        forms = "an aware datetime, as datetime.fromisoformat(...) reads it, or Unix seconds"
        us = _whole_us(moment, what, forms)
        check_time(moment, what)
    ms = _rounded_up(us) if rounding == "up" else us // MICROSECONDS
    if not 0 <= ms <= LATEST:
        seems_ms = ms > LATEST and not isinstance(moment, datetime)
        hint = "; that looks like milliseconds, give seconds" if seems_ms else ""
        raise InvalidArgument(f"{what}={moment!r} is not between 1970 and 2100{hint}")
    return ms


def check_time(seconds: float, what: str) -> None:
    """Refuse a number as a time that is in the last century as Unix seconds, but for 0.

    Args:
        seconds: a number that a caller gave for a time.
        what: the name of the argument, for the error.

    Raises:
        InvalidArgument: it is a year or a delay.
    """
    if not 0 < seconds < EARLIEST:
        return
    if 1970 <= seconds <= 2100:
        year = int(seconds)
        fix = f"for a year write {year}-01-01T00:00Z (in Python datetime({year}, 1, 1, tzinfo=UTC))"
    else:
        fix = "write a time with its date (in Python a datetime with a time zone)"
        if what == "at":
            fix += ", or use delay= for seconds from now"
    raise InvalidArgument(
        f"{what}={seconds!r} is {iso(int(seconds * 1000))} in Unix seconds; times before 2001 are "
        f"taken for a mistake: {fix}"
    )


def when(delay: Duration | None, at: Moment | str | None) -> tuple[int | None, int]:
    """Return a due time in Unix milliseconds, or `None` and a delay in milliseconds.

    Args:
        delay: how long from now until it is due.
        at: the due time instead; as text in ISO 8601 with an offset.

    Raises:
        InvalidArgument: both are given, one is invalid, or the due time is after 2100.

    Example:
        >>> when("1m", None), when(None, 1_900_000_000)
        ((None, 60000), (1900000000000, 0))
    """
    if at is not None:
        if delay is not None:
            raise InvalidArgument("give delay= or at=, not both")
        return unix(_instant_of(at) if isinstance(at, str) else at), 0
    return None, delay_in_ms(delay)


def _instant_of(text: str) -> datetime:
    """Return the instant that a text in ISO 8601 names.

    Raises:
        InvalidArgument: it is no date and time, or has no offset, and so is a local date.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"at={text[:64]!r} is not a date and time; write at='2027-03-28T09:00+02:00', or "
            "at='2027-03-28 09:00', timezone='Europe/Paris'"
        ) from None
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"at={text[:64]!r} is a local date: add its zone, such as timezone='Europe/Paris', or "
            "its offset, such as '+02:00'"
        )
    return moment


def delay_in_ms(delay: Duration | None) -> int:
    """Return a delay in milliseconds; 0 if none is given.

    Raises:
        InvalidArgument: it is no duration, or ends after 2100.
    """
    if delay is None:
        return 0
    ms = milliseconds(delay)
    if ms > _FAR and ms + time.time_ns() // 1_000_000 > LATEST:
        hint = "" if isinstance(delay, str) else "; are those seconds?"
        raise InvalidArgument(f"delay={delay!r} ends past the year 2100{hint}")
    return ms


def place_in_span(id: str, span: int) -> int:
    """Return where in a span of time a message of this id is due, in milliseconds from its start.

    The places of many ids are spread evenly; that of one id is always the same. It is the first 8
    bytes of the SHA-256 of the id in UTF-8, as a fraction of 1, times the span.

    Example:
        >>> [place_in_span(id, 900_000) for id in ("user-1", "user-2", "user-1")]
        [698765, 763486, 698765]
    """
    fraction_of_2_64 = int.from_bytes(hashlib.sha256(id.encode()).digest()[:8])
    return fraction_of_2_64 * span >> 64


def spread_out(due: tuple[int | None, int], id: str, spread: Duration) -> tuple[int | None, int]:
    """Return a due time within a span that starts at `due`, always the same for an id.

    Args:
        due: a due time or a delay, as `when` returns it.
        id: of the message.
        spread: how long the span is.

    Raises:
        InvalidArgument: the span is not valid, or ends after 2100.
    """
    span = milliseconds(spread, "spread")
    at_ms, delay_ms = due
    if span > _FAR and (at_ms or time.time_ns() // 1_000_000 + delay_ms) + span > LATEST:
        raise InvalidArgument(f"spread={spread!r} ends past the year 2100")
    place = place_in_span(id, span)
    return (None, delay_ms + place) if at_ms is None else (at_ms + place, 0)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(ms: int) -> datetime:
    """Return Unix milliseconds as an aware `datetime` in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def iso(ms: int) -> str:
    """Return Unix milliseconds as ISO 8601 in UTC.

    Example:
        >>> iso(1_700_000_000_000)
        '2023-11-14T22:13:20.000Z'
    """
    return to_datetime(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(ms: float) -> str:
    """Return a duration as text: its two largest units that are not zero.

    Of one below ten seconds it shows tenths.

    Example:
        >>> format_duration(5_400_000), format_duration(12), format_duration(90_061_000)
        ('1h30m', '12ms', '1d1h')
        >>> format_duration(1_800)
        '1.8s'
    """
    sign = "-" if ms < 0 else ""
    remaining = round(abs(ms))
    if SECOND_MS <= remaining < 10 * SECOND_MS:
        return f"{sign}{remaining // 100 / 10:g}s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, remaining = divmod(remaining, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and unit == "s"):  # milliseconds are shown alone only
            break
    return sign + ("".join(parts) or "0s")


# Rates: so many messages per second, minute, hour or day, evenly spaced.
#
# A rate is kept as the interval from one message to the next, in microseconds. Spacing follows the
# generic cell rate algorithm (ITU-T I.371): a queue or group has the time at which its last message
# was served, and the next may be served one interval later. A queue that was idle, or a worker that
# woke late, may catch up on `CREDIT` of it and no more. So in any span of `w` seconds at most
# `rate * (w + 0.01) + 1` messages are served, and over a long time `rate` per second.

LIMITS = ("limit", "rate", "group_limit", "group_rate")
"""The settings that make a queue a limited one, by name."""

CREDIT = 10_000
"""How far, in microseconds, the time of the last message may lag behind the clock."""

MAX_RATE = 100_000
"""The highest rate per second: above it, rounding to microseconds would be felt."""

SLOWEST = 86_400_000_000
"""The longest interval in microseconds: one message a day."""

Rate = float | str
"""Messages per second, or a string: "5/s", "100/m", "1000/h", "20/d"."""

_RATE_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": SLOWEST}
"""The length of each unit of a rate, in microseconds, the shortest first."""

_RATE = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(?:/\s*([smhd])\s*)?")


def interval(rate: Rate, what: str = "rate") -> int:
    """Return the interval of a rate in microseconds, rounded up; 0 for a rate of 0: no limit.

    Args:
        rate: messages per second, or a string such as "100/m" (units s, m, h, d) or "5".
        what: the name of the argument, for the error.

    Raises:
        InvalidArgument: it is not of one of these forms, or not from 1 a day to 100,000 a second.

    Example:
        >>> interval(5), interval("100/m"), interval(0)
        (200000, 600000, 0)
    """
    count, unit_us = rate, _RATE_UNITS["s"]
    if isinstance(rate, str):
        match = _RATE.fullmatch(rate[:64])
        if match is None or len(rate) > 64:
            raise InvalidArgument(
                f"{what}={rate[:64]!r} is not a valid rate; write '5/s', '100/m', '1000/h' or "
                "'20/d', or give messages per second"
            )
        count, unit_us = float(match[1]), _RATE_UNITS[match[2] or "s"]
    if isinstance(count, bool) or not isinstance(count, (int, float)):
        raise InvalidArgument(
            f"{what} cannot be of type {type(rate).__name__}; give messages per second, or a "
            "string "
            "such as '100/m'"
        )
    if count == 0:
        return 0
    # NaN is not within any bounds.
    if not unit_us / SLOWEST <= count <= MAX_RATE * unit_us / _RATE_UNITS["s"]:
        raise InvalidArgument(
            f"{what}={rate!r} is not from '1/d' to '{MAX_RATE}/s'; 0 means no limit"
        )
    return _whole_interval(unit_us, count)


def _whole_interval(unit_us: int, count: float) -> int:
    """Return the interval of `count` messages in a unit of time, in microseconds, rounded up."""
    # Rounded to millionths before, so that an error of floating point adds no microsecond.
    return math.ceil(round(unit_us / count, 6))


def rate_text(us: int) -> str:
    """Return the rate of an interval as text, by the shortest time in which it is a whole number.

    Example:
        >>> [rate_text(interval(rate)) for rate in (5, "100/m", "7/s", "1.5/s", "30/m", "48/d")]
        ['5/s', '100/m', '7/s', '90/m', '30/m', '2/h']
    """
    for unit, unit_us in _RATE_UNITS.items():
        count = max(1, round(unit_us / us))
        if _whole_interval(unit_us, count) == us:
            return f"{count}/{unit}"
    return f"{_RATE_UNITS['s'] / us:.6g}/s"


def limits_of(settings: Any) -> dict[str, Any]:
    """Return the limits in settings or counts as people and programs read them: rates as text.

    Example:
        >>> from bide.model.replies import QueueSettings
        >>> limits_of(QueueSettings(paused=False, keep=0, limit=3, group_rate=600_000))
        {'limit': 3, 'rate': None, 'group_limit': 0, 'group_rate': '100/m'}
    """
    limits: dict[str, Any] = {name: getattr(settings, name) for name in LIMITS}
    for name in ("rate", "group_rate"):
        limits[name] = rate_text(getattr(settings, name)) if limits[name] else None
    return limits


def limits_text(settings: Any) -> str:
    """Return the limits in settings or counts as text, empty if there are none.

    Example:
        >>> from bide.model.replies import QueueSettings
        >>> limits_text(QueueSettings(paused=False, keep=0, limit=3, group_rate=600_000))
        'limit 3, group rate 100/m'
    """
    limits = limits_of(settings).items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in limits if value)


def settings_text(settings: Mapping[str, int | str]) -> str:
    """Return settings of a queue, by name as `Configure` takes them, as text.

    Example:
        >>> settings_text({"limit": 3, "rate": 600_000, "history": 3_600_000, "keep": 0})
        'limit 3, rate 100/m, history 1h, keep off'
    """

    def value_text(name: str, value: int | str) -> str:
        if not value:
            return "off"
        if isinstance(value, str):
            return value
        if name.endswith("rate"):
            return rate_text(value)
        return str(value) if name.endswith("limit") else format_duration(value)

    return ", ".join(
        f"{name.replace('_', ' ')} {value_text(name, value)}" for name, value in settings.items()
    )


def served(last: int, us: int, now: int) -> int:
    """Return the time at which a message that is served `now` counts as served, in microseconds.

    It may be served if `last + us` has come; the next one may be at the returned time + `us`.

    Args:
        last: the time of the message before, 0 if there was none.
        us: the interval; 0: no limit.
        now: the time, in microseconds.

    Example:
        >>> served(1_000_000, 100_000, 1_100_400)
        1100000
        >>> served(1_000_000, 100_000, 9_000_000)
        8990000
    """
    return max(last + us, now - CREDIT)
