"""Many threads at once: whatever went in comes out once, or was taken back, and never both."""

import random
import threading

import pytest

from bide.testing.clock import FakeClock
from bide.timing import Delayed, DelayQueue, ScheduledExecutor, ShutDown, TimingWheel
from tests.effort import effort
from tests.timing.conftest import Start

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
