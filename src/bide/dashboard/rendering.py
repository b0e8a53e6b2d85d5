"""Pages from templates, in the language of the visitor."""

import tomllib
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from bide.dashboard.answering import edition
from bide.dashboard.chart import SPANS
from bide.model.times import format_duration, to_datetime

LANGUAGES = {"en": "English", "zh": "简体中文"}

MINUTE = 60_000


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
    asked = []
    for number, part in enumerate((accepted or "").split(",")[:20]):
        name, _, weight = part.strip().partition(";q=")
        try:
            asked.append((-float(weight or 1), number, name.partition("-")[0].lower()))
        except ValueError:
            continue
    return next((name for _, _, name in sorted(asked) if name in LANGUAGES), "en")


def render(template: str, language: str, context: Mapping[str, Any]) -> bytes:
    """Return a page."""
    found = _environment(language).get_template(template)
    return found.render(context).encode()


@lru_cache(maxsize=len(LANGUAGES))
def _environment(language: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("bide.dashboard"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False, extensions=["jinja2.ext.i18n"],
    )  # fmt: skip
    texts: Mapping[str, str] = catalogue() if language == "zh" else {}
    environment.install_gettext_callables(  # type: ignore[attr-defined]
        lambda text: texts.get(text, text),
        lambda one, many, count: texts.get(many, one if count == 1 else many),
        newstyle=True,
    )
    environment.filters |= {
        "number": number, "moment": partial(moment, language=language), "iso": iso, "rate": rate,
        "day": partial(day, language=language), "minute": minute, "seconds": seconds,
        "lasting": format_duration,
    }  # fmt: skip
    environment.globals |= {
        "edition": edition(), "language": language, "languages": LANGUAGES, "spans": list(SPANS),
    }  # fmt: skip
    return environment


def number(value: int) -> str:
    """Return a count with separators."""
    return f"{value:,}"


def rate(value: float | None) -> str:
    """Return a rate per second, in three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Return a time in seconds as people write it; `None` is half an hour or more."""
    if value is None:
        return "> 30m"
    return f"{value * 1000:g}ms" if value < 1 else format_duration(round(value * 1000))


def minute(ms: int) -> str:
    """Return the time of a day in UTC."""
    return f"{to_datetime(ms):%H:%M}"


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
