"""How fast one looks ahead when many messages are pending."""

import statistics
import time
from collections.abc import Iterator

import bide
from benchmarks.core.store import BODY, folder, queue_in
from benchmarks.figure import Figure

__all__ = ["DAY", "MEASUREMENTS", "forecast"]

PENDING = 10_000_000
BATCH = 10_000
DAY = 86_400


def looking() -> Iterator[Figure]:
    """A forecast of 720 hours (some minutes: the store is filled first)."""
    with folder() as path, queue_in(path) as queue:
        yield forecast(queue, time.time(), PENDING, BATCH, 50)


def forecast(queue: bide.Queue, now: float, pending: int, batch: int, goal: float) -> Figure:
    """Put messages due within a month, a batch at a time; time forecasts, with a goal in ms."""
    for first in range(0, pending, batch):
        queue.put_many(
            bide.NewMessage(BODY, at=now + 3600 + n / pending * 30 * DAY)
            for n in range(first, first + batch)
        )
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        queue.forecast("1h", "30d")
        times.append((time.perf_counter() - begin) * 1000)
    value, name = statistics.median(times), f"forecast of 720 hours, {pending / 1e6:g} M pending"
    return Figure(name, value, "ms", goal=f"<= {goal:g} ms", met=value <= goal)


MEASUREMENTS = (looking,)
