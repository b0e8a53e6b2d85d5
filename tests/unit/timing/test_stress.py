"""Many threads, finalizers and signal handlers: nothing breaks, nothing hangs."""

import gc
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty

import pytest

from bide.testing.clock import FakeClock
from bide.threads import deaths
from bide.timing import Delayed, DelayQueue, ScheduledExecutor, ShutDown, TimingWheel
from tests.effort import effort
from tests.system.faults.strikes import Late, Struck, alarms
from tests.unit.timing.conftest import Start

ITEMS = 4_000  # a thread
EACH = effort(150, 500)
"""How many futures a thread makes: the periodic ones run again at each step of the clock."""


@pytest.mark.parametrize("takers", [1, 4])
def test_a_queue_conserves_its_items(start: Start, takers: int) -> None:
    clock = FakeClock()
    queue: DelayQueue[int] = DelayQueue(clock=clock)
    taken: list[list[int]] = [[] for _ in range(takers)]
    removed: list[list[int]] = [[], [], []]

    def put(number: int) -> None:
        choose = random.Random(number)
        handles: list[Delayed[int]] = []
        for item in range(number * ITEMS, (number + 1) * ITEMS):
            delay = choose.choice([0, 0, 0.0003, 0.01, 1, 70])
            handles.append(queue.put(item, delay, priority=choose.randrange(3)))
            if choose.random() < 0.4:
                handle = handles.pop(choose.randrange(len(handles)))
                if queue.remove(handle):
                    removed[number].append(handle.item)
                assert not queue.remove(handle)

    def take(number: int) -> None:
        while True:
            try:
                taken[number].append(queue.take())
            except ShutDown:
                return

    consumers = [start(lambda number=number: take(number)) for number in range(takers)]  # type: ignore[misc]
    producers = [start(lambda number=number: put(number)) for number in range(3)]  # type: ignore[misc]
    while any(thread.is_alive() for thread in producers):
        clock.advance(0.01)
        producers[0].join(0.001)
    queue.shutdown()
    while any(thread.is_alive() for thread in consumers):
        clock.advance(100)
        consumers[0].join(0.001)
    out = [item for items in taken + removed for item in items]
    assert sorted(out) == list(range(3 * ITEMS)), "each item exactly once"
    assert len(queue) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_wheel_conserves_its_timers(start: Start, seed: int) -> None:
    clock = FakeClock()
    wheel = TimingWheel(clock=clock)
    fired: list[int] = []
    cancelled: list[list[int]] = [[], [], []]

    def schedule(number: int) -> None:
        choose = random.Random(seed * 10 + number)
        handles = []
        for item in range(number * ITEMS, (number + 1) * ITEMS):
            delay = choose.choice([0, 0.001, 0.002, 0.3, 70, 20_000])
            handles.append((item, wheel.schedule(fired.append, delay, args=(item,))))
            if choose.random() < 0.4:
                gone, handle = handles.pop(choose.randrange(len(handles)))
                if handle.cancel():
                    cancelled[number].append(gone)
                assert not handle.cancel()

    threads = [start(lambda number=number: schedule(number)) for number in range(3)]  # type: ignore[misc]
    while any(thread.is_alive() for thread in threads):
        clock.advance(0.01)
        threads[0].join(0.001)
    clock.wait_for_waiters()
    clock.advance(20_001)
    assert wheel.stop(drain=True) == []
    out = fired + [item for items in cancelled for item in items]
    assert sorted(out) == list(range(3 * ITEMS)), "each timer fired or cancelled, never both"


def test_an_executor_settles_every_future(start: Start) -> None:
    clock = FakeClock()
    executor = ScheduledExecutor(4, clock=clock)
    ran: list[int] = []
    futures = []
    lock = threading.Lock()

    def schedule(number: int) -> None:
        choose = random.Random(number)
        for item in range(number * EACH, (number + 1) * EACH):
            if choose.random() < 0.2:
                future = executor.schedule_at_fixed_rate(int, choose.choice([0.001, 0.01]))
            else:
                delay = choose.choice([0, 0.001, 0.01, 5])
                future = executor.schedule(ran.append, delay, args=(item,))
            with lock:
                futures.append(future)
                other = choose.choice(futures)
            if choose.random() < 0.3:
                other.cancel()

    threads = [start(lambda number=number: schedule(number)) for number in range(3)]  # type: ignore[misc]
    while any(thread.is_alive() for thread in threads):
        clock.advance(0.01)
        threads[0].join(0.001)
    executor.shutdown(wait=False)
    ending = start(executor.shutdown)
    while ending.is_alive():
        clock.advance(5)
        ending.join(0.001)
    assert all(future.done() for future in futures)
    once = [future for future in futures if not future.periodic]
    assert len(ran) == len(set(ran)) == sum(not future.cancelled() for future in once)
    assert not executor._pool._live


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


@pytest.mark.own_process
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
        while strikes.hits < effort(150, 2_000):
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


@pytest.mark.own_process
@pytest.mark.parametrize("error", [Late, KeyboardInterrupt])
def test_signals_that_strike_a_wheel(error: type[BaseException]) -> None:
    fired: list[int] = []
    wheel = TimingWheel()
    scheduled: set[int] = set()
    cancelled: set[int] = set()
    numbers = itertools.count()
    with alarms(error) as strikes:
        while strikes.hits < effort(150, 2_000):
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
