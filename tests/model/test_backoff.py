from datetime import timedelta
from typing import Any

import pytest

import bide


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
