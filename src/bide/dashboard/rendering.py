"""Pages from templates, in the language of the visitor."""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, PackageLoader, StrictUndefined

from bide.dashboard.time_axis import MINUTE, SPANS
from bide.model.times import format_duration, to_datetime
from bide.observing.sentences import rule_in_words, window_in_words


def sparkline(values: Sequence[float]) -> str:
    """Return the points of a line of 100 by 20 units; "" for fewer than two values.

    Example:
        >>> sparkline([0, 5, 10])
        '0,19 50,10 100,1'
    """
    if len(values) < 2:
        return ""
    most, step = max(values) or 1, 100 / (len(values) - 1)
    return " ".join(
        f"{round(number * step, 1):g},{round(19 - value / most * 18, 1):g}"
        for number, value in enumerate(values)
    )


LANGUAGES = {"en": "English", "zh": "简体中文"}


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, str]:
    """Return the Chinese texts, by the English ones."""
    return tomllib.loads(files("bide.dashboard").joinpath("chinese.toml").read_text("utf-8"))


def language_of(chosen: str | None, accepted: str | None) -> str:
    """Return a language: the chosen one, or the first of those that the browser asks for.

    Example:
        >>> language_of(None, "fr;q=0.9, zh-CN;q=0.8"), language_of("en", "zh")
        ('zh', 'en')
    """
    if chosen in LANGUAGES:
        return chosen
    preferences: list[tuple[float, str]] = []
    for part in (accepted or "").split(",")[:20]:  # a browser sends fewer
        tag, _, weight = part.strip().partition(";q=")
        language = tag.partition("-")[0].lower()  # zh-CN is zh
        try:
            preferences.append((float(weight or 1), language))
        except ValueError:
            continue
    # Of equal weights, the first one counts: `sorted` keeps their order.
    for _weight, language in sorted(preferences, key=itemgetter(0), reverse=True):
        if language in LANGUAGES:
            return language
    return "en"


def render(template: str, language: str, context: Mapping[str, Any]) -> bytes:
    """Return a page."""
    page = _environment(language).get_template(template)
    return page.render(context).encode()


@lru_cache(maxsize=len(LANGUAGES))
def _environment(language: str) -> Environment:
    """Return the templates with the texts, filters and variables that all pages use."""
    environment = Environment(
        loader=PackageLoader("bide.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n"],
    )
    texts: Mapping[str, str] = catalogue() if language == "zh" else {}
    environment.install_gettext_callables(  # type: ignore[attr-defined]
        lambda text: texts.get(text, text),
        lambda singular, plural, count: texts.get(plural, singular if count == 1 else plural),
        newstyle=True,
    )
    environment.filters |= {
        "number": number,
        "moment": partial(moment, language=language),
        "iso": iso,
        "rate": rate,
        "day": partial(day, language=language),
        "minute": minute,
        "local_minute": local_minute,
        "local_time": local_time,
        "quantile": quantile,
        "lasting": format_duration,
        "rule": partial(rule_in_words, language=language),
        "window": partial(window_in_words, language=language),
    }
    environment.globals |= {
        "edition": edition(),
        "language": language,
        "languages": LANGUAGES,
        "spans": list(SPANS),
    }
    return environment


def number(value: int) -> str:
    """Return a count with separators."""
    return f"{value:,}"


def rate(value: float | None) -> str:
    """Return a rate per second, in three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def quantile(ms: float | None) -> str:
    """Return a quantile of lateness as people write it; `None` is half an hour or more."""
    if ms is None:
        return "> 30m"
    return f"{ms:g}ms" if ms < 1_000 else format_duration(round(ms))


def minute(ms: int) -> str:
    """Return the time of a day in UTC."""
    return f"{to_datetime(ms):%H:%M}"


MOST_ZONE_NAME = 64
"""The most characters of the name of a time zone."""


def zone_of(name: str | None, now: int) -> ZoneInfo | None:
    """Return the time zone of a visitor; `None` if it is not known here, or the same as UTC.

    Args:
        name: what the browser says.
        now: in Unix milliseconds.

    Example:
        >>> zone_of("Etc/UTC", 0), zone_of("../etc/passwd", 0), zone_of("Asia/Tokyo", 0)
        (None, None, zoneinfo.ZoneInfo(key='Asia/Tokyo'))
    """
    if not name or len(name) > MOST_ZONE_NAME:
        return None
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):  # no name, or none that is installed
        return None
    return zone if to_datetime(now).astimezone(zone).utcoffset() else None


def local_minute(ms: int, zone: ZoneInfo) -> str:
    """Return the time of a day in the zone of a visitor."""
    return f"{to_datetime(ms).astimezone(zone):%H:%M}"


def local_time(ms: int, zone: ZoneInfo) -> str:
    """Return a time in the zone of a visitor, with its date."""
    return f"{to_datetime(ms).astimezone(zone):%Y-%m-%d %H:%M:%S} {zone.key}"


def day(ms: int, language: str) -> str:
    """Return the day of a time in UTC, without the year.

    Example:
        >>> day(0, "en"), day(0, "zh")
        ('01 Jan', '1月1日')
    """
    when = to_datetime(ms)
    return f"{when.month}月{when.day}日" if language == "zh" else f"{when:%d %b}"


def moment(ms: int, now: int, language: str) -> str:
    """Return a time in UTC, as short as is clear now."""
    when, today = to_datetime(ms), to_datetime(now)
    if abs(ms - now) < 10 * MINUTE:
        return f"{when:%H:%M:%S}"
    if when.date() == today.date():
        return minute(ms)
    if when.year == today.year:
        return f"{day(ms, language)} {minute(ms)}"
    year, date = when.year, day(ms, language)
    return f"{year}年{date}" if language == "zh" else f"{date} {year}"


def iso(ms: int) -> str:
    """Return a time for programs and form fields: UTC without a zone, to the millisecond."""
    when: datetime = to_datetime(ms)
    return when.replace(tzinfo=None).isoformat(timespec="milliseconds")


STATIC = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@lru_cache(maxsize=len(STATIC))
def static_file(name: str) -> bytes:
    """Return a file that the pages need."""
    return files("bide.dashboard").joinpath("static", name).read_bytes()


@lru_cache(maxsize=1)
def edition() -> str:
    """Return what differs if these files do: browsers keep them for an hour by their URL."""
    return sha256(b"".join(map(static_file, STATIC))).hexdigest()[:8]
