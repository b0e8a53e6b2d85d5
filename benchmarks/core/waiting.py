"""How late messages are, and what it costs to wait for them."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import bide
from benchmarks.core.store import BODY, IDLE_SECONDS, RATE, SECONDS, folder, queue_in
from benchmarks.figure import Figure

__all__ = ["MEASUREMENTS"]


def lateness() -> Iterator[Figure]:
    """Two hundred messages a second, put by one process and claimed by another."""
    with folder() as path:
        with queue_in(path) as queue:
            worker = _start("claim", path)
            try:
                time.sleep(0.5)
                _produce(queue)
                late = json.loads(_finish(worker))
            finally:
                worker.kill()
    late.sort()
    p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
    name = f"lateness at {RATE}/s, another process claims"
    yield Figure(f"{name}, p50", p50, "ms", goal="< 1.5 ms", met=p50 < 1.5)
    yield Figure(f"{name}, p99", p99, "ms", goal="< 5 ms", met=p99 < 5)
    yield Figure(f"{name}, max", late[-1], "ms")


def _produce(queue: bide.Queue) -> None:
    """Put messages due in half a second to two seconds, at an even pace."""
    begin = time.monotonic()
    for number in range(RATE * SECONDS):
        pause = begin + number / RATE - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        queue.put(BODY, delay=0.5 + number * 7919 % 1500 / 1000)


def idle() -> Iterator[Figure]:
    """A claimer that waits while 100,000 messages are far off, against one with none."""
    memory = {}
    for count in (0, 100_000):
        with folder() as path:
            with queue_in(path) as queue:
                for _ in range(count // 1_000):
                    queue.put_many([BODY] * 1_000, delay="30d")
                worker = _start("idle", path)
                try:
                    found = json.loads(_finish(worker))
                finally:
                    worker.kill()
        memory[count] = found["rss"]
        if count:
            cpu = found["cpu"]
            yield Figure(
                f"CPU of an idle claimer in {IDLE_SECONDS} s, 100 k pending",
                cpu,
                "s",
                goal="< 0.05 s",
                met=cpu < 0.05,
            )
    full, empty = memory[100_000], memory[0]
    yield Figure(
        "memory of an idle claimer, 100 k pending against none",
        full,
        "MB",
        empty,
        full / empty,
        "< 60 MB, flat",
        full < 60 and full < empty * 1.1,
    )


def _start(role: str, path: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.core.waiter", role, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def _finish(worker: "subprocess.Popen[bytes]") -> bytes:
    output, _ = worker.communicate(timeout=120)
    return output


MEASUREMENTS = (lateness, idle)
