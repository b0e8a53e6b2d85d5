"""Holidays from a calendar file: the whole-day events of an iCalendar file (RFC 5545)."""

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from bide.model.errors import InvalidArgument

DAYS_AHEAD = 2 * 366
"""How many days are read, from yesterday on."""

MAX_FILE = 16 * 1024 * 1024
"""The maximum size of a calendar file, in bytes."""


def holidays_in(path: "str | os.PathLike[str]") -> list[date]:
    """Return the days of the whole-day events of a calendar file, for the next two years.

    Raises:
        InvalidArgument: the file cannot be read, or a package is missing.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"holidays={os.fspath(path)!r} cannot be read: {error}; it is the path of an iCalendar "
            "file, or a list of dates such as ['2026-12-25']"
        ) from error
    if len(text) > MAX_FILE:
        raise InvalidArgument(f"holidays={os.fspath(path)!r} has more than {MAX_FILE:,} bytes")
    try:
        # Yesterday in UTC may be today in the zone of the window.
        return whole_days(text, datetime.now(UTC).date() - timedelta(days=1))
    except InvalidArgument as error:
        raise InvalidArgument(f"holidays={os.fspath(path)!r}: {error}") from error


def whole_days(calendar: bytes, start: date) -> list[date]:
    """Return the days of the whole-day events of a calendar, for two years from a day on.

    Events that were cancelled do not count.

    Raises:
        InvalidArgument: it is no calendar, or a package is missing.
    """
    try:
        import recurring_ical_events
        from icalendar import Calendar
    except ImportError as error:
        raise InvalidArgument(
            "a calendar file needs the packages icalendar and recurring-ical-events: "
            "pip install 'bide[calendars]'; a list of dates needs none"
        ) from error
    end = start + timedelta(days=DAYS_AHEAD)
    try:
        events: list[Any] = recurring_ical_events.of(Calendar.from_ical(calendar)).between(
            start, end
        )
        spans = [_span_of(event) for event in events if not _is_cancelled(event)]
    except Exception as error:  # a file that is wrong raises one of many types
        raise InvalidArgument(f"it is not a calendar (iCalendar, RFC 5545): {error}") from error
    days = set()
    for first, after in spans:
        if isinstance(first, datetime):  # an appointment
            continue
        for number in range(max(1, (after - first).days)):
            day = first + timedelta(days=number)
            if start <= day < end:
                days.add(day)
    return sorted(days)


def _span_of(event: Any) -> tuple[Any, Any]:
    """Return when an event begins, and when it is over."""
    start = event["DTSTART"].dt
    return start, event["DTEND"].dt if "DTEND" in event else start


def _is_cancelled(event: Any) -> bool:
    """Return whether an event was called off."""
    return str(event.get("STATUS", "")).upper() == "CANCELLED"
