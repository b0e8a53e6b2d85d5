"""Threads that are joined, and a clock that remembers who waited for what."""

import threading
from collections.abc import Callable, Iterator

import pytest

from bide.clock import Signal
from bide.testing.clock import FakeClock
from bide.timing import ScheduledExecutor

Start = Callable[[Callable[[], object]], threading.Thread]


class RecordingClock(FakeClock):
    """A `FakeClock` that notes the moment of every wait; None for one without an end."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait_for_wait(self, number: int) -> None:
        """Block until so many waits have begun since the clock was made."""
        with self._new_wait:
            assert self._new_wait.wait_for(lambda: len(self.waits) >= number, 10)

    def wait(self, signal: Signal, moment: float | None) -> bool:
        self.waits.append(moment)
        return super().wait(signal, moment)


@pytest.fixture
def clock() -> RecordingClock:
    return RecordingClock()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a thread; the test fails if it has not ended a while after the test."""
    threads = []

    def run(target: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        threads.append(thread)
        return thread

    yield run
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), f"{thread} still runs"


def pass_time(clock: FakeClock, executor: ScheduledExecutor, seconds: float) -> None:
    """Move the clock, and wait until the threads have done what is due and all wait again."""
    settle(clock, executor)
    clock.advance(seconds)
    settle(clock, executor)


def settle(clock: FakeClock, executor: ScheduledExecutor) -> None:
    threads = executor._pool._threads
    count = 0
    while count != len(threads):
        count = len(threads)
        clock.wait_for_waiters(count)
