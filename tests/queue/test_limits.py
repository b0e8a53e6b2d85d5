"""Limits of a queue, as a queue of either face takes them."""

from pathlib import Path
from typing import Any

import pytest

import bide
from bide.model.times import Rate, interval, limits_of, rate_text
from bide.testing.clock import FakeClock
from tests.queue.conftest import Make


def test_limits_are_given_with_the_queue_or_set_later(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    calls = bide.Queue("calls", url, limit=2, group_rate="1/s", clock=clock)
    calls.put_many([1, 2, 3], group="a")
    calls.put(4)
    held = calls.claim(9)
    assert [one.body for one in held] == [1, 4]
    assert calls.claim(9) == []
    found = calls.configure(limit=0, rate="5/s", group_rate=0)
    assert (found.limit, found.rate, found.group_limit, found.group_rate) == (0, 200_000, 0, 0)
    assert limits_of(calls.counts())["rate"] == "5/s"
    clock.advance(0.2)
    assert [one.body for one in calls.claim(9)] == [2]
    assert calls.audit()
    calls.close()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"limit": -1}, "limit=-1 must be a whole number from 0 to 100,000"),
        ({"limit": True}, "limit=True must be a whole number"),
        ({"group_limit": 1.5}, "group_limit=1.5 must be"),
        ({"limit": 100_001}, "to 100,000"),
        ({"rate": "fast"}, "rate='fast' is not a valid rate; write '5/s'"),
        ({"rate": "5/w"}, "is not a valid rate"),
        ({"rate": "-5/s"}, "is not a valid rate"),
        ({"rate": "9" * 99}, "is not a valid rate"),
        ({"rate": -1}, "rate=-1 is not from '1/d' to '100000/s'"),
        ({"rate": 100_001}, "is not from"),
        ({"rate": float("nan")}, "is not from"),
        ({"rate": True}, "rate cannot be a bool"),
        ({"group_rate": "0.9/d"}, "group_rate='0.9/d' is not from '1/d'"),
        ({"group_rate": [1]}, "group_rate cannot be a list"),
    ],
)
def test_what_is_no_limit_is_refused(make: Make, given: dict[str, Any], error: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=error):
        make().configure(**given)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (5, "5/s"),
        ("5", "5/s"),
        (" 100 / m ", "100/m"),
        (0.5, "30/m"),
        ("7/h", "7/h"),
        ("60/m", "1/s"),
        ("90/m", "90/m"),
        ("1/d", "1/d"),
        (100_000, "100000/s"),
        (3, "3/s"),
        ("0.7/s", "42/m"),
        (1.001, "1.001/s"),
    ],
)
def test_a_rate_is_shown_as_it_is_written(rate: Rate, text: str) -> None:
    assert rate_text(interval(rate)) == text
    assert interval(text) == pytest.approx(interval(rate), abs=2)


def test_no_rate_is_exceeded_by_rounding() -> None:
    for rate in range(1, 1_000):
        assert interval(rate) * rate >= 1_000_000
        assert interval(f"{rate}/m") * rate >= 60_000_000
