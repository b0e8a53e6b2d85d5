"""Pages from templates, in the language of the visitor."""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from bide.model.replies import Forecasted
from bide.model.times import format_duration, to_datetime
from bide.observing.sentences import rule_in_words, window_in_words

CHART_HEIGHT = 100.0
"""The height of a chart, in the units of its SVG."""

CHART_WIDTH = 1000.0

GAP = 0.2
"""What part of its place a bar leaves free."""

LEAST_HEIGHT = 1.5
"""The height of the bar of a single message, so that it is seen."""

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class Span(NamedTuple):
    """How far a forecast looks ahead. Times are milliseconds."""

    name: str
    bucket: int
    buckets: int
    step: int
    """How many bars there are from label to label."""

    @property
    def in_days(self) -> bool:
        """Whether the labels are dates."""
        return self.bucket * self.step >= DAY


SPANS = {
    span.name: span
    for span in (
        Span("1h", MINUTE, 60, 10),
        Span("6h", 5 * MINUTE, 72, 12),
        Span("24h", HOUR, 24, 4),
        Span("7d", 6 * HOUR, 28, 4),
        Span("30d", 24 * HOUR, 30, 5),
    )
}


class HistogramBar(msgspec.Struct, frozen=True):
    """One bar of a histogram."""

    x: float
    width: float
    y: float
    height: float
    count: int
    after: int
    """When its time begins, in Unix milliseconds."""
    before: int
    """When it ends."""


class DueHistogram(NamedTuple):
    """A forecast as bars."""

    bars: list[HistogramBar]
    labels: list[int]
    """Times below the chart, at equal distances, in Unix milliseconds."""
    most: int
    """The highest count."""
    overdue: int
    later: int
    end: int
    """When the last bar ends."""


def histogram(forecast: Forecasted | None, span: Span) -> DueHistogram | None:
    """Return a forecast as bars; `None` for one that is still being counted."""
    if forecast is None:
        return None
    most = max(forecast.buckets, default=0)
    place_width = CHART_WIDTH / len(forecast.buckets)
    bars = []
    for number, count in enumerate(forecast.buckets):
        height = max(LEAST_HEIGHT, count / most * CHART_HEIGHT) if count else 0.0
        after = forecast.start + number * span.bucket + 1  # a bucket has its end, not its beginning
        bars.append(
            HistogramBar(
                x=round(number * place_width, 2),
                width=round(place_width * (1 - GAP), 2),
                y=round(CHART_HEIGHT - height, 2),
                height=round(height, 2),
                count=count,
                after=after,
                before=after + span.bucket,
            )
        )
    end = forecast.start + span.bucket * span.buckets
    labels = list(range(forecast.start, end, span.bucket * span.step))
    return DueHistogram(
        bars=bars,
        labels=labels,
        most=most,
        overdue=forecast.overdue,
        later=forecast.later,
        end=end + 1,
    )


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
