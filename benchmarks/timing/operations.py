"""Schedule, cancel and fire a million timers, in nanoseconds each."""

import gc
import random
import statistics
import threading
import time
from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.timing.peers import PEERS, Wheel
from bide.timing import DelayQueue

__all__ = ["MEASUREMENTS"]

MILLION = 1_000_000
BATCH = 100_000
OURS = ("TimingWheel", "DelayQueue")


def delays(count: int) -> list[float]:
    """Return random delays within an hour, none so near that it is due meanwhile."""
    choose = random.Random(count)
    return [60 + 3_540 * choose.random() for _ in range(count)]


def schedule_and_cancel() -> Iterator[Figure]:
    """Schedule and cancel batches while so many others are pending.

    How much more a cancel costs beside a million is told beside what it costs a dict more: an entry
    has to be found in memory that no cache holds.
    """
    cancels: dict[tuple[str, int], float] = {}
    for pending in (1_000, MILLION):
        for name, make in PEERS.items():
            peer = make()
            others = [peer.schedule(delay) for delay in delays(pending)]
            gc.collect()
            scheduling, cancelling = [], []
            for _ in range(5):
                batch = delays(BATCH)
                start = time.process_time_ns()
                handles = [peer.schedule(delay) for delay in batch]
                scheduling.append((time.process_time_ns() - start) / BATCH)
                if name == "sched":
                    continue
                random.Random(1).shuffle(handles)
                start = time.process_time_ns()
                for handle in handles:
                    peer.cancel(handle)
                cancelling.append((time.process_time_ns() - start) / BATCH)
                del handles, handle
            del others
            yield _each(f"{name}: schedule at {pending:,}", scheduling, name, 1_500)
            if cancelling:
                cancels[name, pending] = statistics.median(cancelling)
                yield _each(f"{name}: cancel at {pending:,}", cancelling, name, 1_500)
            if isinstance(peer, Wheel):
                peer.wheel.stop()
    growth = {name: cancels[name, MILLION] - cancels[name, 1_000] for name, _ in cancels}
    for name in OURS:
        yield Figure(f"{name}: a cancel's growth", growth[name], "ns", limit=growth["dicts"])


def fill_and_fire() -> Iterator[Figure]:
    """Schedule a million from nothing, garbage collection of all that included, and fire them."""
    for name, make in PEERS.items():
        peer = make()
        gc.collect()
        batch = delays(MILLION)
        start = time.process_time_ns()
        for delay in batch:
            peer.schedule(delay)
        filling = (time.process_time_ns() - start) / MILLION
        start = time.process_time_ns()
        peer.fire()
        firing = (time.process_time_ns() - start) / MILLION
        yield Figure(f"{name}: fill to 1,000,000", filling, "ns")
        yield _each(f"{name}: fire 1,000,000", [firing], name, 3_000)


def take_due() -> Iterator[Figure]:
    """Take heads that are due: from a backlog, and one put a moment ago."""
    queue: DelayQueue[None] = DelayQueue()
    for _ in range(MILLION):
        queue.put(None)
    rounds = []
    for _ in range(5):
        start = time.process_time_ns()
        for _ in range(BATCH):
            queue.take()
        rounds.append((time.process_time_ns() - start) / BATCH)
    yield _each("DelayQueue: take of a due head", rounds, "DelayQueue", 2_000)
    queue = DelayQueue()
    rounds = []
    for _ in range(5):
        start = time.process_time_ns()
        for _ in range(BATCH):
            queue.put(None)
            queue.take()
        rounds.append((time.process_time_ns() - start) / BATCH)
    yield Figure("DelayQueue: put and take at once", statistics.median(rounds), "ns")


def threading_timer() -> Iterator[Figure]:
    """Start and cancel `threading.Timer`: two hundred, for each is a thread."""
    timers = [threading.Timer(60, int) for _ in range(200)]
    start = time.perf_counter_ns()
    for timer in timers:
        timer.start()
    starting = (time.perf_counter_ns() - start) / len(timers)
    start = time.perf_counter_ns()
    for timer in timers:
        timer.cancel()
    cancelling = (time.perf_counter_ns() - start) / len(timers)
    for timer in timers:
        timer.join()
    yield Figure("threading.Timer: schedule at 200", starting, "ns")
    yield Figure("threading.Timer: cancel at 200", cancelling, "ns")


def _each(what: str, rounds: list[float], name: str, goal: float) -> Figure:
    value = statistics.median(rounds)
    if name not in OURS:
        return Figure(what, value, "ns")
    return Figure(what, value, "ns", goal=f"< {goal:,.0f} ns", met=value < goal)


MEASUREMENTS = (schedule_and_cancel, fill_and_fire, take_due, threading_timer)
