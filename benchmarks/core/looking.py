"""How fast one looks ahead when many messages are pending."""

import statistics
import time
from collections.abc import Iterator

import bide
from benchmarks.core.store import BODY, folder, queue_in
from benchmarks.figure import Figure

__all__ = ["MEASUREMENTS"]

PENDING = 10_000_000
BATCH = 10_000
MONTH = 30 * 86_400


def looking() -> Iterator[Figure]:
    """A forecast of 720 hours (some minutes: the store is filled first)."""
    with folder() as path, queue_in(path) as queue:
        now = time.time()
        for first in range(0, PENDING, BATCH):
            numbers = range(first, first + BATCH)
            queue.put_many(
                bide.NewMessage(BODY, at=now + 3600 + n / PENDING * MONTH) for n in numbers
            )
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            queue.forecast("1h", "30d")
            times.append((time.perf_counter() - begin) * 1000)
    value = statistics.median(times)
    yield Figure("forecast of 720 hours, 10 M pending", value, "ms", goal="<= 50 ms",
                 met=value <= 50)  # fmt: skip


MEASUREMENTS = (looking,)
