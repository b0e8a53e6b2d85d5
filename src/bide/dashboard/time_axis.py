"""One axis of time: left of now what has happened, right of it what falls due.

Both sides have the same scale of time. Each has a height of its own: that of the past is per minute
or per hour, that of the forecast per bar.
"""

from collections.abc import Callable, Sequence
from math import ceil, log
from typing import Literal, NamedTuple

import msgspec

from bide.model.past import SLOT_MS, Past, PastSlot, SlotLength
from bide.model.replies import Forecasted

CHART_HEIGHT = 100.0
"""The height of the chart, in the units of its SVG."""

CHART_WIDTH = 1000.0

LATE_HEIGHT = 20.0
"""The height of the strip with the lateness."""

GAP = 0.2
"""What part of its place a bar leaves free."""

LEAST_HEIGHT = 1.5
"""The height of the bar of a single message, so that it is seen."""

MOST_COLUMNS = 480
"""How many columns the past has at most: a screen shows no more."""

LEAST_LATE, MOST_LATE = 1.0, 1_800_000.0
"""Milliseconds of lateness at the bottom and at the top of the strip, which is logarithmic."""

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class Span(NamedTuple):
    """How far the axis reaches, to both sides. Times are milliseconds."""

    name: str
    bucket: int
    """The time of one bar of the forecast."""
    buckets: int
    step: int
    """How many bars there are from label to label."""
    by: SlotLength
    """The slots of the past."""

    @property
    def length(self) -> int:
        """How far it reaches to one side."""
        return self.bucket * self.buckets

    @property
    def in_days(self) -> bool:
        """Whether the labels are dates."""
        return self.bucket * self.step >= DAY

    @property
    def slots(self) -> int:
        """How many slots of the past it has."""
        return self.length // SLOT_MS[self.by]


SPANS = {
    span.name: span
    for span in (
        Span("1h", MINUTE, 60, 10, "minute"),
        Span("6h", 5 * MINUTE, 72, 12, "minute"),
        Span("24h", HOUR, 24, 4, "minute"),
        Span("7d", 6 * HOUR, 28, 4, "hour"),
        Span("30d", 24 * HOUR, 30, 5, "hour"),
    )
}

DEFAULT_SPAN, LONGEST_SPAN = SPANS["24h"], SPANS["30d"]


class DueBar(msgspec.Struct, frozen=True):
    """One bar of the forecast."""

    x: float
    width: float
    y: float
    height: float
    count: int
    after: int
    """When its time begins, in Unix milliseconds."""
    before: int
    """When it ends."""


class PastPart(msgspec.Struct, frozen=True):
    """The figures of a part of the past, shown when the pointer is over it."""

    x: float
    width: float
    after: int
    """When it begins, in Unix milliseconds."""
    before: int
    """When it ends."""
    put: int
    done: int
    failed: int
    p99: float | None
    """The largest 99th percentile of lateness within it, in milliseconds; `None`: nothing was
    delivered, or it was half an hour or more."""
    delivered: int


class PastPlot(NamedTuple):
    """The past as paths of an SVG."""

    put: str
    """A line."""
    done: str
    """An area."""
    failed: str
    """An area."""
    late: str
    """An area of the strip below: 99 of 100 deliveries began within so much time."""
    most: int
    """The highest number of one slot."""
    by: SlotLength
    parts: list[PastPart]


Missing = Literal["reading", "never", "begun", "left-out"]
"""Why there is no past: it is being read; nobody has recorded it; there is one record, and a slot
lies between two; or the queue is not recorded, because there are too many."""


class TimeAxis(NamedTuple):
    """The past and the forecast on one axis."""

    start: int
    """When it begins, in Unix milliseconds."""
    end: int
    """When the last bar ends."""
    now: float
    """Where now is, from 0 to `CHART_WIDTH`."""
    labels: list[tuple[float, int]]
    """Places in percent, and times."""
    past: PastPlot | None
    """`None`: nothing is known of this time; see `missing`."""
    missing: Missing | None
    """Why there is no past; `None`: there is one."""
    bars: list[DueBar]
    most: int
    """The highest count of a bar."""
    overdue: int
    later: int


def time_axis(forecast: Forecasted | None, past: Past | None, span: Span, now: int) -> TimeAxis:
    """Return the axis of a page.

    It begins where the record does: the part of a span before that is left out.

    Args:
        forecast: what falls due; `None`: it is still being counted.
        past: what has happened; `None`: it is still being read.
        span: how far the axis reaches.
        now: the store's clock, in Unix milliseconds.
    """
    slots = _known_slots(past)
    start = now
    if slots:
        # At least a sixth of the forecast, so that the first minutes can be seen.
        start = min(now - span.length // 6, max(now - span.length, slots[0][0]))
    end = now + span.length
    if forecast is not None:
        end = forecast.start + span.length

    def place(moment: int) -> float:
        return round((max(moment, start) - start) / (end - start) * CHART_WIDTH, 2)

    bars = [] if forecast is None else _bars(forecast, span, now, place)
    step = span.bucket * span.step
    moments = range(-(-start // step) * step, end, step)
    return TimeAxis(
        start=start,
        end=end,
        now=place(now),
        labels=[(round(place(moment) / CHART_WIDTH * 100, 2), moment) for moment in moments],
        past=_plot(slots, span, place) if slots else None,
        missing=None if slots else _missing(past),
        bars=bars,
        most=0 if forecast is None else max(forecast.buckets, default=0),
        overdue=0 if forecast is None else forecast.overdue,
        later=0 if forecast is None else forecast.later,
    )


Place = Callable[[int], float]
"""Returns where a time is on the axis."""

Slots = list[tuple[int, PastSlot | None]]
"""When slots begin, and what happened in them."""


def _known_slots(past: Past | None) -> Slots:
    """Return the slots of a past from the first that was recorded to the last."""
    if past is None:
        return []
    slots = [(past.start + number * past.slot, slot) for number, slot in enumerate(past.slots)]
    known = [number for number, (_, slot) in enumerate(slots) if slot is not None]
    return slots[known[0] : known[-1] + 1] if known else []


def _missing(past: Past | None) -> Missing:
    """Return why a past has no slots that are known."""
    if past is None:
        return "reading"
    if not past.recorded:
        return "never"
    return "left-out" if past.left_out else "begun"


def _bars(forecast: Forecasted, span: Span, now: int, place: Place) -> list[DueBar]:
    """Return the bars of a forecast."""
    most = max(forecast.buckets, default=0)
    bars: list[DueBar] = []
    for number, count in enumerate(forecast.buckets):
        height = max(LEAST_HEIGHT, count / most * CHART_HEIGHT) if count else 0.0
        begin = forecast.start + number * span.bucket
        x = place(max(begin, now))  # a bar of an hour may have begun before
        bars.append(
            DueBar(
                x=x,
                width=round((place(begin + span.bucket) - x) * (1 - GAP), 2),
                y=round(CHART_HEIGHT - height, 2),
                height=round(height, 2),
                count=count,
                after=begin,
                before=begin + span.bucket,
            )
        )
    return bars


class _Column(NamedTuple):
    """Some slots that are drawn as one; `None`: nothing is known of them."""

    start: float
    end: float
    put: float | None
    done: float | None
    failed: float | None
    late: float | None


def _plot(slots: Slots, span: Span, place: Place) -> PastPlot:
    """Return the past as the paths of a chart, of `MOST_COLUMNS` columns at most."""
    slot_ms = SLOT_MS[span.by]
    slots_per_column = ceil(len(slots) / MOST_COLUMNS)
    columns = [
        _column(slots[number : number + slots_per_column], slot_ms, place)
        for number in range(0, len(slots), slots_per_column)
    ]
    counts = [
        count
        for column in columns
        for count in (column.put, column.done, column.failed)
        if count is not None
    ]
    most = max(counts, default=0)

    def heights(name: str) -> list[float | None]:
        values = [getattr(column, name) for column in columns]
        return [None if value is None else _height(value, most) for value in values]

    edges = [(column.start, column.end) for column in columns]
    per_part = max(1, span.bucket // slot_ms)
    return PastPlot(
        put=_line(edges, heights("put")),
        done=_area(edges, heights("done"), CHART_HEIGHT),
        failed=_area(edges, heights("failed"), CHART_HEIGHT),
        late=_area(edges, [column.late for column in columns], LATE_HEIGHT),
        most=round(most),
        by=span.by,
        parts=[
            part
            for number in range(0, len(slots), per_part)
            if (part := _part(slots[number : number + per_part], slot_ms, place)) is not None
        ],
    )


def _column(slots: Slots, slot_ms: int, place: Place) -> _Column:
    """Return slots as one column: the highest number of each kind."""
    start, end = place(slots[0][0]), place(slots[-1][0] + slot_ms)
    known = [slot for _, slot in slots if slot is not None]
    if not known:
        return _Column(start, end, None, None, None, None)
    return _Column(
        start,
        end,
        max(slot.put for slot in known),
        max(slot.done for slot in known),
        max(slot.failed for slot in known),
        max(late_height(slot) for slot in known),
    )


def late_height(slot: PastSlot) -> float:
    """Return how high the lateness of a slot is drawn; 0 if nothing was delivered.

    Example:
        >>> late_height(PastSlot()), late_height(PastSlot(delivered=1, p50=None, p99=None))
        (0.0, 20.0)
    """
    if not slot.delivered:
        return 0.0
    late = MOST_LATE if slot.p99 is None else min(MOST_LATE, max(LEAST_LATE, slot.p99))
    share = log(late / LEAST_LATE) / log(MOST_LATE / LEAST_LATE)
    return round(max(LEAST_HEIGHT, share * LATE_HEIGHT), 1)


def _height(value: float, most: float) -> float:
    return round(max(LEAST_HEIGHT, value / most * CHART_HEIGHT), 1) if value else 0.0


Edges = Sequence[tuple[float, float]]
"""Where columns begin and end."""


class _Step(NamedTuple):
    """Columns beside each other that are equally high."""

    start: float
    end: float
    height: float


def _runs(edges: Edges, heights: Sequence[float | None]) -> list[list[_Step]]:
    """Return columns as runs without a gap, each from step to step.

    Example:
        >>> [len(run) for run in _runs([(0, 1), (1, 2), (2, 3), (3, 4)], [5.0, 5.0, None, 7.0])]
        [1, 1]
    """
    runs: list[list[_Step]] = []
    is_after_gap = True
    for (start, end), height in zip(edges, heights, strict=True):
        if height is None:
            is_after_gap = True
            continue
        if is_after_gap:
            runs.append([])
            is_after_gap = False
        run = runs[-1]
        if run and run[-1].height == height:
            run[-1] = run[-1]._replace(end=end)
        else:
            run.append(_Step(start, end, height))
    return runs


def _top(run: Sequence[_Step], full: float) -> str:
    """Return a path along the top of a run, after its first point; y counts from the top."""
    first, *others = run
    steps = "".join(f"H{step.start:g}V{full - step.height:g}" for step in others)
    return f"{full - first.height:g}{steps}H{run[-1].end:g}"


def _area(edges: Edges, heights: Sequence[float | None], full: float) -> str:
    """Return a path with the area below some columns; columns without a height are gaps.

    Example:
        >>> _area([(0, 1), (1, 2), (2, 3)], [5.0, None, 7.0], 10)
        'M0,10V5H1V10ZM2,10V3H3V10Z'
    """
    return "".join(
        f"M{run[0].start:g},{full:g}V{_top(run, full)}V{full:g}Z" for run in _runs(edges, heights)
    )


def _line(edges: Edges, heights: Sequence[float | None]) -> str:
    """Return a path with a line along the top of some columns.

    Example:
        >>> _line([(0, 1), (1, 2)], [0.0, 40.0])
        'M0,100H1V60H2'
    """
    return "".join(f"M{run[0].start:g},{_top(run, CHART_HEIGHT)}" for run in _runs(edges, heights))


def _part(slots: Slots, slot_ms: int, place: Place) -> PastPart | None:
    """Return the figures of some slots together; `None`: none of them was recorded."""
    known = [slot for _, slot in slots if slot is not None]
    if not known:
        return None
    after, before = slots[0][0], slots[-1][0] + slot_ms
    x = place(after)
    delivered = [slot for slot in known if slot.delivered]
    p99 = None
    if delivered and all(slot.p99 is not None for slot in delivered):
        p99 = max(slot.p99 for slot in delivered if slot.p99 is not None)
    return PastPart(
        x=x,
        width=round(place(before) - x, 2),
        after=after,
        before=before,
        put=sum(slot.put for slot in known),
        done=sum(slot.done for slot in known),
        failed=sum(slot.failed for slot in known),
        p99=p99,
        delivered=sum(slot.delivered for slot in known),
    )


def fitting_span(forecast: Forecasted | None, past: Past | None, now: int) -> Span:
    """Return the span that shows what there is: the shortest one with all of it, a day at most.

    If nothing falls due within a day and something later, it is the longest one.

    Args:
        forecast: that of the default span.
        past: that of the default span.
        now: the store's clock, in Unix milliseconds.
    """
    if forecast is None or past is None:
        return DEFAULT_SPAN
    slots = _known_slots(past)
    counts = [number for number, count in enumerate(forecast.buckets) if count]
    if not counts and not slots and forecast.later:
        return LONGEST_SPAN
    if forecast.later or not (counts or slots):
        return DEFAULT_SPAN
    ahead = forecast.start + (counts[-1] + 1) * DEFAULT_SPAN.bucket - now if counts else 0
    behind = now - slots[0][0] if slots else 0
    needed = min(max(ahead, behind), DEFAULT_SPAN.length)
    return next(span for span in SPANS.values() if span.length >= needed)
