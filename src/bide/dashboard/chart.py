"""Charts as numbers for SVG: the templates draw them."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bide.model.replies import Forecasted

HEIGHT = 100.0
"""Of a chart, in the units of its SVG."""

WIDTH = 1000.0

GAP = 0.2
"""What part of its place a bar leaves free."""

LEAST = 1.5
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
    one.name: one
    for one in (
        Span("1h", MINUTE, 60, 10),
        Span("6h", 5 * MINUTE, 72, 12),
        Span("24h", HOUR, 24, 4),
        Span("7d", 6 * HOUR, 28, 4),
        Span("30d", 24 * HOUR, 30, 5),
    )
}


class Bar(msgspec.Struct, frozen=True):
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


class Histogram(NamedTuple):
    """A forecast as bars."""

    bars: list[Bar]
    labels: list[int]
    """Times below the chart, at equal distances, in Unix milliseconds."""
    most: int
    """The highest count."""
    overdue: int
    later: int
    end: int
    """When the last bar ends."""


def histogram(found: Forecasted | None, span: Span) -> Histogram | None:
    """Return a forecast as bars; `None` for one that is still being counted."""
    if found is None:
        return None
    most = max(found.buckets, default=0)
    place = WIDTH / len(found.buckets)
    bars = []
    for number, count in enumerate(found.buckets):
        height = max(LEAST, count / most * HEIGHT) if count else 0.0
        after = found.start + number * span.bucket + 1  # a bucket has its end, not its beginning
        bars.append(
            Bar(
                round(number * place, 2), round(place * (1 - GAP), 2), round(HEIGHT - height, 2),
                round(height, 2), count, after, after + span.bucket,
            )
        )  # fmt: skip
    last = found.start + span.bucket * span.buckets
    labels = list(range(found.start, last, span.bucket * span.step))
    return Histogram(bars, labels, most, found.overdue, found.later, last + 1)


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
