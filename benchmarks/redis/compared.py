"""bide beside the commonest home-made designs, all with 100,000 messages pending."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.figure import Figure
from benchmarks.redis.designs import Bide, Design, Locked, Polling, TwoStructures
from benchmarks.redis.store import BATCH, PENDING, server_cpu, store

__all__ = ["MEASUREMENTS"]

DESIGNS: dict[str, Callable[[Any, str], Design]] = {
    "bide": Bide,
    "poll each second": Polling,
    "one global lock": Locked,
    "timeout set and full list": TwoStructures,
}
DUE = 5_000
CANCELS = 200
RATE, SECONDS = 200, 5
PATIENCE = 30.0


def compared() -> Iterator[Figure]:
    """Throughput, lateness and the cost of a cancel, of each design on a server of its own."""
    for name, make in DESIGNS.items():
        with store() as (queue, client):
            design = make(client, queue.url)
            far = time.time() + 86_400
            for first in range(0, PENDING, BATCH):
                design.put([(f"far-{n}", far + n) for n in range(first, first + BATCH)])
            yield from _cancels(name, design, client)
            yield from _drain(name, design, client)
            yield from _lateness(name, design)


def _cancels(name: str, design: Design, client: Any) -> Iterator[Figure]:
    spent = server_cpu(client)
    begin = time.perf_counter()
    for number in range(CANCELS):
        assert design.cancel(f"far-{number * PENDING // CANCELS}")
    wall = (time.perf_counter() - begin) / CANCELS * 1e6
    cpu = (server_cpu(client) - spent) / CANCELS * 1e6
    yield Figure(f"{name}: a cancel", wall, "µs")
    yield Figure(f"{name}: a cancel, the server's processor", cpu, "µs")


class _Handled:
    """What consumers have handled, and when."""

    def __init__(self, wanted: int) -> None:
        self.at: dict[str, float] = {}
        self.over = threading.Event()
        self._wanted = wanted

    def __call__(self, id: str) -> None:
        self.at.setdefault(id, time.time())
        if len(self.at) >= self._wanted:
            self.over.set()


def _consume(design: Design, handled: _Handled, put: Callable[[], None]) -> None:
    stop = threading.Event()
    threads = design.consumers(handled, stop)
    for thread in threads:
        thread.start()
    put()
    handled.over.wait(PATIENCE)
    stop.set()
    for thread in threads:
        thread.join()


def _drain(name: str, design: Design, client: Any) -> Iterator[Figure]:
    """Messages that are due already when consumers start."""
    now = time.time() - 1
    design.put([(f"due-{n}", now) for n in range(DUE)])
    handled = _Handled(DUE)
    spent, begin = server_cpu(client), time.time()
    _consume(design, handled, lambda: None)
    seconds = max(handled.at.values()) - begin
    cpu = (server_cpu(client) - spent) / len(handled.at) * 1e6
    yield Figure(f"{name}: handled by four threads", len(handled.at) / seconds, "/s")
    yield Figure(f"{name}: a message handled, the server's processor", cpu, "µs")


def _lateness(name: str, design: Design) -> Iterator[Figure]:
    """Two hundred messages a second, due half a second to two seconds after they were put."""
    dues: dict[str, float] = {}

    def produce() -> None:
        begin = time.time()
        for number in range(RATE * SECONDS):
            time.sleep(max(0, begin + number / RATE - time.time()))
            due = time.time() + 0.5 + number * 7919 % 1500 / 1000
            dues[f"late-{number}"] = due
            design.put([(f"late-{number}", due)])

    handled = _Handled(RATE * SECONDS)
    _consume(design, handled, produce)
    late = sorted(1000 * (at - dues[id]) for id, at in handled.at.items() if id in dues)
    yield Figure(f"{name}: lateness at {RATE}/s, p50", statistics.median(late), "ms")
    yield Figure(f"{name}: lateness at {RATE}/s, p99", _percentile(late, 0.99), "ms")


def _percentile(values: Sequence[float], share: float) -> float:
    return values[int(len(values) * share)]


MEASUREMENTS = (compared,)
