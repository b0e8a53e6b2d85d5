"""What ten browsers that show a dashboard cost a worker on the same store: its lateness, in turn
with and without open pages; and what the dashboard itself uses of a processor."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

import bide
from benchmarks.dashboard.processor import used
from tests.system.dashboard.chromium import dashboard_process

__all__ = ["RATE", "Beside", "lateness"]

RATE, SECONDS = 200, 4

PAIRS = 4

SETTLE = 1.5
"""Seconds after the start of the processes before the first message."""


class Beside(NamedTuple):
    """The 99th percentiles of lateness in milliseconds, of rounds in turn."""

    alone: list[float]
    shown: list[float]
    seconds: float
    """How long the pages were open."""
    serving: float
    """Seconds of processor time of the dashboard meanwhile."""
    showing: float
    """The same of the browsers."""

    @property
    def usual(self) -> tuple[float, float]:
        """The lower quartile of both: a busy machine adds stalls to some rounds."""
        return sorted(self.alone)[PAIRS // 4], sorted(self.shown)[PAIRS // 4]


class _Browsers(NamedTuple):
    process: "subprocess.Popen[str]"
    input: IO[str]
    output: IO[str]

    def tell(self, word: str) -> None:
        """Open or close the pages."""
        self.input.write(f"{word}\n")
        self.input.flush()
        self.output.readline()  # it is done


def lateness(store: str) -> Beside:
    """Measure a worker, in turn without open pages and with ten."""
    alone, shown = list[float](), list[float]()
    seconds = serving = showing = 0.0
    with dashboard_process(store) as (base, server), _browsers(base) as browsers:
        _p99(store)  # the first round is always slower: it reads what the others find in memory
        for _ in range(PAIRS):
            alone.append(_p99(store))
            browsers.tell("show")
            since = time.monotonic()
            before = used(server), used(browsers.process.pid)
            shown.append(_p99(store))
            serving += used(server) - before[0]
            showing += used(browsers.process.pid) - before[1]
            seconds += time.monotonic() - since
            browsers.tell("hide")
            line = f"p99 alone {alone[-1]:.1f} ms, beside ten browsers {shown[-1]:.1f} ms"
            print(line, file=sys.stderr)
    return Beside(alone, shown, seconds, serving, showing)


@contextmanager
def _browsers(base: str) -> Iterator[_Browsers]:
    """Start ten browsers, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.dashboard.browsers", base]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "started\n":
            raise RuntimeError("the browsers did not start; they need chromium and chromium-driver")
        yield _Browsers(process, process.stdin, process.stdout)
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
