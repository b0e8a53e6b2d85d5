"""Bytes a pending timer, and what is left when all are cancelled."""

import gc
import tracemalloc
from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.timing.operations import OURS, delays
from benchmarks.timing.peers import PEERS, Wheel

__all__ = ["MEASUREMENTS"]

COUNT = 200_000


def bytes_each() -> Iterator[Figure]:
    """Count allocated bytes: with handles kept, and after the last was cancelled and dropped."""
    for name, make in PEERS.items():
        peer = make()
        batch = delays(COUNT)
        handles: list[object] = [None] * COUNT
        gc.collect()
        gc.disable()  # what is freed must be free at once
        tracemalloc.start()
        for number, delay in enumerate(batch):
            handles[number] = peer.schedule(delay)
        used = tracemalloc.get_traced_memory()[0] / COUNT
        yield Figure(f"{name}: bytes a timer", used, "B")
        if name != "sched":
            for handle in handles:
                peer.cancel(handle)
            del handle
            handles.clear()
            left = tracemalloc.get_traced_memory()[0] / COUNT
            ours = {"goal": "< 5 B", "met": left < 5} if name in OURS else {}
            yield Figure(f"{name}: bytes left when cancelled", left, "B", **ours)  # type: ignore[arg-type]
        tracemalloc.stop()
        gc.enable()
        if isinstance(peer, Wheel):
            peer.wheel.stop()


MEASUREMENTS = (bytes_each,)
