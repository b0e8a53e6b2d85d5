"""What may be said for a delay, a moment and a period, and what is answered to the rest."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from bide.testing.clock import FakeClock
from bide.timing import AsyncDelayQueue, DelayQueue, ScheduledExecutor, TimingWheel

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"delay": -0.001}, ValueError, "negative"),
    ({"delay": timedelta(seconds=-1)}, ValueError, "negative"),
    ({"delay": math.nan}, ValueError, "not a number"),
    ({"delay": math.inf}, ValueError, "316 years"),
    ({"delay": 1e11}, ValueError, "in milliseconds"),
    ({"delay": 10**400}, ValueError, "316 years"),
    ({"delay": -(10**400)}, ValueError, "negative"),
    ({"delay": "5"}, TypeError, "seconds or a datetime.timedelta, not str"),
    ({"delay": True}, TypeError, "not bool"),
    ({"delay": Decimal(1)}, TypeError, "not Decimal"),
    ({"delay": 1, "at": 1}, TypeError, "both given"),
    ({"at": datetime(2030, 1, 1)}, ValueError, "no time zone.*astimezone"),  # noqa: DTZ001
    ({"at": math.nan}, ValueError, "not a number"),
    ({"at": -math.inf}, ValueError, "316 years"),
    ({"at": 10**400}, ValueError, "316 years"),
    ({"at": 1_700_000_000_000}, ValueError, "in milliseconds"),
    ({"at": 2027}, ValueError, r"at=2027 is 1970-01-01T00:33:47.*for a year write 2027-01-01"),
    ({"at": 60.5}, ValueError, "before 2001.*or use delay= for seconds from now"),
    (
        {"delay": 1_790_000_000},
        ValueError,
        r"delay=1790000000 looks like a time.*use at=.*weeks=2000",
    ),
    ({"delay": 1_790_000_000.5}, ValueError, "looks like a time in Unix seconds, 2026-09-21"),
    ({"delay": Fraction(3_580_000_001, 2)}, ValueError, "looks like a time in Unix seconds"),
    ({"at": "2030-01-01"}, TypeError, "aware datetime or Unix seconds, not str"),
    ({"at": True}, TypeError, "not bool"),
]


@pytest.mark.parametrize(("when", "error", "says"), BAD)
def test_a_bad_moment_is_refused_alike_everywhere(
    when: dict[str, Any], error: type[Exception], says: str
) -> None:
    clock = FakeClock()
    wheel = TimingWheel(clock=clock)
    executor = ScheduledExecutor(clock=clock)
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    async_queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    refusing: list[Callable[..., object]] = [
        lambda **when: queue.put("x", **when),
        lambda **when: async_queue.put("x", **when),
        lambda **when: wheel.schedule(print, **when),
        lambda **when: executor.schedule(print, **when),
    ]
    for call in refusing:
        with pytest.raises(error, match=says):
            call(**when)
    assert (len(queue), len(async_queue), wheel.pending) == (0, 0, 0)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, ValueError), (math.nan, ValueError), (1_790_000_000, ValueError), ("1", TypeError)],
)
def test_a_bad_timeout_is_refused(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout"):
        DelayQueue(clock=FakeClock()).take(timeout)


@pytest.mark.parametrize("priority", [1.0, "1", None, True])
def test_a_priority_is_an_integer(priority: Any) -> None:
    queues: list[DelayQueue[str] | AsyncDelayQueue[str]] = [DelayQueue(), AsyncDelayQueue()]
    for queue in queues:
        with pytest.raises(TypeError, match="priority must be an integer"):
            queue.put("x", priority=priority)


@pytest.mark.parametrize("priority", [2**31, -(2**31), 10**20])
def test_a_priority_has_its_limits(priority: int) -> None:
    clock = FakeClock()
    queues: list[DelayQueue[str] | AsyncDelayQueue[str]] = [
        DelayQueue(clock=clock),
        AsyncDelayQueue(clock=clock),
    ]
    for queue in queues:
        with pytest.raises(ValueError, match="between -2147483647 and 2147483647"):
            queue.put("x", priority=priority)
        queue.put("last", 60, priority=-(2**31) + 1)
        queue.put("middle", 60)
        queue.put("first", 60, priority=2**31 - 1)
        assert [handle.item for handle in queue] == ["first", "middle", "last"]
        assert [handle.priority for handle in queue] == [2**31 - 1, 0, -(2**31) + 1]


@pytest.mark.parametrize(
    ("period", "error", "says"),
    [
        (0, ValueError, "is 0: the task would never pause"),
        (timedelta(0), ValueError, "is 0"),
        (-1, ValueError, "negative"),
        (math.nan, ValueError, "not a number"),
        (1_790_000_000, ValueError, "looks like a time in Unix seconds"),
        (None, TypeError, "not NoneType"),
    ],
)
def test_a_bad_period_is_refused(period: Any, error: type[Exception], says: str) -> None:
    executor = ScheduledExecutor(clock=FakeClock())
    with pytest.raises(error, match=f"period.*{says}"):
        executor.schedule_at_fixed_rate(print, period)
    with pytest.raises(error, match=f"delay.*{says}"):
        executor.schedule_with_fixed_delay(print, period)
    with pytest.raises(error, match=f"tick.*{says}"):
        TimingWheel(period)


def test_numbers_that_are_no_floats_will_do() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("int", 1)
    queue.put("moment", at=clock.now() // 1000 + 2)
    clock.advance(2)
    assert queue.drain() == ["int", "moment"]


def test_times_of_the_last_century_and_lengths_of_decades_are_taken_if_they_are_meant() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("epoch", at=0)
    queue.put("last century", at=datetime(1999, 12, 31, tzinfo=UTC))
    queue.put("decades", timedelta(weeks=2000))
    assert queue.drain() == ["epoch", "last century"]
    assert len(queue) == 1


def test_a_tick_is_no_finer_than_a_microsecond() -> None:
    with pytest.raises(ValueError, match="finer than a microsecond"):
        TimingWheel(1e-7)


@pytest.mark.parametrize("fn", [None, 3, "print"])
def test_what_cannot_be_called_is_refused(fn: Any) -> None:
    executor = ScheduledExecutor(clock=FakeClock())
    wheel = TimingWheel(clock=FakeClock())
    for call in (wheel.schedule, executor.schedule, executor.submit):
        with pytest.raises(TypeError, match="fn must be callable, not"):
            call(fn)
    for periodic in (executor.schedule_at_fixed_rate, executor.schedule_with_fixed_delay):
        with pytest.raises(TypeError, match="fn must be callable, not"):
            periodic(fn, 1)
