"""`ScheduledExecutor`: when tasks run, and what one does to another."""

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from concurrent import futures

import pytest

from bide.timing import ScheduledExecutor, ScheduledFuture
from bide.timing.worker_pool import Repetition
from tests.unit.timing.conftest import RecordingClock, Start, pass_time


@pytest.fixture
def executor(clock: RecordingClock) -> Iterator[ScheduledExecutor]:
    executor = ScheduledExecutor(2, clock=clock)
    yield executor
    executor.shutdown(cancel_futures=True)


def test_it_is_an_executor_of_the_standard_library(executor: ScheduledExecutor) -> None:
    assert isinstance(executor, futures.Executor)
    assert executor.submit(pow, 2, 5).result(60) == 32
    assert list(executor.map(pow, [2, 3], [4, 2])) == [16, 9]
    done, waiting = futures.wait([executor.submit(int), executor.submit(int)], 10)
    assert (len(done), waiting) == (2, set())


def test_a_task_runs_when_its_moment_comes(
    clock: RecordingClock, executor: ScheduledExecutor
) -> None:
    future = executor.schedule(divmod, 10, args=(7, 2))
    named = executor.schedule(int, at=clock.now() / 1000 + 20, args=("11",), kwargs={"base": 2})
    assert future.delay() == 10
    pass_time(clock, executor, 9.999)
    assert not future.done()
    pass_time(clock, executor, 0.001)
    assert future.result(60) == (3, 1)
    assert future.runs == 1
    pass_time(clock, executor, 10)
    assert named.result(60) == 3
    assert named.delay() == 0


def test_a_slow_task_delays_no_other_while_a_thread_is_free(
    clock: RecordingClock, executor: ScheduledExecutor
) -> None:
    release = threading.Event()
    slow = executor.schedule(release.wait, 1, args=(20,))
    quick = executor.schedule(lambda: "quick", 1)
    clock.wait_for_waiters()
    clock.advance(1)
    assert quick.result(60) == "quick"
    assert not slow.done()
    assert slow.running()
    assert slow.cancel() is False
    release.set()
    assert slow.result(60) is True


def test_threads_are_started_when_work_is_there(clock: RecordingClock) -> None:
    with ScheduledExecutor(8, clock=clock, thread_name_prefix="few") as executor:
        names = {executor.submit(lambda: threading.current_thread().name).result(60)}
        for _ in range(20):
            clock.wait_for_waiters()
            names.add(executor.submit(lambda: threading.current_thread().name).result(60))
        assert names == {"few-0"}


def test_a_raising_task_ends_only_itself_is_logged_and_keeps_its_error(
    clock: RecordingClock, executor: ScheduledExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: BaseException) -> None:
        raise error

    errors = [ValueError("a"), SystemExit(3), KeyboardInterrupt("c")]
    failing = [executor.schedule(fail, 1, args=(error,)) for error in errors]
    fine = executor.schedule(lambda: "fine", 1)
    pass_time(clock, executor, 1)
    assert fine.result(60) == "fine"
    assert [future.exception(10) for future in failing] == errors
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert executor.submit(fail, ValueError("mine")).exception(10) is not None
    assert len(caplog.records) == 3, "who submits looks at the future"


def test_a_fixed_rate_keeps_to_its_grid(clock: RecordingClock, executor: ScheduledExecutor) -> None:
    ran: list[float] = []

    def task() -> None:
        ran.append(clock.monotonic() - 1_000)
        clock.advance(0.25)  # the run takes this long

    future = executor.schedule_at_fixed_rate(task, 1, initial_delay=2)
    assert future.periodic
    for _ in range(100):
        if len(ran) >= 4:
            break
        pass_time(clock, executor, 0.25)
    assert ran[:4] == [2, 3, 4, 5]
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(futures.CancelledError):
        future.result(0)


def test_a_fixed_delay_counts_from_the_end(
    clock: RecordingClock, executor: ScheduledExecutor
) -> None:
    ran: list[float] = []

    def task() -> None:
        ran.append(clock.monotonic() - 1_000)
        clock.advance(0.25)

    future = executor.schedule_with_fixed_delay(task, 1)
    for _ in range(3):
        pass_time(clock, executor, 1)
    assert ran == [0, 1.25, 2.5, 3.75]
    assert future.runs == 4
    assert future.cancel()


@pytest.mark.parametrize(
    ("overrun", "expected"),
    [("skip", [0, 4, 5]), ("catch_up", [0, 3.5, 3.5, 3.5, 4, 5])],
)
def test_an_overrun_of_a_fixed_rate_is_skipped_or_caught_up(
    clock: RecordingClock, executor: ScheduledExecutor, overrun: str, expected: list[float]
) -> None:
    ran: list[float] = []

    def task() -> None:
        ran.append(clock.monotonic() - 1_000)
        if len(ran) == 1:
            clock.advance(3.5)

    future = executor.schedule_at_fixed_rate(task, 1, overrun=overrun)  # type: ignore[arg-type]
    pass_time(clock, executor, 0.5)
    pass_time(clock, executor, 1)
    assert ran == expected
    assert future.cancel()


def test_an_unknown_overrun_is_refused(executor: ScheduledExecutor) -> None:
    with pytest.raises(ValueError, match="overrun is 'queue'; it can be"):
        executor.schedule_at_fixed_rate(int, 1, overrun="queue")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "skip", "catch_up"),
    [(105, 110, 110), (110, 110, 110), (111, 120, 110), (120, 120, 110), (999, 1_000, 110)],
)
def test_where_a_fixed_rate_goes_on(now: int, skip: int, catch_up: int) -> None:
    assert Repetition(10, "skip").next_due(100, now) == skip
    assert Repetition(10, "catch_up").next_due(100, now) == catch_up
    assert Repetition(10, None).next_due(100, now) == now + 10


def test_a_periodic_task_that_raises_ends_and_keeps_its_error(
    clock: RecordingClock, executor: ScheduledExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    def task() -> None:
        ran.append(1)
        if len(ran) == 3:
            raise ValueError("third time unlucky")

    future = executor.schedule_at_fixed_rate(task, 1)
    other = executor.schedule_at_fixed_rate(int, 1)
    for _ in range(6):
        pass_time(clock, executor, 1)
    assert len(ran) == 3
    assert future.runs == 2
    with pytest.raises(ValueError, match="third time unlucky"):
        future.result(60)
    assert not other.done()
    assert "third time unlucky" in caplog.text


def test_a_task_that_raises_after_it_was_cancelled_is_named_in_the_log(
    clock: RecordingClock, executor: ScheduledExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def named() -> None:
        future.cancel()
        raise ValueError("too late")

    future = executor.schedule_at_fixed_rate(named, 1)
    pass_time(clock, executor, 1)
    (record,) = caplog.records
    assert "named" in record.getMessage()


def test_cancelling_a_periodic_task_from_within_ends_it(
    clock: RecordingClock, executor: ScheduledExecutor
) -> None:
    seen: list[tuple[bool, bool]] = []

    def task() -> None:
        running = future.running()
        seen.append((running, future.cancel()))

    future = executor.schedule_at_fixed_rate(task, 1, initial_delay=1)
    for _ in range(3):
        pass_time(clock, executor, 1)
    assert seen == [(True, True)]
    assert futures.wait([future], 10).done == {future}
    assert not future.running()


def test_cancelling_takes_a_task_back_and_tells_those_who_wait(
    clock: RecordingClock, executor: ScheduledExecutor, start: Start
) -> None:
    future = executor.schedule(int, 100)
    done: list[futures.Future[int]] = []
    waiter = start(lambda: done.extend(futures.as_completed([future], 10)))
    assert [future.cancel(), future.cancel()] == [True, True]
    waiter.join(60)
    assert done == [future]
    assert len(executor._pool._queue) == 0
    finished = executor.submit(int)
    assert finished.result(60) == 0
    assert finished.cancel() is False


def test_tasks_may_schedule_and_cancel(clock: RecordingClock, executor: ScheduledExecutor) -> None:
    results: list[str] = []
    victim = executor.schedule(results.append, 5, args=("victim",))

    def task() -> ScheduledFuture[None]:
        assert victim.cancel()
        return executor.schedule(results.append, 1, args=("child",))

    outer = executor.schedule(task, 1)
    pass_time(clock, executor, 1)
    child = outer.result(60)
    pass_time(clock, executor, 1)
    child.result(60)
    pass_time(clock, executor, 10)
    assert results == ["child"]


@pytest.mark.parametrize("workers", [0, -1])
def test_it_takes_at_least_one_thread(workers: int) -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        ScheduledExecutor(workers)


def test_a_forgotten_executor_finishes_its_tasks_and_ends_its_threads(
    clock: RecordingClock,
) -> None:
    executor = ScheduledExecutor(1, clock=clock)
    future = executor.schedule(lambda: "still ran", 1)
    threads = list(executor._pool._threads)
    del executor
    gc.collect()
    clock.wait_for_waiters()
    clock.advance(1)
    assert future.result(60) == "still ran"
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("end", ["cancel", "run", "raise"])
def test_a_future_that_is_done_keeps_no_task(
    clock: RecordingClock, executor: ScheduledExecutor, end: str
) -> None:
    class Argument:
        pass

    def task(argument: Argument) -> None:
        if end == "raise":
            raise ValueError

    argument = Argument()
    watch = weakref.ref(argument)
    if end == "raise":  # the log would keep the traceback, and that the arguments
        future = executor.submit(task, argument)
    else:
        future = executor.schedule(task, 1, args=(argument,))
    del argument
    if end == "cancel":
        future.cancel()
    pass_time(clock, executor, 1)
    assert future.done()
    if end == "raise":
        error = future.exception()
        assert error is not None
        error.__traceback__ = None
    assert watch() is None


def test_times_at_a_frozen_clock_run_in_the_order_of_scheduling(clock: RecordingClock) -> None:
    ran: list[int] = []
    with ScheduledExecutor(1, clock=clock) as executor:
        for number in range(200):
            executor.schedule(ran.append, args=(number,))
    assert ran == list(range(200))


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_setting_the_wall_clock_moves_no_task(
    clock: RecordingClock, executor: ScheduledExecutor, jump: int
) -> None:
    future = executor.schedule(lambda: "at", at=clock.now() / 1000 + 60)
    clock.set_wall(clock.now() + jump)
    pass_time(clock, executor, 59.9)
    assert not future.done()
    pass_time(clock, executor, 0.1)
    assert future.result(60) == "at"


def test_a_done_callback_runs_once(clock: RecordingClock, executor: ScheduledExecutor) -> None:
    calls: list[str] = []
    future: futures.Future[object] = executor.schedule_at_fixed_rate(int, 1)  # type: ignore[assignment]
    future.add_done_callback(lambda future: calls.append("done"))
    pass_time(clock, executor, 3)
    future.cancel()
    future.cancel()
    assert calls == ["done"]


def test_many_cancelled_tasks_leave_nothing_behind(executor: ScheduledExecutor) -> None:
    cancelled = [executor.schedule(int, 100 + number % 999) for number in range(20_000)]
    assert all(future.cancel() for future in cancelled)
    pool = executor._pool
    assert not pool._live
    entries = pool._queue._entries
    assert len(entries._heap) <= 32
    assert entries.waiting == {}
