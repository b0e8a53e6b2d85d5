"""`ScheduledExecutor`: what becomes of its tasks when it is shut down."""

import threading
from concurrent import futures
from types import TracebackType

import pytest

from bide.timing import ScheduledExecutor, ShutDown
from tests.unit.timing.conftest import RecordingClock, pass_time, settle

POLICIES = [(True, False), (False, False), (True, True), (False, True)]


@pytest.mark.parametrize(("delayed", "periodic"), POLICIES)
def test_shutdown_follows_the_policies(
    clock: RecordingClock, delayed: bool, periodic: bool
) -> None:
    executor = ScheduledExecutor(
        1,
        clock=clock,
        execute_delayed_after_shutdown=delayed,
        continue_periodic_after_shutdown=periodic,
    )
    once = executor.schedule(lambda: "ran", 5)
    often = executor.schedule_at_fixed_rate(int, 2, initial_delay=2)
    executor.shutdown(wait=False)
    with pytest.raises(ShutDown, match="takes no more tasks"):
        executor.schedule(int, 1)
    with pytest.raises(RuntimeError):
        executor.submit(int)
    assert once.cancelled() is not delayed
    assert often.cancelled() is not periodic
    if delayed or periodic:
        pass_time(clock, executor, 2)
        clock.advance(3)
    if delayed:
        assert once.result(60) == "ran"
    if periodic:
        settle(clock, executor)
        assert often.runs >= 1
        assert often.cancel()
    executor.shutdown(wait=True)
    assert all(not thread.is_alive() for thread in executor._pool._threads)


def test_shutdown_can_cancel_all_that_has_not_started(clock: RecordingClock) -> None:
    executor = ScheduledExecutor(1, clock=clock, continue_periodic_after_shutdown=True)
    started, release = threading.Event(), threading.Event()

    def busy() -> str:
        started.set()
        assert release.wait(60)
        return "finished"

    running = executor.submit(busy)
    assert started.wait(60)
    queued = executor.submit(int)
    later = executor.schedule(int, 1)
    often = executor.schedule_at_fixed_rate(int, 1)
    executor.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in (queued, later, often)] == [True, True, True]
    release.set()
    executor.shutdown()
    assert running.result(0) == "finished"


def test_a_task_that_shuts_its_executor_down_does_not_wait_for_itself(
    clock: RecordingClock,
) -> None:
    executor = ScheduledExecutor(1, clock=clock)
    assert executor.submit(executor.shutdown).result(60) is None
    executor.shutdown()


def test_shutting_down_twice_or_unused_is_fine(clock: RecordingClock) -> None:
    with ScheduledExecutor(clock=clock) as executor:
        executor.shutdown()
    executor.shutdown(wait=True, cancel_futures=True)


class Gate:
    """A lock at which the thread that called `close` is stopped when it next comes to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stops: threading.Thread | None = None
        self.reached = threading.Event()
        self.open = threading.Event()

    def close(self) -> None:
        self._stops = threading.current_thread()

    def __enter__(self) -> None:
        if self._stops is threading.current_thread():
            self._stops = None
            self.reached.set()
            assert self.open.wait(60)
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()


def test_a_periodic_task_about_to_be_queued_again_hears_of_a_shutdown(
    clock: RecordingClock,
) -> None:
    executor = ScheduledExecutor(1, clock=clock)
    gate = Gate()
    executor._pool._lock = gate
    often = executor.schedule_at_fixed_rate(gate.close, 1)
    assert gate.reached.wait(60), "the first run is over, and the task not queued again yet"
    executor.shutdown(wait=False)  # cancels it, and shuts the queue: nothing is live
    gate.open.set()
    assert futures.wait([often], 10).done == {often}, "those who wait are told"
    executor.shutdown()
    assert often.cancelled()
    assert often.runs == 1
    assert len(executor._pool._queue) == 0
