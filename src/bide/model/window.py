"""Windows: the hours of a week in which messages are delivered, in a time zone, without holidays.

All here are pure functions of a window and a moment. What counts is what a clock on the wall shows:
a window is open while that shows one of its times, on a day that is no holiday.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import groupby
from typing import ClassVar
from zoneinfo import ZoneInfo

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.times import DAY_MS, HOUR_MS, LATEST, MINUTE_MS
from bide.model.zones import ZoneData, own_version, zone_of

LONGEST_HOURS = 256
"""The maximum length of the hours of a window, in characters."""

MAX_HOLIDAYS = 1_000
"""The maximum number of holidays of a window; a message has room for fewer."""

FIRST_YEAR, LAST_YEAR = 1970, 2100
"""The years in which holidays may be: those of all due times."""

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

STEADY = 4 * 7 * DAY_MS
"""No zone keeps an offset for less than four weeks, so its clocks change once at most meanwhile."""

_EPOCH = date(1970, 1, 1)
_EPOCH_WEEKDAY = _EPOCH.weekday()

_DAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?)"
_TIME = r"(?:[0-9]{1,2}(?::[0-9]{2})?)"
_DAY_RANGE = re.compile(rf"({_DAY})(?:-({_DAY}))?")
_LONG_SPAN = re.compile(rf"({_DAY}) ({_TIME})-({_DAY}) ({_TIME})")
_TIMES = re.compile(rf"(?:({_DAY}(?:-{_DAY})?)(?: |$))?(?:({_TIME})-({_TIME}))?")

Span = tuple[int, int]
"""From one time to another, in milliseconds; the second one is not in it."""


@dataclass(frozen=True, init=False)
class Window:
    """The hours of a week in which messages are delivered.

    Args:
        hours: days and times of the week, such as "Mon-Fri 09:00-18:00",
            "Mon-Fri 09:00-12:00, 13:00-18:00; Sat 10:00-14:00", "22:00-06:00" (each night),
            "Fri 22:00-Mon 06:00", or "Sat-Sun" (all day). Days are named by their first three
            letters or in full, in any case. A time without a day is of each day; one that ends
            before it begins ends on the next day.
        timezone: of these hours, such as "Europe/Berlin".
        holidays: days on which it is closed, from midnight to midnight: each a `date` or a text
            such as "2026-12-25"; or the path of an iCalendar file, of which the whole-day events
            of the next two years are read now. That needs the extra `calendars`.

    Raises:
        InvalidArgument: an argument is not valid.

    Example:
        >>> print(Window("mon-fri 9-18", "Europe/Berlin", holidays=["2026-12-25"]))
        Mon-Fri 09:00-18:00 in Europe/Berlin, but not on 2026-12-25
    """

    hours: str
    timezone: str
    holidays: tuple[date, ...]

    def __init__(
        self,
        hours: str,
        timezone: str = "UTC",
        holidays: "Iterable[date | str] | str | os.PathLike[str]" = (),
    ) -> None:
        if not isinstance(hours, str):
            raise InvalidArgument(f"the hours of a window must be a str, not {hours!r}")
        object.__setattr__(self, "hours", _parsed(hours).text)
        zone_of(timezone)
        object.__setattr__(self, "timezone", timezone)
        if isinstance(holidays, (str, os.PathLike)):
            from bide.model.calendar_file import holidays_in  # here: few windows have such a file

            holidays = holidays_in(holidays)
        object.__setattr__(self, "holidays", _days_of(holidays))

    def __str__(self) -> str:
        text = f"{self.hours} in {self.timezone}"
        if not self.holidays:
            return text
        shown = ", ".join(map(str, self.holidays[:3]))
        more = len(self.holidays) - 3
        return f"{text}, but not on {shown}" + (f" and {more} more" if more > 0 else "")

    @property
    def zones(self) -> str:
        """The version of the time zones of this process; empty if its hours need none."""
        return "" if self.timezone == "UTC" else own_version()

    def by(self, zones: ZoneData) -> "Window":
        """Return the window by other data of time zones.

        Raises:
            InvalidArgument: they do not have its zone.
        """
        if zones.zone is zone_of:
            return self
        other = Window(self.hours, self.timezone, self.holidays)
        object.__setattr__(other, "_zone", zones.zone(self.timezone))
        return other

    def is_open(self, moment: int) -> bool:
        """Return whether it is open at a time in Unix milliseconds.

        Example:
            >>> Window("Thu 00:00-01:00").is_open(0), Window("Fri").is_open(0)
            (True, False)
        """
        return self.opening(moment) == moment

    def opening(self, moment: int) -> int:
        """Return a time if it is open then, or else when it opens next, in Unix milliseconds.

        Example:
            >>> Window("Thu 01:00-02:00").opening(0)
            3600000
        """
        since, opening = self._known_opening
        if not since <= moment <= opening:
            first = self._first(moment, self._first_open)
            opening = LATEST if first is None else min(first, LATEST)
            object.__setattr__(self, "_known_opening", (moment, opening))
        return opening

    def closing(self, moment: int) -> int | None:
        """Return a time if it is closed then, or else when it closes; `None`: it never does.

        Example:
            >>> Window("Thu 00:00-02:00").closing(0), Window("Mon-Sun").closing(0)
            (7200000, None)
        """
        since, closing = self._known_closing
        if not since <= moment < closing:
            first = self._first(moment, self._first_closed)
            if first is None:
                return None
            closing = first
            object.__setattr__(self, "_known_closing", (moment, closing))
        return closing

    def closed_since(self, moment: int) -> int:
        """Return the first time that has the same opening as another one.

        That is the time itself while it is open, unless it has just opened, or else when it closed.

        Example:
            >>> Window("Thu 00:00-02:00, Thu 03:00-04:00").closed_since(10_800_000)
            7200000
        """
        since, opening = self._known_closed
        if not since <= moment <= opening:
            since, opening = moment, self.opening(moment)
            for start, end in self.closed_between(self._open_before(moment), opening):
                if end == opening:
                    since = start
            object.__setattr__(self, "_known_closed", (since, opening))
        return since

    def closed_between(self, start: int, end: int) -> Iterator[Span]:
        """Yield when it is closed between two times.

        Example:
            >>> list(Window("01:00-02:00").closed_between(0, 10_800_000))
            [(0, 3600000), (7200000, 10800000)]
        """
        closing = self._first(start, self._first_closed, end)
        while closing is not None and closing < end:
            opening = min(self.opening(closing), end)
            yield closing, opening
            closing = self._first(opening, self._first_closed, end)

    @property
    def dense_holidays(self) -> str:
        """The holidays in few characters, as the rule of a message has them.

        Example:
            >>> days = ["2026-12-24", "2026-12-25", "2026-12-26", "2027-01-01", "2027-05-01"]
            >>> Window("Mon-Fri", holidays=days).dense_holidays
            '2026:1224-1226 2027:0101,0501'
        """
        by_year = groupby(_runs_of(self.holidays), lambda run: run[0].year)
        return " ".join(
            f"{year}:" + ",".join(_dense(first, last) for first, last in runs)
            for year, runs in by_year
        )

    @cached_property
    def _zone(self) -> ZoneInfo:
        return zone_of(self.timezone)

    # Many messages have one window, and times that are near each other.

    _known_opening: ClassVar[Span] = 1, 0
    """A moment and its opening, which is that of all moments in between, too."""
    _known_closing: ClassVar[Span] = 1, 0
    """A moment at which it is open and its closing, which is that of all moments in between."""
    _known_closed: ClassVar[Span] = 1, 0
    """The first time that has an opening, and that opening."""

    @cached_property
    def _closed_days(self) -> frozenset[int]:
        """The holidays, as numbers of days since 1970."""
        return frozenset((day - _EPOCH).days for day in self.holidays)

    def _first(
        self, moment: int, look: Callable[[int], int | None], until: int = LATEST
    ) -> int | None:
        """Return the first time from a moment on at which the wall clock shows what is looked for.

        Args:
            moment: in Unix milliseconds.
            look: returns the first such time from another one on, both as the wall clock shows
                them, in milliseconds; `None`: there is none. It is called again where the clocks
                change.
            until: what is later may not be found.
        """
        start, offset = moment, self._offset(moment)
        shown = look(start + offset)
        while shown is not None and start < until:
            end = min(shown - offset, start + STEADY)
            if self._offset(end) != offset:  # the clocks change until then, at the latest
                start = self._change(start, end)
                offset = self._offset(start)
                shown = look(start + offset)
            elif end == shown - offset:
                return end
            else:
                start = end
        return None

    def _offset(self, moment: int) -> int:
        """Return how far the wall clock is ahead of UTC, in milliseconds."""
        offset = datetime.fromtimestamp(moment // 1000, self._zone).utcoffset()
        return (offset or timedelta()) // timedelta(milliseconds=1)

    def _change(self, start: int, end: int) -> int:
        """Return when the offset changes, after `start` and at `end` at the latest."""
        offset = self._offset(start)
        seconds = range(start // 1000 + 1, end // 1000 + 1)
        place = bisect_left(seconds, True, key=lambda second: self._offset(second * 1000) != offset)
        return seconds[place] * 1000

    def _first_open(self, shown: int) -> int | None:
        """Return when it is open next, as the wall clock shows it."""
        spans = _parsed(self.hours).spans
        day = shown // DAY_MS
        # Each holiday may be the only day of its week on which it would be open.
        for number in range(day, day + 7 * (len(self._closed_days) + 1) + 1):
            if number in self._closed_days:
                continue
            for start, end in spans[(number + _EPOCH_WEEKDAY) % 7]:
                opening = max(number * DAY_MS + start, shown)
                if opening < number * DAY_MS + end:
                    return opening
        return None

    def _open_before(self, moment: int) -> int:
        """Return a time before the last one before a moment at which it was open; 0: none was."""
        spans = _parsed(self.hours).spans
        day, left = (moment + self._offset(moment)) // DAY_MS, 2  # today it may open later only
        while day > 0 and left:
            left -= bool(spans[(day + _EPOCH_WEEKDAY) % 7]) and day not in self._closed_days
            day -= 1
        return max(0, day * DAY_MS)  # a day earlier: no zone is that far from UTC

    def _first_closed(self, shown: int) -> int | None:
        """Return when it is closed next, as the wall clock shows it; `None`: it never is."""
        hours, closing = _parsed(self.hours), shown
        if hours.are_always:  # then only holidays close it
            today = _EPOCH + timedelta(days=shown // DAY_MS)
            holidays = self.holidays[bisect_left(self.holidays, today) :]
            return max(shown, (holidays[0] - _EPOCH).days * DAY_MS) if holidays else None
        while True:  # until a time of the week that is none of its hours, at the latest
            number, time = divmod(closing, DAY_MS)
            ends = [
                end
                for start, end in hours.spans[(number + _EPOCH_WEEKDAY) % 7]
                if start <= time < end and number not in self._closed_days
            ]
            if not ends:
                return closing
            closing = number * DAY_MS + max(ends)


@dataclass(frozen=True)
class _Hours:
    """Hours of a week as they are written, and as spans of each day."""

    text: str
    spans: tuple[tuple[Span, ...], ...]
    """Of each day from Monday on, in milliseconds after its midnight, the first one first."""

    @property
    def are_always(self) -> bool:
        """Whether they are all times of the week."""
        return self.spans == (((0, DAY_MS),),) * 7


@lru_cache(maxsize=512)
def _parsed(hours: str) -> _Hours:
    """Return the hours of a text.

    Raises:
        InvalidArgument: they cannot be read.
    """
    _check_length(hours, hours)
    plain = re.sub(r"\s*[-\u2013]\s*", "-", " ".join(hours.lower().split()))
    spans: list[Span] = []
    texts = []
    try:
        for part in plain.split(";"):
            text, part_spans = _part(part)
            texts.append(text)
            spans += part_spans
    except ValueError as error:
        raise InvalidArgument(
            f"window={hours!r} is not valid: {error}; write days and times as in 'Mon-Fri "
            "09:00-18:00', 'Mon-Fri 09:00-12:00, 13:00-18:00; Sat 10:00-14:00', '22:00-06:00' or "
            "'Fri 22:00-Mon 06:00'"
        ) from None
    usual = "; ".join(texts)
    _check_length(usual, hours)  # the rule of a message has it in this form
    return _Hours(usual, _by_day(spans))


def _check_length(text: str, hours: str) -> None:
    """Check the length of hours, in one form.

    Raises:
        InvalidArgument: they are too long.
    """
    if len(text) > LONGEST_HOURS:
        raise InvalidArgument(f"window={hours[:40]!r}... is longer than {LONGEST_HOURS} characters")


def _part(text: str) -> tuple[str, list[Span]]:
    """Return a part of hours in its usual form, and its spans in milliseconds of the week.

    Raises:
        ValueError: it cannot be read; the error says why.
    """
    spans: list[Span] = []
    written: list[str] = []
    days: list[int] | None = [*range(7)]  # `None`: a time that follows needs a day
    has_times = True  # whether the days before have times; those that follow are new ones
    for element in map(str.strip, text.split(",")):
        if (long := _LONG_SPAN.fullmatch(element)) is not None:
            first_day, start, last_day, end = long.groups()
            first, last = _day(first_day), _day(last_day)
            span = (
                first * DAY_MS + _time_of_day(start, end=False),
                last * DAY_MS + _time_of_day(end, end=True),
            )
            spans.append(_forward(span, 7 * DAY_MS))
            written.append(f"{DAYS[first]} {_time_text(start)}-{DAYS[last]} {_time_text(end)}")
            days, has_times = None, True
            continue
        match = _TIMES.fullmatch(element)
        if match is None or not element:
            raise ValueError(f"{element!r} is neither days nor times" if element else "it is empty")
        day_names, start, end = match.groups()
        if day_names is not None:
            days = _days(day_names) if has_times or days is None else [*days, *_days(day_names)]
            has_times = False
        written.append(_day_text(day_names))
        if start is not None:
            span = _forward((_time_of_day(start, end=False), _time_of_day(end, end=True)), DAY_MS)
            if days is None:
                raise ValueError(f"{element!r} names no day")
            spans += [(day * DAY_MS + span[0], day * DAY_MS + span[1]) for day in days]
            written[-1] = f"{written[-1]} {_time_text(start)}-{_time_text(end)}".strip()
            has_times = True
    if not has_times and days is not None:  # the last days are whole ones
        spans += [(day * DAY_MS, (day + 1) * DAY_MS) for day in days]
    return ", ".join(written), spans


def _forward(span: Span, period: int) -> Span:
    """Return a span whose end is after its start: in the next period, if need be.

    Raises:
        ValueError: it begins when it ends.
    """
    start, end = span
    if start == end:
        raise ValueError("a span ends when it begins; leave out the times of a whole day")
    return start, end if end > start else end + period


def _by_day(spans: Iterable[Span]) -> tuple[tuple[Span, ...], ...]:
    """Return spans of the week as those of each day, joined where they touch."""
    days: list[list[Span]] = [[] for _ in range(7)]
    for start, end in spans:
        for number in range(start // DAY_MS, -(-end // DAY_MS)):
            midnight = number * DAY_MS
            days[number % 7].append((max(start, midnight) - midnight, min(end - midnight, DAY_MS)))
    return tuple(tuple(_joined(sorted(day))) for day in days)


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield sorted spans, those that touch as one."""
    current: Span | None = None
    for start, end in spans:
        if current is not None and start <= current[1]:
            current = current[0], max(current[1], end)
            continue
        if current is not None:
            yield current
        current = start, end
    if current is not None:
        yield current


def _day(name: str) -> int:
    """Return the number of a day of the week, from Monday on."""
    return DAYS.index(name[:3].title())


def _days(names: str) -> list[int]:
    """Return the numbers of a day, or of a range of days, which may go over Sunday."""
    first, last = _ends(names)
    return [(first + number) % 7 for number in range((last - first) % 7 + 1)]


def _ends(names: str) -> tuple[int, int]:
    """Return the numbers of the first and the last day of a range."""
    match = _DAY_RANGE.fullmatch(names)
    assert match is not None
    return _day(match[1]), _day(match[2] or match[1])


def _day_text(names: str | None) -> str:
    """Return a day or a range of days in its usual form."""
    if names is None:
        return ""
    first, last = _ends(names)
    return DAYS[first] if first == last else f"{DAYS[first]}-{DAYS[last]}"


def _time_of_day(text: str, *, end: bool) -> int:
    """Return a time of the day in milliseconds after midnight.

    Args:
        text: the time, such as "9" or "09:30".
        end: whether it ends a span, so that it may be 24:00.

    Raises:
        ValueError: there is none, or it is 24:00 and begins a span.
    """
    hour, _, minute = text.partition(":")
    ms = int(hour) * HOUR_MS + int(minute or 0) * MINUTE_MS
    if int(minute or 0) > 59 or ms > DAY_MS or (ms == DAY_MS and not end):
        raise ValueError(f"{text} is not a time of the day")
    return ms


def _time_text(text: str) -> str:
    """Return a time in its usual form.

    Example:
        >>> _time_text("9")
        '09:00'
    """
    hour, _, minute = text.partition(":")
    return f"{int(hour):02}:{minute or '00'}"


def _days_of(holidays: object) -> tuple[date, ...]:
    """Return holidays in order, each once.

    Raises:
        InvalidArgument: one is no date, or there are too many.
    """
    if not isinstance(holidays, Iterable):
        raise InvalidArgument(
            f"holidays={holidays!r} must be a list of dates, or the path of an iCalendar file"
        )
    days = set()
    for holiday in holidays:
        day = holiday
        if isinstance(holiday, str):
            try:
                day = date.fromisoformat(holiday)
            except ValueError:
                day = None
        if not isinstance(day, date) or isinstance(day, datetime):
            raise InvalidArgument(
                f"holidays: {holiday!r} is not a date; write one as '2026-12-25', or give the "
                "path of an iCalendar file instead of the list"
            )
        if not FIRST_YEAR <= day.year <= LAST_YEAR:
            raise InvalidArgument(f"holidays: {day} is not from {FIRST_YEAR} to {LAST_YEAR}")
        days.add(date(day.year, day.month, day.day))
        if len(days) > MAX_HOLIDAYS:
            raise InvalidArgument(f"holidays has more than {MAX_HOLIDAYS:,} dates")
    return tuple(sorted(days))


def _runs_of(days: Iterable[date]) -> Iterator[tuple[date, date]]:
    """Yield the first and the last of days that follow each other within a year."""
    first: date | None = None
    last = _EPOCH
    for day in days:
        if first is not None and day - last == timedelta(days=1) and day.year == last.year:
            last = day
            continue
        if first is not None:
            yield first, last
        first = last = day
    if first is not None:
        yield first, last


def _dense(first: date, last: date) -> str:
    """Return days that follow each other, without their year."""
    return f"{first:%m%d}" if first == last else f"{first:%m%d}-{last:%m%d}"


_DENSE_YEAR = re.compile(r"([0-9]{4}):([0-9]{4}(?:-[0-9]{4})?(?:,[0-9]{4}(?:-[0-9]{4})?)*)")


def _holidays_of(dense: str) -> list[date]:
    """Return the holidays of a rule; see `Window.dense_holidays`.

    Raises:
        ValueError: the text has none.
    """
    days = []
    for word in dense.split():
        year = _DENSE_YEAR.fullmatch(word)
        if year is None:
            raise ValueError(dense)
        for run in year[2].split(","):
            first_text, _, last_text = run.partition("-")
            first = date.fromisoformat(year[1] + first_text)
            last = date.fromisoformat(year[1] + (last_text or first_text))
            days += [first + timedelta(days=number) for number in range((last - first).days + 1)]
    return days


class WindowText(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A window as the rule of a message has it."""

    hours: str
    timezone: str = "UTC"
    holidays: str = ""
    """See `Window.dense_holidays`."""

    @classmethod
    def of(cls, window: Window) -> "WindowText":
        """Return the text of a window."""
        return cls(window.hours, window.timezone, window.dense_holidays)

    @property
    def window(self) -> Window:
        """The window.

        Raises:
            InvalidArgument: the text is not that of a window, or its time zone is not known here.
        """
        try:
            holidays = _holidays_of(self.holidays)
        except ValueError:
            raise InvalidArgument(f"{self.holidays!r} are not holidays of a window") from None
        return Window(self.hours, self.timezone, holidays)
