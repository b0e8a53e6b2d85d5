"""Times, durations, rates and backoffs."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

import bide
from bide.model.errors import InvalidArgument
from bide.model.times import (
    EARLIEST,
    LATEST,
    format_duration,
    milliseconds,
    place_in_span,
    spread_out,
    to_datetime,
    unix,
)
from tests.effort import effort


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        (0, 0),
        (1, 1000),
        (0.25, 250),
        (1.0004, 1001),
        (1.1, 1100),
        (0.07, 70),
        (True + 1, 2000),
        (timedelta(0), 0),
        (timedelta(days=1), 86_400_000),
        (timedelta(microseconds=1999), 2),
        ("250ms", 250),
        ("30s", 30_000),
        ("30m", 1_800_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1.5h", 5_400_000),
        (" 1h 30m ", 5_400_000),
        ("0s", 0),
        ("1 s", 1000),
        (978_307_199, 978_307_199_000),
        (timedelta(milliseconds=LATEST), LATEST),
        ("1750000000s", 1_750_000_000_000),
    ],
)
def test_durations(duration: Any, ms: int) -> None:
    assert milliseconds(duration) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "30",
        "m",
        "30x",
        "-30x",
        "-",
        "1h-30m",
        "1,5h",
        "1e3s",
        "30M",
        "1h30",
        "٣m",
        "s30",
        "nan",
        "inf",
        "1..5s",
        "1h" * 33,
    ],
)
def test_a_string_that_is_no_duration_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"not a valid duration; write '250ms', '30s'"):
        milliseconds(text)


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -float("inf")])
def test_a_duration_must_be_finite(duration: float) -> None:
    with pytest.raises(InvalidArgument, match="not a finite number of seconds"):
        milliseconds(duration)


@pytest.mark.parametrize("duration", [-1, -0.001, timedelta(seconds=-1), timedelta.min, "-5m"])
def test_a_duration_is_not_negative(duration: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"is negative; for now give 0.*use at="):
        milliseconds(duration)


@pytest.mark.parametrize("duration", [1e300, 10**30, timedelta.max, LATEST])
def test_a_duration_past_all_measure_is_doubted(duration: Any) -> None:
    with pytest.raises(InvalidArgument, match="longer than 130 years; are those seconds"):
        milliseconds(duration)


@pytest.mark.parametrize("duration", ["9999999w", "99999d"])
def test_a_string_past_all_measure_is_refused(duration: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"longer than 130 years$"):
        milliseconds(duration)


def test_only_a_delay_speaks_of_the_past() -> None:
    with pytest.raises(InvalidArgument, match=r"^lease='-30s' is negative$"):
        milliseconds("-30s", "lease")


@pytest.mark.parametrize("duration", [True, None, b"30m", [1], 1j, datetime.now(UTC), object()])
def test_a_duration_of_another_type_is_refused_by_name(duration: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=f"cannot be of type {type(duration).__name__}; give sec"
    ):
        milliseconds(duration)


def test_errors_name_the_argument() -> None:
    for bad in ("x", -1, None, float("nan"), 1e30):
        with pytest.raises(InvalidArgument, match=r"^lease"):
            milliseconds(bad, "lease")  # type: ignore[arg-type]
    for worse in (None, -1, float("nan"), datetime(2030, 1, 1)):  # noqa: DTZ001
        with pytest.raises(InvalidArgument, match=r"^before"):
            unix(worse, "before")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (0, 0),
        (1_893_456_000.5, 1_893_456_000_500),
        (LATEST / 1000, LATEST),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000),
        (datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1_893_456_000_000),
        (datetime(2030, 1, 1, microsecond=1999, tzinfo=UTC), 1_893_456_000_002),
    ],
)
def test_times(moment: Any, ms: int) -> None:
    assert unix(moment) == ms


@pytest.mark.parametrize("seconds", [978_307_200, 1_793_000_060.5, LATEST // 1000])
def test_a_time_given_as_a_duration_is_recognised(seconds: float) -> None:
    with pytest.raises(
        InvalidArgument, match=r"delay=.* looks like a time in Unix seconds, .*; for a time use at="
    ):
        milliseconds(seconds)
    with pytest.raises(InvalidArgument, match=r"expires=.* looks like a time.*; give a length"):
        milliseconds(seconds, "expires")


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (2027, r"for a year write 2027-01-01T00:00Z \(in Python datetime\(2027, 1, 1, tzinfo=UTC"),
        (1970.0, "for a year write 1970-01-01T00:00Z"),
        (20_270_101, "write a time with its date"),
        (60, "or use delay= for seconds from now"),
        (0.001, "or use delay= for seconds from now"),
        (978_307_199.999, "write a time with its date"),
    ],
)
def test_a_number_before_2001_is_no_time(number: float, fix: str) -> None:
    with pytest.raises(InvalidArgument, match=f"at={number} is .* before 2001 .*{fix}"):
        unix(number)
    with pytest.raises(InvalidArgument, match=f"after={number} is .* before 2001 ") as refused:
        unix(number, "after")
    assert "delay=" not in str(refused.value)


def test_times_before_2001_that_are_no_mistake() -> None:
    assert unix(0) == unix(0.0) == 0
    assert unix(978_307_200) == 978_307_200_000
    assert unix(datetime(1999, 1, 1, tzinfo=UTC)) == 915_148_800_000


def test_rounding_of_times() -> None:
    """Up, so that nothing is early; down where something after a time is looked for."""
    moment = datetime(2030, 1, 1, microsecond=1_999, tzinfo=UTC)
    for given_time in (moment, moment.timestamp()):
        assert unix(given_time) == 1_893_456_000_002
        assert unix(given_time, rounding="down") == 1_893_456_000_001
    assert unix(1_893_456_000.001, rounding="down") == 1_893_456_000_001


def test_times_and_durations_of_pendulum() -> None:
    """Its operators return differences and lengths that the standard library's cannot divide."""
    moment = pendulum.datetime(2030, 1, 1, 2, 0, 0, 1_999, tz="Europe/Berlin")
    assert unix(moment) == 1_893_459_600_002
    assert milliseconds(pendulum.duration(days=1, microseconds=1_999)) == 86_400_002
    assert milliseconds(pendulum.datetime(2030, 1, 2) - pendulum.datetime(2030, 1, 1)) == 86_400_000
    with pytest.raises(InvalidArgument, match="is negative"):
        milliseconds(pendulum.duration(days=-1, hours=1))
    with pytest.raises(InvalidArgument, match="has no time zone"):
        unix(pendulum.naive(2030, 1, 1))


def test_times_of_freezegun() -> None:
    with freeze_time("2030-01-01"):
        assert unix(datetime.now(UTC)) == 1_893_456_000_000


def test_a_naive_datetime_names_no_moment() -> None:
    with pytest.raises(InvalidArgument, match=r"has no time zone.*tzinfo=UTC.*astimezone"):
        unix(datetime(2030, 1, 1))  # noqa: DTZ001


def test_milliseconds_given_as_seconds_are_recognised() -> None:
    with pytest.raises(InvalidArgument, match="looks like milliseconds, give seconds"):
        unix(1_893_456_000_000)


@pytest.mark.parametrize(
    "moment",
    [
        -1,
        -0.001,
        LATEST / 1000 + 1,
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime(2100, 1, 1, 0, 0, 1, tzinfo=UTC),
    ],
)
def test_a_moment_is_between_1970_and_2100(moment: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not between 1970 and 2100"):
        unix(moment)


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), -float("inf")])
def test_a_moment_must_be_finite(moment: float) -> None:
    with pytest.raises(InvalidArgument, match="not a finite number of seconds"):
        unix(moment)


@pytest.mark.parametrize("moment", [True, None, "2030-01-01", date(2030, 1, 1), timedelta(1)])
def test_a_moment_of_another_type_is_refused_by_name(moment: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=f"cannot be of type {type(moment).__name__}; give an aw"
    ):
        unix(moment)


@given(st.integers(EARLIEST * 1000, LATEST))
def test_a_moment_survives_the_way_to_a_datetime_and_back(ms: int) -> None:
    assert unix(to_datetime(ms)) == ms
    assert unix(ms / 1000) == ms


@given(st.integers(0, LATEST))
def test_whole_milliseconds_survive_as_seconds_and_as_timedelta(ms: int) -> None:
    assert milliseconds(timedelta(milliseconds=ms)) == milliseconds(f"{ms}ms") == ms
    if ms < EARLIEST * 1000:
        assert milliseconds(ms / 1000) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1001, "1s"),
        (61_000, "1m1s"),
        (3_600_000, "1h"),
        (3_601_000, "1h1s"),
        (90_061_000, "1d1h"),
        (-5_400_000, "-1h30m"),
        (604_800_000, "7d"),
    ],
)
def test_format_duration(ms: float, text: str) -> None:
    assert format_duration(ms) == text


@given(st.integers(1_000, LATEST))
def test_a_formatted_duration_is_read_back_to_within_its_second_unit(ms: int) -> None:
    back = milliseconds(format_duration(ms))
    assert back <= ms
    assert ms - back < max(1_000, ms // 24)


def test_a_long_text_is_neither_matched_nor_remembered() -> None:
    with pytest.raises(InvalidArgument, match=r"^delay='1s   .{0,70}\.\.\. is not a valid"):
        milliseconds("1s" + " " * 1_000_000)


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(2030, 1, 1, 0, 0, 0, 1, UTC), 1_893_456_000_001),
        (datetime(2030, 1, 1, 0, 0, 0, 1000, UTC), 1_893_456_000_001),
        (1_893_456_000.0004, 1_893_456_000_001),
        (1_893_456_000.123, 1_893_456_000_123),
    ],
)
def test_a_moment_between_milliseconds_is_the_next_one(moment: Any, ms: int) -> None:
    assert unix(moment) == ms


def test_each_pause_is_longer_by_the_factor_up_to_the_ceiling() -> None:
    backoff = bide.Backoff(first="1s", factor=3, ceiling="20s", jitter=0)
    assert [backoff.delay(attempt, 0.5) for attempt in range(1, 6)] == [
        1_000,
        3_000,
        9_000,
        20_000,
        20_000,
    ]


def test_a_factor_of_one_keeps_pauses_equal() -> None:
    backoff = bide.Backoff(first=timedelta(seconds=2), factor=1, jitter=0)
    assert {backoff.delay(attempt, 0.5) for attempt in (1, 2, 9_999)} == {2_000}


def test_jitter_spreads_pauses_to_both_sides() -> None:
    backoff = bide.Backoff(first="10s", jitter=0.1)
    assert [backoff.delay(1, chance) for chance in (0, 0.5, 1)] == [9_000, 10_000, 11_000]


def test_jitter_can_take_a_pause_to_nothing_and_to_twice_as_long() -> None:
    backoff = bide.Backoff(first="10s", jitter=1)
    assert [backoff.delay(1, chance) for chance in (0, 1)] == [0, 20_000]


def test_no_number_of_attempts_is_too_large() -> None:
    assert bide.Backoff(jitter=0, factor=1e300).delay(10_000, 0.5) == 3_600_000


def test_a_first_pause_of_nothing_stays_nothing() -> None:
    assert bide.Backoff(first=0, jitter=0).delay(7, 0.5) == 0


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"attempts": 0}, "attempts=0 must be"),
        ({"attempts": True}, "attempts=True must be"),
        ({"first": "soon"}, "first='soon' is not a valid duration"),
        ({"first": -1}, "first=-1 is negative"),
        ({"first": "2h"}, "ceiling='1h' is shorter than first='2h'"),
        ({"factor": 0.5}, "factor=0.5 must be"),
        ({"factor": float("inf")}, "factor=inf must be"),
        ({"factor": float("nan")}, "factor=nan must be"),
        ({"factor": "2"}, "factor='2' must be"),
        ({"jitter": 1.5}, "jitter=1.5 must be"),
        ({"jitter": -0.1}, "jitter=-0.1 must be"),
        ({"jitter": True}, "jitter=True must be"),
        ({"on": ("OSError",)}, "must be a tuple of exception classes"),
        ({"on": (int,)}, "must be a tuple of exception classes"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=hint.replace("(", r"\(")):
        bide.Backoff(**wrong)


def test_one_exception_class_needs_no_tuple() -> None:
    on: Any = OSError
    assert bide.Backoff(on=on).on == (OSError,)


def test_equal_backoffs_are_equal() -> None:
    assert bide.Backoff(first="10s") == bide.Backoff()


@pytest.mark.parametrize(
    ("id", "place"),
    [("user-1", 698_765), ("user-2", 763_486), ("snow ❄", 728_139), ("x" * 512, 351_868)],
)
def test_the_place_in_a_span_is_a_documented_number(id: str, place: int) -> None:
    """Other programs compute it, and messages that are put again must stay where they are."""
    assert place_in_span(id, 900_000) == place


@pytest.mark.parametrize("ids", ["user-{}", "{:026d}"])
def test_a_crowd_at_one_instant_is_spread_evenly(ids: str) -> None:
    seconds = effort(90, 900)
    crowd = range(seconds * 1_100)
    numbers = Counter(place_in_span(ids.format(n), seconds * 1000) // 1000 for n in crowd)
    assert set(numbers) == set(range(seconds))
    assert max(numbers.values()) <= 1.2 * 1_100


@given(st.text(min_size=1), st.integers(min_value=0, max_value=LATEST))
def test_the_place_is_within_the_span(id: str, span: int) -> None:
    assert 0 <= place_in_span(id, span) < max(span, 1)


def test_a_spread_keeps_a_delay_a_delay() -> None:
    assert spread_out((None, 60_000), "user-1", "15m") == (None, 758_765)
    assert spread_out((1_900_000_000_000, 0), "user-1", 900) == (1_900_000_698_765, 0)
    assert spread_out((None, 0), "user-1", 0) == (None, 0)


@pytest.mark.parametrize("due", [(None, 0), (LATEST - 1, 0), (None, 1)])
def test_a_spread_past_2100_is_refused(due: tuple[int | None, int]) -> None:
    with pytest.raises(InvalidArgument, match="spread='6000w' ends past the year 2100"):
        spread_out(due, "user-1", "6000w")
