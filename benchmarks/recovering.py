"""Fresh messages while a backlog drains after an outage: with a plan, and without.

`BIDE_OVERDUE=1000000` in the environment sets how many messages are overdue.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import bide
from benchmarks.compare.stores import open_store
from benchmarks.figure import Figure

__all__ = ["run"]

OVERDUE = int(os.environ.get("BIDE_OVERDUE", "50000"))
PER_SECOND = 2_000
"""How many overdue messages the plan lets be due per second."""
EVERY = 0.01
"""Seconds between two fresh messages."""
AHEAD = 0.05
"""Seconds for which a fresh message waits for its due time."""
AT_ONCE = 50
"""How many messages a claim takes."""
GOAL = 1_000.0
"""The p99 of the lateness of fresh messages that is to be reached, in milliseconds."""


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all stores whose name has a word."""
    for kind in ("sqlite", "memory", "postgres", "redis"):
        if only not in kind:
            continue
        for planned in (False, True):
            with (
                TemporaryDirectory() as folder,
                open_store(kind, Path(folder)) as url,
                bide.Queue("mails", url) as queue,
            ):
                yield from _drain(kind, queue, planned=planned)


def _drain(kind: str, queue: bide.Queue, *, planned: bool) -> Iterator[Figure]:
    """Handle what is overdue and what is fresh; return how late the fresh ones began."""
    hour_ago = time.time() - 3_600
    for first in range(0, OVERDUE, 1_000):
        queue.put_many(range(first, min(first + 1_000, OVERDUE)), at=hour_ago)
    how = "with a plan" if planned else "without one"
    if planned:
        begin = time.perf_counter()
        queue.recover(bide.Recovery(spread=OVERDUE / PER_SECOND))
        seconds = time.perf_counter() - begin
        yield Figure(f"{kind}: recover {OVERDUE:,}", OVERDUE / seconds, "/s")
    lateness: list[float] = []
    left, fresh = OVERDUE, 0

    def work() -> None:
        nonlocal left
        while left > 0 or len(lateness) < fresh:
            deliveries = queue.claim(AT_ONCE, wait=0.2)
            for delivery in deliveries:
                if delivery.body == "fresh":
                    lateness.append(delivery.lateness * 1_000)
                else:
                    left -= 1
            queue.ack(deliveries)

    worker = threading.Thread(target=work)
    worker.start()
    while left > 0:
        fresh += 1
        queue.put("fresh", delay=AHEAD)
        time.sleep(EVERY)
    worker.join()
    lateness.sort()
    for percent in (50, 99):
        value = lateness[len(lateness) * percent // 100] if lateness else 0.0
        is_goal = planned and percent == 99
        yield Figure(
            f"{kind}: p{percent} lateness of {len(lateness):,} fresh messages, {how}",
            value,
            "ms",
            goal=f"< {GOAL:,.0f} ms" if is_goal else "",
            met=value < GOAL if is_goal else None,
        )
