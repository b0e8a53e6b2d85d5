"""The manual clock: what it tells, whom it wakes."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from bide.clock import SYSTEM_CLOCK, Clock, Signal
from bide.testing.clock import FakeClock


def test_ten_tenths_are_one() -> None:
    clock = FakeClock(5_000)
    start = clock.monotonic()
    for _ in range(10):
        clock.advance(0.1)
    assert clock.monotonic() - start == 1.0
    assert clock.now() == 6_000


def test_who_waits_until_a_time_finds_that_it_has_come() -> None:
    """A float may be later than the nearest nanosecond; who is woken too early waits again."""
    clock, moment = FakeClock(autojump=True), 1000.0142857142857
    clock.wait(Signal(), moment)
    assert clock.monotonic() >= moment


def test_it_begins_when_it_is_told_to_and_tells_the_date() -> None:
    midnight = datetime(2028, 1, 1, tzinfo=UTC)
    clock = FakeClock(midnight)
    clock.advance(1.5)
    assert clock.now() == midnight.timestamp() * 1000 + 1500
    assert clock.datetime() == midnight + timedelta(seconds=1.5)
    with pytest.raises(ValueError, match="now=2028-01-01 00:00:00 has no time zone"):
        FakeClock(midnight.replace(tzinfo=None))


def test_it_begins_at_a_whole_second_just_ahead_of_the_real_time() -> None:
    before, clock, after = time.time(), FakeClock(), time.time()
    assert before + 1 <= clock.now() / 1000 <= after + 2
    assert clock.now() % 1_000 == 0


def test_a_moment_of_the_wall_clock_is_so_many_seconds_ahead() -> None:
    clock = FakeClock(5_000)
    clock.advance(0.25)
    assert (clock.until(6_000), clock.until(5_000)) == (0.75, -0.25)
    moment = SYSTEM_CLOCK.now() + 10_000
    assert 9 < SYSTEM_CLOCK.until(moment) <= 10.001


def test_a_clock_is_advanced_by_any_duration() -> None:
    clock = FakeClock(0)
    clock.advance("1m30s")
    clock.advance(timedelta(milliseconds=250))
    assert clock.now() == 90_250
    with pytest.raises(ValueError, match="seconds='soon' is not a valid duration"):
        clock.advance("soon")


def test_time_does_not_go_back_but_the_wall_clock_may() -> None:
    clock = FakeClock(5_000)
    with pytest.raises(ValueError, match="time cannot go back"):
        clock.advance(-1)
    clock.set_wall(1_000)
    assert (clock.now(), clock.monotonic()) == (1_000, 1_000.0)


@pytest.mark.parametrize("clock", [FakeClock(), SYSTEM_CLOCK])
def test_a_moment_that_has_come_is_not_waited_for(clock: Clock) -> None:
    assert clock.wait(Signal(), clock.monotonic()) is False
    assert clock.wait(Signal(), clock.monotonic() - 5) is False


def test_moving_the_clock_between_reading_and_waiting_is_not_missed() -> None:
    clock = FakeClock()
    moment = clock.monotonic() + 5
    clock.advance(5)
    assert clock.wait(Signal(), moment) is False


def test_a_waiter_is_woken_by_time_or_by_its_signal() -> None:
    clock = FakeClock()
    signal = Signal()
    answers: list[bool] = []

    def wait() -> None:
        answers.append(clock.wait(signal, 1_010.0))
        answers.append(clock.wait(signal, clock.monotonic() + 5))
        answers.append(clock.wait(signal, None))

    thread = threading.Thread(target=wait)
    thread.start()
    clock.wait_for_waiters()
    clock.advance(9.5)
    assert clock.waiting() == 1
    clock.advance(0.5)
    clock.wait_for_waiters()
    assert answers == [False]
    for _ in range(2):
        clock.wait_for_waiters()
        signal.set()
    assert clock.waiting() == 0, "its signal is set: it no longer waits"
    thread.join(60)
    assert answers == [False, True, True]


def test_waiting_for_waiters_has_an_end() -> None:
    with pytest.raises(TimeoutError, match="0 of 1 threads wait on the clock"):
        FakeClock().wait_for_waiters(timeout=0.01)


def test_the_autojumping_clock_goes_to_the_moment() -> None:
    clock = FakeClock(autojump=True)
    assert clock.wait(Signal(), 1_007.0) is False
    assert clock.monotonic() == 1_007.0
    assert clock.wait(Signal(), 1_010.0) is False
    assert clock.monotonic() == 1_010.0


def test_call_later_runs_on_the_loop_unless_cancelled() -> None:
    async def main() -> list[str]:
        clock = FakeClock()
        loop = asyncio.get_running_loop()
        ran: list[str] = []
        clock.call_later(loop, 2, lambda: ran.append("two"))
        clock.call_later(loop, 1, lambda: ran.append("one"))
        clock.call_later(loop, 0, lambda: ran.append("now"))
        clock.call_later(loop, 1, lambda: ran.append("never")).cancel()
        clock.advance(1.5)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        return ran

    assert asyncio.run(main()) == ["now", "one"]
