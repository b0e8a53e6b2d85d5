"""What ten browsers that show a dashboard cost a worker on the same store: its lateness, in turn
with and without them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import bide
from tests.dashboard.chromium import dashboard

__all__ = ["Beside", "lateness"]

RATE, SECONDS = 100, 4

PAIRS = 7

SETTLE = 1.5
"""Seconds after the start of the processes before the first message."""


class Beside(NamedTuple):
    """The 99th percentiles of lateness in milliseconds, of rounds in turn."""

    alone: list[float]
    shown: list[float]

    @property
    def usual(self) -> tuple[float, float]:
        """The lower quartile of both: a busy machine adds stalls to some rounds."""
        return sorted(self.alone)[PAIRS // 4], sorted(self.shown)[PAIRS // 4]


def lateness(store: str) -> Beside:
    """Measure a worker, in turn without browsers and with ten."""
    found = Beside([], [])
    with dashboard(store) as base:
        for _ in range(PAIRS):
            found.alone.append(_p99(store))
            with _browsers(base):
                found.shown.append(_p99(store))
    return found


@contextmanager
def _browsers(base: str) -> Iterator[None]:
    """Have ten pages open; a process of its own asks as they do."""
    command = [sys.executable, "-m", "benchmarks.dashboard.browsers", base]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # all pages were shown once
        yield
        process.stdin.close()


def _p99(store: str) -> float:
    """Return the 99th percentile of the lateness of messages at an even pace."""
    command = [sys.executable, "-m", "benchmarks.dashboard.worker", store, str(RATE * SECONDS)]
    with (
        bide.Queue("work", store) as queue,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker,
    ):
        assert worker.stdout is not None
        worker.stdout.readline()  # it is at work
        time.sleep(SETTLE)
        begin = time.monotonic()
        for number in range(RATE * SECONDS):
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            queue.put(number, delay=0.3 + number * 7919 % 700 / 1000)
        late: list[float] = sorted(json.loads(worker.stdout.read()))
    return late[int(len(late) * 0.99)]
