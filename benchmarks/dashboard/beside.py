"""What ten browsers that show a dashboard cost a worker on the same store: its lateness, in turn
with and without them."""

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import bide
from tests.dashboard.chromium import dashboard

__all__ = ["Beside", "lateness"]

BROWSERS = 10

EVERY = 2.0
"""Seconds after which an open page asks for its next state."""

LIVE = ("", "queue?queue=parcels", "queue?queue=work", "workers", "dead?queue=letters")
"""The pages that are open."""

RATE, SECONDS = 100, 6

PAIRS = 5


class Beside(NamedTuple):
    """The 99th percentiles of lateness in milliseconds, of rounds in turn."""

    alone: list[float]
    shown: list[float]

    @property
    def medians(self) -> tuple[float, float]:
        """The medians of both."""
        return statistics.median(self.alone), statistics.median(self.shown)


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
    command = [sys.executable, "-m", "benchmarks.dashboard.beside", base]
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
        begin = time.monotonic()
        for number in range(RATE * SECONDS):
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            queue.put(number, delay=0.3 + number * 7919 % 700 / 1000)
        late: list[float] = sorted(json.loads(worker.stdout.read()))
    return late[int(len(late) * 0.99)]


def _show(base: str, path: str, shown: threading.Semaphore, after: float) -> None:
    """Ask for a page again and again, as an open one does."""
    where = urlsplit(base)
    connection = http.client.HTTPConnection(where.netloc, timeout=60)
    time.sleep(after)
    while True:
        connection.request("GET", where.path + path, headers={"hx-request": "true"})
        reply = connection.getresponse()
        reply.read()
        shown.release()
        time.sleep(EVERY)


def main(base: str) -> None:
    """Have the pages open until the input ends."""
    shown = threading.Semaphore(0)
    for number in range(BROWSERS):
        arguments = base, LIVE[number % len(LIVE)], shown, number * EVERY / BROWSERS
        threading.Thread(target=_show, args=arguments, daemon=True).start()
    for _ in range(BROWSERS):
        shown.acquire()
    print("shown", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
