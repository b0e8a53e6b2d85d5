"""How late messages are handled beside many others that are due much later."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import bide
from benchmarks.compare.trees import ROOT, environment
from benchmarks.pending.stores import Replicated, open_store
from benchmarks.raw import BODY
from benchmarks.redis.waiting import produce

__all__ = ["BURST", "PENDING", "RATE", "SECONDS", "measure_burst", "measure_pending", "percentiles"]

PENDING = (1_000, 100_000, 1_000_000, 10_000_000)
BURST = 500_000
RATE, SECONDS = 200, 20.0
LIST = 1_000
FAR = "30d"
PATIENCE = 30.0
"""How long the worker waits for what is late."""
SLOWEST = 20_000
"""Puts a second that are made at least; by this a burst is due when all of it is put."""


def percentiles(late: Sequence[float]) -> dict[str, float]:
    """Return what half, 99 % and 99.9 % of the messages do not exceed, and the greatest.

    Example:
        >>> percentiles([float(number) for number in range(1, 1001)])
        {'p50': 501.0, 'p99': 991.0, 'p999': 1000.0, 'max': 1000.0}
    """
    ordered = sorted(late)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {
        **{name: ordered[int(len(ordered) * share)] for name, share in shares.items()},
        "max": ordered[-1],
    }


def measure_pending(store: str, pending: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Fill a new store; yield the lateness while nothing happens, then with a killed primary."""
    with open_store(store) as replicated:
        with bide.Queue("late", replicated.url) as queue:
            begin = time.perf_counter()
            for first in range(0, pending, LIST):
                queue.put_many([BODY] * min(LIST, pending - first), delay=FAR)
            filled = pending / (time.perf_counter() - begin)
        row = {"store": store, "pending": pending, "put": filled}
        yield row | {"state": "quiet"} | _lateness(replicated, seconds)
        if replicated.kill is not None:
            killed = _lateness(replicated, seconds, replicated.kill)
            yield row | {"state": "primary killed"} | killed


def measure_burst(store: str, count: int) -> dict[str, Any]:
    """Handle messages that are due within one second, at even distances."""
    with open_store(store) as replicated, bide.Queue("late", replicated.url) as queue:
        seconds = 5 + count / SLOWEST
        with _handling(replicated.url, count, seconds + 4 * PATIENCE) as result:
            due = time.time() + seconds
            for first in range(0, count, LIST):
                numbers = range(first, min(first + LIST, count))
                queue.put_many([bide.NewMessage(BODY, at=due + n / count) for n in numbers])
            in_time = time.time() < due
            seen = result()
    row: dict[str, Any] = {"store": store, "pending": count, "state": "due in one second"}
    if not in_time:
        return row | {"error": "the machine did not put them before they were due"}
    return row | _row(seen, count) | {"seconds": seen["last"] - due}


def _lateness(
    replicated: Replicated, seconds: float, kill: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Put at an even pace what another process handles, and kill the primary halfway."""
    total = round(RATE * seconds)
    with (
        bide.Queue("late", replicated.url) as queue,
        _handling(replicated.url, total, seconds + 2 * PATIENCE) as result,
    ):
        killer = threading.Timer(seconds / 2, kill) if kill is not None else None
        if killer is not None:
            killer.start()
        produce(queue, RATE, total)
        if killer is not None:
            killer.join()
        return _row(result(), total)


def _row(seen: dict[str, Any], total: int) -> dict[str, Any]:
    """Return the figures of what was handled, and how much was not."""
    late = seen["late"]
    figures = {"messages": total, "missing": total - len(late), "again": seen["again"]}
    return figures | (percentiles(late) if late else {"error": "nothing was handled"})


@contextmanager
def _handling(url: str, total: int, seconds: float) -> Iterator[Callable[[], dict[str, Any]]]:
    """Start a worker in another process; provide what waits for its end and returns its figures."""
    arguments = (url, str(total), str(seconds))
    command = [sys.executable, "-m", "benchmarks.pending.handling", *arguments]
    with subprocess.Popen(
        command, env=environment(ROOT), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            lines = process.stdout
            yield lambda: json.loads(lines.readline())
        finally:
            process.kill()
