"""`TimingWheel`: when callbacks start, what cancelling does, and how the wheel stops."""

import gc
import logging
import threading
import weakref
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bide.testing.clock import FakeClock
from bide.timing import ShutDown, TimerHandle, TimingWheel
from tests.effort import effort
from tests.timing.conftest import RecordingClock, Start


class Task:
    """A callable that a weak reference can watch."""

    def __call__(self) -> None:
        raise AssertionError("it was cancelled")


def run_until(clock: FakeClock, seconds: float) -> None:
    """Move the clock, and wait until the wheel has done what is due and waits again."""
    clock.wait_for_waiters()
    clock.advance(seconds)
    clock.wait_for_waiters()


def test_callbacks_start_at_the_first_tick_that_is_not_before_their_moment(
    clock: RecordingClock,
) -> None:
    started: list[str] = []
    with TimingWheel(clock=clock) as wheel:
        wheel.schedule(started.append, 0.0101, args=("b",))
        wheel.schedule(started.append, 0.010, args=("a",))
        run_until(clock, 0.0099)
        assert started == []
        run_until(clock, 0.0001)
        assert started == ["a"]
        run_until(clock, 0.001)
        assert started == ["a", "b"]


def test_one_tick_starts_in_the_order_of_scheduling(clock: RecordingClock) -> None:
    started: list[int] = []
    with TimingWheel(clock=clock) as wheel:
        for number in range(100):
            wheel.schedule(started.append, 5.0, args=(number,))
        run_until(clock, 4.9)
        for number in range(100, 200):
            wheel.schedule(started.append, 0.1, args=(number,))
        run_until(clock, 0.1)
    assert started == list(range(200))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 100_000), st.booleans()), min_size=1, max_size=50))
def test_what_is_cancelled_does_not_start_and_all_else_does(plan: list[tuple[int, bool]]) -> None:
    clock = FakeClock()
    started: list[int] = []
    wheel = TimingWheel(clock=clock)
    handles = [
        wheel.schedule(started.append, ms / 1000, args=(number,))
        for number, (ms, _) in enumerate(plan)
    ]
    for handle, (_, cancel) in zip(handles, plan, strict=True):
        if cancel and handle.pending:
            assert handle.cancel()
    clock.advance(101)
    assert wheel.stop(drain=True) == []
    kept = [number for number, (ms, cancel) in enumerate(plan) if not cancel or ms == 0]
    assert [number for number in started if plan[number][0]] == sorted(
        (number for number in kept if plan[number][0]), key=lambda number: plan[number][0]
    )


def test_the_thread_sleeps_until_the_next_timer_however_far(clock: RecordingClock) -> None:
    fired = threading.Event()
    with TimingWheel(clock=clock) as wheel:
        wheel.schedule(fired.set, timedelta(days=3_650))
        clock.wait_for_waiters()
        before = len(clock.waits)
        clock.advance(3_650 * 86_400)
        assert fired.wait(10)
        clock.wait_for_waiters()
        assert len(clock.waits) - before == 1, "no wake-up on the way"


def test_an_earlier_timer_wakes_the_thread_and_a_later_one_does_not(clock: RecordingClock) -> None:
    started: list[str] = []
    with TimingWheel(clock=clock) as wheel:
        wheel.schedule(started.append, 50, args=("far",))
        clock.wait_for_waiters()
        waits = len(clock.waits)
        wheel.schedule(started.append, 60, args=("farther",))
        assert len(clock.waits) == waits
        wheel.schedule(started.append, 5, args=("near",))
        run_until(clock, 5)
        assert started == ["near"]
        run_until(clock, 55)
    assert started == ["near", "far", "farther"]


def test_a_callback_that_raises_is_logged_and_harms_no_other(
    clock: RecordingClock, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []

    def fail(error: BaseException) -> None:
        raise error

    with TimingWheel(clock=clock) as wheel:
        for error in (ValueError("one"), SystemExit(2), KeyboardInterrupt("three")):
            wheel.schedule(fail, 1, args=(error,))
        wheel.schedule(started.append, 1, args=("after",))
        run_until(clock, 1)
        wheel.schedule(started.append, 1, args=("later",))
        run_until(clock, 1)
    assert started == ["after", "later"]
    assert [record.name for record in caplog.records] == ["bide.timing"] * 3
    assert [record.exc_info[1].args[0] for record in caplog.records if record.exc_info] == [  # type: ignore[union-attr]
        "one",
        2,
        "three",
    ]


def test_callbacks_may_schedule_and_cancel(clock: RecordingClock) -> None:
    started: list[str] = []
    with TimingWheel(clock=clock) as wheel:

        def first() -> None:
            started.append("first")
            assert neighbour.cancel(), "due at the same tick, but not started"
            assert not neighbour.cancel()
            assert far.cancel()
            wheel.schedule(again, 0)

        def again() -> None:
            started.append("again")
            if started.count("again") < 3:
                wheel.schedule(again, 0)

        wheel.schedule(first, 1)
        neighbour = wheel.schedule(started.append, 1, args=("neighbour",))
        far = wheel.schedule(started.append, 100, args=("far",))
        run_until(clock, 1)
        assert started == ["first"], "a timer of a callback starts at the next tick, not in this"
        for _ in range(4):
            run_until(clock, 0.001)
    assert started == ["first", "again", "again", "again"]


def test_cancel_answers_once_and_only_for_its_own(clock: RecordingClock) -> None:
    wheel = TimingWheel(clock=clock)
    other = TimingWheel(clock=clock)
    handle = wheel.schedule(print, 10)
    with pytest.raises(ValueError, match="timer of another wheel"):
        other.cancel(handle)
    assert (handle.pending, wheel.pending) == (True, 1)
    assert [handle.cancel(), wheel.cancel(handle)] == [True, False]
    assert (handle.pending, wheel.pending) == (False, 0)
    with pytest.raises(TypeError, match="what schedule returned, not int"):
        wheel.cancel(3)  # type: ignore[arg-type]
    wheel.stop()


def test_a_handle_tells_what_and_when(clock: RecordingClock) -> None:
    wheel = TimingWheel(clock=clock)
    handle = wheel.schedule(len, 2.0004, args=("abc",))
    assert (handle.fn, handle.args) == (len, ("abc",))
    assert handle.due == pytest.approx(1_002.001)
    assert repr(handle) == "<TimerHandle <built-in function len> due=1002.001>"
    wheel.stop()


def test_stop_drops_and_tells_what(clock: RecordingClock) -> None:
    wheel = TimingWheel(clock=clock)
    late = wheel.schedule(print, 20)
    early = wheel.schedule(print, 10)
    assert wheel.stop() == [early, late]
    assert wheel.stop() == []
    assert wheel.pending == 0
    assert early.cancel() is False
    with pytest.raises(ShutDown, match="stopped: it takes no more timers"):
        wheel.schedule(print, 1)


def test_stop_with_drain_lets_all_have_their_moment(clock: RecordingClock, start: Start) -> None:
    started: list[str] = []
    wheel = TimingWheel(clock=clock)

    def refused() -> None:
        with pytest.raises(ShutDown):
            wheel.schedule(print, 1)
        started.append("last")

    wheel.schedule(refused, 20)
    wheel.schedule(started.append, 10, args=("first",))
    clock.wait_for_waiters()
    stopper = start(lambda: wheel.stop(drain=True))
    clock.wait_for_wait(2)  # `stop` wakes the thread, which waits again
    clock.wait_for_waiters()
    clock.advance(10)
    clock.wait_for_waiters()
    assert started == ["first"]
    clock.advance(10)
    stopper.join(60)
    assert started == ["first", "last"]


def test_stop_from_a_callback_drops_the_rest_of_its_tick(clock: RecordingClock) -> None:
    dropped: list[TimerHandle] = []
    stopped = threading.Event()
    wheel = TimingWheel(clock=clock)

    def stop() -> None:
        dropped.extend(wheel.stop())
        stopped.set()

    wheel.schedule(stop, 1)
    same_tick = wheel.schedule(print, 1)
    later = wheel.schedule(print, 2)
    clock.wait_for_waiters()
    clock.advance(1)
    assert stopped.wait(10)
    assert dropped == [same_tick, later]
    assert wheel.stop() == []


def test_stopping_a_wheel_that_never_ran_is_fine() -> None:
    assert TimingWheel().stop(drain=True) == []


def test_an_executor_runs_the_callbacks(
    clock: RecordingClock, caplog: pytest.LogCaptureFixture
) -> None:
    names: list[str] = []
    ran = threading.Event()

    def task() -> None:
        names.append(threading.current_thread().name)
        ran.set()

    with ThreadPoolExecutor(1, "pool") as pool, TimingWheel(clock=clock, executor=pool) as wheel:
        wheel.schedule(lambda: 1 / 0, 1)
        wheel.schedule(task, 1)
        run_until(clock, 1)
        assert ran.wait(10)
    assert names == ["pool_0"]
    assert [record.message.split()[0] for record in caplog.records] == ["timer"]


def test_an_executor_that_refuses_is_logged(
    clock: RecordingClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("no more")

    with TimingWheel(clock=clock, executor=Refusing()) as wheel:
        wheel.schedule(print, 1)
        wheel.schedule(print, 2)
        run_until(clock, 2)
        assert wheel.pending == 0
    assert caplog.text.count("RuntimeError: no more") == 2


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_setting_the_wall_clock_moves_no_timer(clock: RecordingClock, jump: int) -> None:
    started: list[str] = []
    with TimingWheel(clock=clock) as wheel:
        wheel.schedule(started.append, at=clock.now() / 1000 + 60, args=("at",))
        clock.set_wall(clock.now() + jump)
        run_until(clock, 59.99)
        assert started == []
        run_until(clock, 0.01)
    assert started == ["at"]


def test_after_a_long_sleep_of_the_machine_all_starts_in_order(clock: RecordingClock) -> None:
    started: list[int] = []
    with TimingWheel(clock=clock) as wheel:
        for number in range(300):
            wheel.schedule(started.append, 1 + (number * 7919 % 300) * 3600, args=(number,))
        run_until(clock, 3e8)
    assert started == sorted(range(300), key=lambda number: number * 7919 % 300)


@pytest.mark.parametrize("tick", [1e-6, 0.001, 0.1, 10])
def test_any_tick_will_do_after_any_uptime(clock: RecordingClock, tick: float) -> None:
    started: list[float] = []
    clock.advance(3e8 + 0.123456789)
    with TimingWheel(tick, clock=clock) as wheel:
        for ticks in (1, 3, 1_000, 10**6):
            wheel.schedule(started.append, ticks * tick, args=(ticks,))
        for ticks in (1, 3, 1_000, 10**6):
            run_until(clock, ticks * tick + tick)
            assert ticks in started
    assert started == [1, 3, 1_000, 10**6]


def test_a_crowd_of_one_moment_all_start(clock: RecordingClock) -> None:
    started: list[int] = []
    with TimingWheel(clock=clock) as wheel:
        for number in range(20_000):
            wheel.schedule(started.append, 86_400, args=(number,))
        run_until(clock, 86_399.9)
        run_until(clock, 0.1)
    assert started == list(range(20_000))


def test_a_cancelled_timer_is_free_at_once(clock: RecordingClock) -> None:
    wheel = TimingWheel(clock=clock)
    gc.disable()  # it must not need the collector
    try:
        task = Task()
        watch = weakref.ref(task)
        handle: TimerHandle | None = wheel.schedule(task, 100)
        del task
        assert handle is not None
        handle.cancel()
        del handle
        assert watch() is None
    finally:
        gc.enable()
        wheel.stop()


def test_what_ran_is_not_kept(clock: RecordingClock) -> None:
    class Argument:
        pass

    with TimingWheel(clock=clock) as wheel:
        argument = Argument()
        watch = weakref.ref(argument)
        wheel.schedule(id, 1, args=(argument,))
        del argument
        run_until(clock, 1)
        assert watch() is None


def test_many_cancelled_timers_leave_nothing_behind(clock: RecordingClock) -> None:
    count = effort(200_000, 1_000_000)
    with TimingWheel(clock=clock) as wheel:
        handles = [wheel.schedule(print, float(number % 5_000 + 1)) for number in range(count)]
        assert wheel.pending == count
        assert all(handle.cancel() for handle in handles)
        assert wheel.pending == 0
        assert wheel._timers.in_order() == []
        assert sum(len(level.slots) for level in wheel._timers._levels) < 2_000


def test_nothing_is_logged_when_nothing_is_wrong(
    clock: RecordingClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "bide"), TimingWheel(clock=clock) as wheel:
        wheel.schedule(len, 1, args=((),))
        run_until(clock, 1)
    assert caplog.records == []
