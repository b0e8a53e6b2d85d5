"""How late timers start: ten thousand a second, in real time."""

import asyncio
import heapq
import queue as standard
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from benchmarks.figure import Figure
from bide.timing import DelayQueue, ScheduledExecutor, TimingWheel

__all__ = ["MEASUREMENTS"]

RATE = 10_000  # a second
SECONDS = 2
ROUNDS = 3
LEAD = 1.5  # seconds for setting all of them up

Late = list[float]


def moments() -> list[float]:
    """Return random moments of the monotonic clock, at the rate that is measured."""
    begin = time.monotonic() + LEAD
    return [begin + SECONDS * random.random() for _ in range(RATE * SECONDS)]


def wheel() -> Late:
    """`TimingWheel` with a tick of a millisecond."""
    late: Late = []
    wheel = TimingWheel()
    for moment in moments():
        wheel.schedule(_note, _until(moment), args=(late, moment))
    wheel.stop(drain=True)
    return late


def delay_queue() -> Late:
    """One thread that takes from a `DelayQueue`."""
    late: Late = []
    queue: DelayQueue[float] = DelayQueue()
    for moment in moments():
        queue.put(moment, _until(moment))
    for _ in range(RATE * SECONDS):
        moment = queue.take()
        late.append(time.monotonic() - moment)
    return late


def executor() -> Late:
    """`ScheduledExecutor` with two threads; each timer brings a future."""
    late: Late = []
    with ScheduledExecutor(2) as executor:
        for moment in moments():
            executor.schedule(_note, _until(moment), args=(late, moment))
    return late


def call_later() -> Late:
    """`loop.call_later` of asyncio."""
    late: Late = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for moment in moments():
            loop.call_at(moment, _note, late, moment)
        await asyncio.sleep(LEAD + SECONDS + 0.1)

    asyncio.run(main())
    return late


def heap_loop() -> Late:
    """`heapq` and a condition, as people write it."""
    late: Late = []
    heap = moments()
    heapq.heapify(heap)
    condition = threading.Condition()
    with condition:
        while heap:
            wait = heap[0] - time.monotonic()
            if wait > 0:
                condition.wait(wait)
            else:
                _note(late, heapq.heappop(heap))
    return late


def threads() -> Late:
    """`threading.Timer`: a fiftieth of the rate, for each is a thread."""
    late: standard.SimpleQueue[float] = standard.SimpleQueue()
    timers = []
    for moment in moments()[::50]:
        timer = threading.Timer(
            _until(moment), lambda moment=moment: late.put(time.monotonic() - moment)
        )
        timer.start()
        timers.append(timer)
    for timer in timers:
        timer.join()
    return [late.get() for _ in timers]


def _until(moment: float) -> float:
    return max(0.0, moment - time.monotonic())


def _note(late: Late, moment: float) -> None:
    late.append(time.monotonic() - moment)


WAYS: dict[str, tuple[Callable[[], Late], bool]] = {
    "TimingWheel": (wheel, True),
    "DelayQueue": (delay_queue, True),
    "ScheduledExecutor": (executor, False),
    "asyncio.call_later": (call_later, False),
    "heapq and a condition": (heap_loop, False),
    "threading.Timer, 200/s": (threads, False),
}


def late_starts() -> Iterator[Figure]:
    """Medians of the rounds."""
    for name, (way, ours) in WAYS.items():
        middle, worst = [], []
        for _ in range(ROUNDS):
            late = sorted(way())
            middle.append(1000 * late[len(late) // 2])
            worst.append(1000 * late[len(late) * 99 // 100])
        p99 = statistics.median(worst)
        yield Figure(f"{name}: lateness p50", statistics.median(middle), "ms")
        if ours:
            yield Figure(f"{name}: lateness p99", p99, "ms", goal="< 2 ms", met=p99 < 2)
        else:
            yield Figure(f"{name}: lateness p99", p99, "ms")


MEASUREMENTS = (late_starts,)
