"""TimingWheel: when callbacks start, what cancelling does, how it stops; its hierarchy."""

import gc
import logging
import threading
import weakref
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bide.testing.clock import FakeClock
from bide.timing import ShutDown, TimerHandle, TimingWheel
from bide.timing import hierarchy as module
from bide.timing.hierarchy import CROWD, NEVER, Entry, Hierarchy
from tests.effort import effort
from tests.unit.timing.conftest import RecordingClock, Start


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
        assert fired.wait(60)
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
    assert stopped.wait(60)
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
        assert ran.wait(60)
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
    count = effort(50_000, 1_000_000)
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


TICKS = st.one_of(
    st.integers(1, 40),
    st.sampled_from([255, 256, 257, 511, 512, 65_535, 65_536, 65_537, 2**24, 2**40, 2**53]),
    st.integers(1, 2**20),
)


class Numbered(Entry):
    """An entry with a number, to tell it from others."""

    def __init__(self, due: int, number: int) -> None:
        self._due = due
        self._slot = None
        self.number = number


def fill(hierarchy: Hierarchy[Numbered], dues: list[int]) -> list[Numbered]:
    entries = [Numbered(due, number) for number, due in enumerate(dues)]
    for entry in entries:
        hierarchy.place(entry, hierarchy.current)
    return entries


def pull_all(hierarchy: Hierarchy[Numbered], tick: int) -> list[Numbered]:
    pulled: list[Numbered] = []
    while (slot := hierarchy.pull(tick)) is not None:
        assert len({entry._due for entry in slot}) == 1
        pulled.extend(slot)
    return pulled


def remove(entry: Numbered) -> None:
    assert entry._slot is not None
    entry._slot.remove(entry)
    entry._slot = None


def spread(hierarchy: Hierarchy[Numbered]) -> None:
    _, crowded = hierarchy.crowd()
    if crowded is not None:
        hierarchy.spread(crowded)


@mock.patch.object(module, "CROWD", 3)  # so that a few entries are a crowd
@settings(deadline=None)
@given(st.lists(TICKS, max_size=60), st.lists(TICKS, max_size=12), st.data())
def test_it_agrees_with_a_sorted_list(
    dues: list[int], steps: list[int], data: st.DataObject
) -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    waiting = fill(hierarchy, dues)
    number = len(waiting)
    now = 0
    for step in steps:
        now += step
        for _ in range(data.draw(st.integers(0, 2))):
            spread(hierarchy)
        if data.draw(st.booleans()) and waiting:
            remove(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        waiting.sort(key=lambda entry: (entry._due, entry.number))
        assert hierarchy.earliest() <= (waiting[0]._due if waiting else NEVER)
        due = [entry for entry in waiting if entry._due <= now]
        assert pull_all(hierarchy, now) == due
        waiting = waiting[len(due) :]
        for ahead in data.draw(st.lists(TICKS, max_size=4)):
            entry = Numbered(now + ahead, number)
            number += 1
            hierarchy.place(entry, hierarchy.current)
            waiting.append(entry)
        assert len(hierarchy) == len(waiting)
        assert set(hierarchy.in_order()) == set(waiting)


def test_the_earliest_is_exact_while_nothing_is_removed() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    fill(hierarchy, [70_000, 66_000, 300, 2**30])
    assert hierarchy.earliest() == 300
    pull_all(hierarchy, 300)
    assert hierarchy.earliest() == 66_000


def test_removing_one_touches_no_neighbour_in_its_slot() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [5_000] * 100)
    for entry in entries[::2]:
        remove(entry)
    assert pull_all(hierarchy, 5_000) == entries[1::2]


def test_no_empty_slot_is_visited_on_the_way_to_a_far_tick() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    [entry] = fill(hierarchy, [2**52 + 12_345])
    assert hierarchy.pull(2**52) is None
    assert pull_all(hierarchy, 2**52 + 12_345) == [entry]


def test_a_crowded_slot_moves_down_in_parts_ahead_of_time() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [100_000 + number % 7 for number in range(10 * CROWD)])
    begin, _ = hierarchy.crowd()
    assert 65_536 - 20 <= begin < 65_536
    for _ in range(100):
        spread(hierarchy)
    assert hierarchy.crowd()[0] > begin
    late = Numbered(100_000, len(entries))
    hierarchy.place(late, hierarchy.current)
    gone = entries.pop(3)
    remove(gone)
    expected = sorted([*entries, late], key=lambda entry: (entry._due, entry.number))
    assert pull_all(hierarchy, 200_000) == expected


def test_entries_removed_while_their_slot_moves_stay_away() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [70_000] * (3 * CROWD))
    spread(hierarchy)
    for entry in entries[::3]:
        remove(entry)
    kept = [entry for entry in entries if entry._slot is not None]
    spread(hierarchy)
    assert pull_all(hierarchy, 70_000) == kept


def test_empty_slots_do_not_pile_up() -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    for tick in range(1, 50_000):
        hierarchy.pull(tick)
        entry = Numbered(tick + 30_000, tick)
        hierarchy.place(entry, hierarchy.current)
        remove(entry)
    assert len(hierarchy) == 0
    assert sum(len(level.slots) for level in hierarchy._levels) < 2_000


@pytest.mark.parametrize("kept", [1, 40])
def test_a_slot_gives_its_memory_back(kept: int) -> None:
    hierarchy: Hierarchy[Numbered] = Hierarchy(0)
    entries = fill(hierarchy, [70_000] * 10_000)
    slot = entries[0]._slot
    assert slot is not None
    full = slot.__sizeof__()
    for entry in entries[kept:]:
        remove(entry)
    assert slot.__sizeof__() < full / 20
    assert pull_all(hierarchy, 70_000) == entries[:kept]
