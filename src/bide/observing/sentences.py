"""The clauses of `sentences.toml` with their values, and the rules of messages in words."""

import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from bide.model.errors import InvalidArgument
from bide.model.message import LAPSED
from bide.model.repeat import Cron, Every, Repeat
from bide.model.time_rule import repeat_of
from bide.model.times import DAY_MS, format_duration, to_datetime, unix
from bide.model.window import Window
from bide.model.zones import zone_of

SOON = 6 * DAY_MS
"""How far away a time is whose day of the week is not enough, in milliseconds."""

SHOWN_HOLIDAYS = 3
"""How many holidays of a window are shown."""

MOST_CHARACTERS = 300
"""How many characters of an error a sentence shows."""


@lru_cache(maxsize=1)
def clauses() -> Mapping[str, Mapping[str, Any]]:
    """Return the clauses by name, each by language: "en" and "zh"."""
    return tomllib.loads(files(__package__).joinpath("sentences.toml").read_text("utf-8"))


def render(clause: str, values: Mapping[str, Any], language: str) -> str:
    """Return a clause in a language.

    Example:
        >>> render("ahead", {"count": 1200}, "en")
        'messages delivered before it: 1,200'
    """
    texts = {name: _text(name, value, language) for name, value in values.items()}
    text: str = clauses()[clause][language].format_map(texts)
    return text


_TIME_NAMES = {"due", "since", "until", "start", "run", "next"}
_DURATION_NAMES = {"left", "late", "lasting"}
_COUNT_NAMES = {"count", "places", "running", "workers", "extended", "attempt", "attempts"}


def _text(name: str, value: Any, language: str) -> str:
    """Return a value of a clause as text; its name says what it is."""
    if value is None:
        return "-"
    if name in _TIME_NAMES:
        return f"{to_datetime(value):%Y-%m-%d %H:%M:%S} UTC"
    if name in _DURATION_NAMES:
        return format_duration(max(0, value))
    if name in _COUNT_NAMES:
        return f"{value:,}"
    if name == "rule":
        return rule_in_words(value, language)
    if isinstance(value, Opening):
        return value.in_words(language)
    if isinstance(value, Window):
        return window_in_words(value, language)
    if value == LAPSED:
        return str(clauses()["lease-lapsed"][language])
    first_line, *_ = str(value).splitlines() or [""]
    return first_line[:MOST_CHARACTERS] or "-"


class Opening(NamedTuple):
    """When a window opens, as a value of a clause."""

    moment: int
    """In Unix milliseconds."""
    timezone: str
    """The time zone of the window."""
    now: int
    """The time of the question."""

    def in_words(self, language: str) -> str:
        """Return the time as people say it in its time zone: with a date unless it is soon.

        Example:
            >>> Opening(0, "Europe/Berlin", 0).in_words("en")
            'Thursday 01:00'
            >>> Opening(0, "Zone/UnknownHere", 0).in_words("en")
            'Thursday 00:00 UTC'
        """
        try:
            zone, zone_name = zone_of(self.timezone), ""
        except InvalidArgument:  # the worker has other time zones
            zone, zone_name = zone_of("UTC"), " UTC"
        local = datetime.fromtimestamp(self.moment / 1000, zone)
        day = render(f"weekday {local.weekday()}", {}, language)
        date = f" {local:%Y-%m-%d}" if self.moment - self.now >= SOON else ""
        return f"{day}{date} {local:%H:%M}{zone_name}"


def window_in_words(window: Window, language: str = "en") -> str:
    """Return a window in words.

    Example:
        >>> window_in_words(Window("Mon-Fri", "Europe/Berlin", ["2026-12-25"]))
        'Mon-Fri in Europe/Berlin, but not on 2026-12-25'
    """
    values: dict[str, Any] = {"hours": window.hours, "timezone": window.timezone}
    if not window.holidays:
        return render("window hours", values, language)
    values["days"] = ", ".join(map(str, window.holidays[:SHOWN_HOLIDAYS]))
    more = len(window.holidays) - SHOWN_HOLIDAYS
    if more <= 0:
        return render("window holidays", values, language)
    return render("window more holidays", values | {"count": more}, language)


def rule_in_words(text: str, language: str = "en") -> str:
    """Return a rule in words; as it is, if it cannot be read here.

    Example:
        >>> rule_in_words('{"cron":"0 9 * * MON","timezone":"Europe/Berlin","times":10}')
        '0 9 * * MON in Europe/Berlin, 10 times'
        >>> rule_in_words('{"every":"15m","missed":"skip"}')
        'every 15m, missed runs are left out'
    """
    try:
        rule = repeat_of(text)
    except InvalidArgument:
        return text
    parts = [render(clause, values, language) for clause, values in _clauses_of(rule)]
    separator: str = clauses()["rule-separator"][language]
    return separator.join(parts)


def _clauses_of(rule: Repeat) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the clauses of a rule, and their values."""
    if isinstance(rule, Cron):
        yield "rule cron", {"cron": rule.expression, "timezone": rule.timezone}
    elif isinstance(rule, Every):
        yield "rule every", {"period": rule.period}
    if rule.start is not None:
        yield "rule start", {"start": unix(rule.start)}
    if rule.until is not None:
        yield "rule until", {"until": unix(rule.until)}
    if rule.times is not None:
        yield "rule once" if rule.times == 1 else "rule times", {"count": rule.times}
    if rule.missed != "once":
        yield f"rule missed {rule.missed}", {}
    if rule.grace is not None:
        yield "rule grace", {"grace": rule.grace}
