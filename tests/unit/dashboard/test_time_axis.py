"""The axis of time: where things are on it, how far it reaches, and what is a gap."""

import pytest

from bide.dashboard.time_axis import (
    CHART_HEIGHT,
    CHART_WIDTH,
    HOUR,
    MINUTE,
    MOST_COLUMNS,
    SPANS,
    TimeAxis,
    fitting_span,
    time_axis,
)
from bide.model.past import Past, PastSlot
from bide.model.replies import Forecasted

NOW = 1_700_000_000_000 - 1_700_000_000_000 % (24 * HOUR) + 12 * HOUR
"""Noon."""


def forecast(span: str = "24h", **counts: int) -> Forecasted:
    """Return a forecast with counts by the number of the bar: `_3=7`."""
    buckets = [0] * SPANS[span].buckets
    later = counts.pop("later", 0)
    for name, count in counts.items():
        buckets[int(name.strip("_"))] = count
    return Forecasted(NOW, 0, buckets, later)


def past(*slots: PastSlot | None, length: int = MINUTE, recorded: int = 2) -> Past:
    """Return a past that ends now."""
    return Past(NOW - len(slots) * length, length, list(slots), recorded)


def axis(read: Past | None, span: str = "1h", due: Forecasted | None = None) -> TimeAxis:
    return time_axis(due or forecast(span), read, SPANS[span], NOW)


def test_now_is_in_the_middle_if_all_of_the_past_is_known() -> None:
    drawn = axis(past(*[PastSlot(put=1)] * 60))
    assert (drawn.now, drawn.start, drawn.end) == (CHART_WIDTH / 2, NOW - HOUR, NOW + HOUR)
    assert drawn.past is not None
    assert len(drawn.past.parts) == 60


def test_the_axis_begins_where_the_record_does() -> None:
    drawn = axis(past(*[None] * 30, *[PastSlot(put=1)] * 30))
    assert drawn.start == NOW - HOUR // 2
    assert drawn.now == pytest.approx(CHART_WIDTH / 3, abs=0.01)
    drawn = axis(past(*[None] * 59, PastSlot(put=1)))
    assert drawn.start == NOW - HOUR // 6


def test_without_a_record_there_is_only_the_forecast() -> None:
    for read, missing in (
        (None, "reading"),
        (past(None, recorded=0), "never"),
        (past(None, recorded=1), "begun"),
        (Past(0, MINUTE, [None], 1, left_out=5), "left-out"),
    ):
        drawn = axis(read)
        assert (drawn.now, drawn.past, drawn.missing) == (0, None, missing)
        assert drawn.start == NOW


def test_a_bar_that_has_begun_before_begins_now() -> None:
    due = Forecasted(NOW, 0, [4, 2, *[0] * 22], 0)
    drawn = time_axis(due, past(*[PastSlot()] * 1_440), SPANS["24h"], NOW + HOUR // 2)
    first, second = drawn.bars[:2]
    assert first.x == drawn.now
    assert first.width == pytest.approx(second.width / 2, abs=0.1)
    assert (first.after, first.before, first.count) == (NOW, NOW + HOUR, 4)
    assert (first.height, second.height) == (CHART_HEIGHT, CHART_HEIGHT / 2)


def test_a_gap_is_drawn_as_a_gap() -> None:
    slot = PastSlot(put=2, done=2)
    drawn = axis(past(slot, None, None, slot)).past
    assert drawn is not None
    assert drawn.done.count("M") == drawn.put.count("M") == 2
    assert [(part.put, part.done) for part in drawn.parts] == [(2, 2), (2, 2)]
    idle = axis(past(slot, PastSlot(), slot)).past
    assert idle is not None
    assert idle.done.count("M") == 1
    assert len(idle.parts) == 3


def test_minutes_are_drawn_in_columns_that_a_screen_can_show() -> None:
    slots = [PastSlot(put=number % 7, done=1) for number in range(1_440)]
    drawn = axis(past(*slots), "24h").past
    assert drawn is not None
    assert (drawn.most, drawn.by) == (6, "minute")
    assert len(drawn.parts) == 24
    assert sum(part.put for part in drawn.parts) == sum(slot.put for slot in slots)
    assert drawn.put.count("H") <= MOST_COLUMNS
    assert len(drawn.put) < 10_000


def test_the_lateness_of_a_part_is_its_worst() -> None:
    slots = [PastSlot(delivered=1, p50=1.0, p99=5.0), PastSlot(delivered=1, p50=1.0, p99=250.0)]
    drawn = time_axis(forecast("6h"), past(*slots), SPANS["6h"], NOW).past
    assert drawn is not None
    (part,) = drawn.parts
    assert (part.p99, part.delivered) == (250.0, 2)
    slots.append(PastSlot(delivered=1))  # more than half an hour
    drawn = time_axis(forecast("6h"), past(*slots), SPANS["6h"], NOW).past
    assert drawn is not None
    assert drawn.parts[0].p99 is None


def test_labels_are_at_round_times() -> None:
    drawn = time_axis(forecast("24h"), None, SPANS["24h"], NOW + 7 * MINUTE)
    assert [moment % (4 * HOUR) for _, moment in drawn.labels] == [0] * len(drawn.labels)
    assert all(0 <= percent <= 100 for percent, _ in drawn.labels)


@pytest.mark.parametrize(
    ("due", "read", "name"),
    [
        (forecast(_0=1), past(*[None] * 1_440, recorded=0), "1h"),
        (forecast(_3=1), past(None, recorded=0), "6h"),
        (forecast(_20=1), past(None, recorded=0), "24h"),
        (forecast(_0=1, later=1), past(None, recorded=0), "24h"),
        (forecast(later=1), past(None, recorded=0), "30d"),
        (forecast(), past(None, recorded=0), "24h"),
        (forecast(), past(PastSlot(), PastSlot()), "1h"),
        (forecast(_0=1), past(*[PastSlot()] * 200), "6h"),
        (forecast(_0=1), past(*[PastSlot()] * 1_440), "24h"),
        (forecast(_0=1), past(*[PastSlot()] * 1_442), "24h"),  # more is never shown at first
        (None, past(PastSlot()), "24h"),
        (forecast(_0=1), None, "24h"),
    ],
)
def test_the_span_is_that_of_what_there_is(
    due: Forecasted | None, read: Past | None, name: str
) -> None:
    assert fitting_span(due, read, NOW).name == name
