"""The memory engine by itself."""

import statistics
import time
from collections.abc import Iterator

from benchmarks.figure import Figure
from bide.engines.memory import MemoryEngine
from bide.model.commands import Ack, Claim, Lease, Put
from bide.model.identity import new_ids
from bide.model.message import Item
from bide.model.replies import Claimed

__all__ = ["MEASUREMENTS"]

COUNT = 100_000
BATCH = 500


def memory_engine() -> Iterator[Figure]:
    """Put, then claim and ack, in batches of 500."""
    rounds = [_round() for _ in range(5)]
    for name, number in (("put", 0), ("claim + ack", 1)):
        rate = statistics.median(figures[number] for figures in rounds)
        yield Figure(
            f"memory engine, {name} in batches of 500",
            rate,
            "/s",
            goal="250,000 /s",
            met=rate >= 250_000,
        )


def _round() -> tuple[float, float]:
    engine = MemoryEngine()
    items = [Item(id, b"x" * 256, delay=number // 100) for number, id in enumerate(new_ids(COUNT))]
    start = time.perf_counter()
    for first in range(0, COUNT, BATCH):
        engine.execute([Put("work", items[first : first + BATCH])], now=1_000)
    put = COUNT / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(COUNT // BATCH):
        (claimed,) = engine.execute([Claim("work", BATCH, 30_000, "me")], now=10_000_000)
        assert isinstance(claimed, Claimed)
        leases = [Lease(message.id, claimed.token) for message in claimed.messages]
        engine.execute([Ack("work", leases)], now=10_000_000)
    return put, COUNT / (time.perf_counter() - start)


MEASUREMENTS = (memory_engine,)
