"""Finalizers and signal handlers use what they interrupt: nothing breaks, nothing hangs."""

import gc
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty

import pytest

from bide.threads import deaths
from bide.timing import DelayQueue, ScheduledExecutor, TimingWheel
from tests.effort import effort
from tests.faults.strikes import Late, Struck, alarms

TURNS = effort(1_500, 30_000)


@pytest.fixture
def collector() -> Iterator[None]:
    """Let the collector run at nearly every allocation; it calls finalizers of cycles."""
    before, died = gc.get_threshold(), deaths.total()
    gc.set_threshold(2, 2, 2)
    yield
    gc.set_threshold(*before)
    gc.collect()
    assert deaths.total() == died


class Connection:
    """Has a timeout, and cancels it when it is collected; can only be collected as a cycle."""

    def __init__(self, schedule: Callable[[], object], cancel: Callable[[object], object]) -> None:
        self.me = self
        self._cancel = cancel
        self._timeout = schedule()

    def __del__(self) -> None:
        self._cancel(self._timeout)


def test_finalizers_cancel_timers_of_a_wheel(collector: None) -> None:
    chance = random.Random(1)
    with TimingWheel() as wheel:
        for _ in range(TURNS):
            delay = chance.choice([0.0002, 0.002, 0.3, 70, 20_000])
            Connection(lambda delay=delay: wheel.schedule(list, delay), wheel.cancel)  # type: ignore[misc,arg-type]
            assert wheel.pending >= 0
        fired = ScheduledExecutor(1)
        done = fired.submit(int)
        wheel.schedule(fired.submit, 0.01, args=(int,))
        assert done.result(60) == 0
        fired.shutdown()


def test_finalizers_cancel_tasks_of_an_executor(collector: None) -> None:
    chance = random.Random(1)
    with ScheduledExecutor(2) as executor:
        for _ in range(TURNS):
            delay = chance.choice([0.0002, 0.0005, 0.002])
            Connection(
                lambda delay=delay: executor.schedule(lambda: [[]], delay),  # type: ignore[misc]
                lambda future: future.cancel(),  # type: ignore[attr-defined]
            )
        assert executor.submit(pow, 2, 10).result(60) == 1024


def test_finalizers_put_into_and_remove_from_a_queue(collector: None) -> None:
    queue: DelayQueue[int] = DelayQueue()
    numbers = itertools.count()
    removed: list[int] = []

    def remove(handle: object) -> None:
        if queue.remove(handle):  # type: ignore[arg-type]
            removed.append(handle.item)  # type: ignore[attr-defined]
        queue.put(next(numbers))

    taken: list[int] = []
    for _ in range(TURNS):
        Connection(lambda: queue.put(next(numbers), 3600), remove)
        taken += queue.drain(3)
    gc.set_threshold(700, 10, 10)
    gc.collect()
    taken += queue.drain()
    left = [handle.item for handle in queue]
    assert sorted(taken + removed + left) == list(range(next(numbers)))


@pytest.mark.parametrize("error", [Late, KeyboardInterrupt])
def test_signals_that_strike_a_queue(error: type[BaseException]) -> None:
    """Each item comes out at most once; only a take that was struck may have lost its item."""
    queue: DelayQueue[int] = DelayQueue()
    put: set[int] = set()
    taken: list[int] = []
    lost = 0
    numbers = itertools.count()

    def take() -> int | None:
        try:
            return queue.take(0.0001)
        except Empty:
            return None

    with alarms(error) as strikes:
        while strikes.hits < effort(300, 2_000):
            number = next(numbers)
            answer = strikes.during(partial(queue.put, number, 0.00005))
            if answer is not Struck.STRUCK:
                put.add(number)
            item = strikes.during(take)
            if item is Struck.STRUCK:
                lost += 1
            elif item is not None:
                taken.append(item)
    queue.shutdown()
    while len(queue):
        taken.append(queue.take(60))
    assert len(taken) == len(set(taken))
    assert len(put - set(taken)) <= lost


@pytest.mark.parametrize("error", [Late, KeyboardInterrupt])
def test_signals_that_strike_a_wheel(error: type[BaseException]) -> None:
    fired: list[int] = []
    wheel = TimingWheel()
    scheduled: set[int] = set()
    cancelled: set[int] = set()
    numbers = itertools.count()
    with alarms(error) as strikes:
        while strikes.hits < effort(300, 2_000):
            number = next(numbers)
            delay = (0.0005, 0.3, 20_000)[number % 3]
            timer = strikes.during(
                lambda number=number, delay=delay: wheel.schedule(  # type: ignore[misc]
                    fired.append, delay, args=(number,)
                )
            )
            if timer is Struck.STRUCK:
                continue
            answer = strikes.during(timer.cancel) if number % 2 or delay > 1 else False
            if answer is False:
                scheduled.add(number)
            elif answer is True:
                cancelled.add(number)
    dropped = {timer.args[0] for timer in wheel.stop()}
    assert len(fired) == len(set(fired))
    assert not cancelled & (set(fired) | dropped)
    assert scheduled <= set(fired) | dropped
