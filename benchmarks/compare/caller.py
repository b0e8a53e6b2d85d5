"""One side of a comparison: measure what standard input names, with the bide on the path.

`BIDE_URL=... python -m benchmarks.compare.caller STORE SECONDS` reads a row's name from each line,
and answers with a line of JSON. It uses public names alone, so that older trees can run it.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import bide
from benchmarks.compare.raw_work import Kind, RawWork, raw_work
from benchmarks.raw import BODY

__all__ = ["ROWS", "Row"]

TASKS = 64
LATER = "1h"
RAW_COUNT = 20
BACKLOG = 5_000


@dataclass(frozen=True)
class Row:
    """One kind of work.

    Args:
        measure: does a round of so many messages; returns the seconds that it took.
        count: of messages a round.
        raw: what its time is held against.
        backlog: messages that are due, and stay so.
    """

    measure: Callable[[bide.Queue, int], float]
    count: int
    raw: Kind
    backlog: int = 0


def _seconds(work: Callable[[Any], object], arguments: Sequence[object]) -> float:
    start = time.perf_counter()
    for argument in arguments:
        work(argument)
    return time.perf_counter() - start


def _ids(queue: bide.Queue, count: int) -> list[str]:
    return [outcome.id for outcome in queue.put_many([BODY] * count, delay=LATER)]


def _put(queue: bide.Queue, count: int) -> float:
    return _seconds(lambda body: queue.put(body, delay=LATER), [BODY] * count)


def _get(queue: bide.Queue, count: int) -> float:
    return _seconds(queue.get, _ids(queue, count))


def _cancel(queue: bide.Queue, count: int) -> float:
    return _seconds(queue.cancel, _ids(queue, count))


def _put_many(queue: bide.Queue, count: int) -> float:
    batches = [[BODY] * 100] * (count // 100)
    return _seconds(lambda bodies: queue.put_many(bodies, delay=LATER), batches)


def _claim_one(queue: bide.Queue, count: int) -> float:
    queue.put_many([BODY] * count)

    def claim_and_ack(_: object) -> None:
        (delivery,) = queue.claim(1)
        delivery.ack()

    return _seconds(claim_and_ack, range(count))


def _claim_many(size: int) -> Callable[[bide.Queue, int], float]:
    def measure(queue: bide.Queue, count: int) -> float:
        queue.put_many([BODY] * count)

        def claim_and_ack(_: object) -> None:
            deliveries = queue.claim(size)
            assert len(deliveries) == size, len(deliveries)
            assert all(queue.ack(deliveries))

        return _seconds(claim_and_ack, range(count // size))

    return measure


def _tasks(_: bide.Queue, count: int) -> float:
    async def produce(other: bide.AsyncQueue) -> None:
        for _ in range(count // TASKS):
            await other.put(BODY, delay=LATER)

    async def run() -> float:
        async with bide.AsyncQueue("tasks") as other:
            await other.put(BODY, delay=LATER)
            start = time.perf_counter()
            await asyncio.gather(*(produce(other) for _ in range(TASKS)))
            return time.perf_counter() - start

    return asyncio.run(run())


ROWS = {
    "put": Row(_put, 50, "write"),
    "get": Row(_get, 100, "read"),
    "cancel": Row(_cancel, 50, "write"),
    "put_many(100)": Row(_put_many, 500, "write"),
    "claim(1) + ack": Row(_claim_one, 50, "write", BACKLOG),
    "claim(64) + ack": Row(_claim_many(64), 640, "write", BACKLOG),
    "claim(500) + ack": Row(_claim_many(500), 1_000, "write", BACKLOG),
    f"put, {TASKS} tasks": Row(_tasks, TASKS * 10, "write"),
}
"""What is measured, in the time of one message."""


def _measure(row: Row, queue: bide.Queue, raw: RawWork, seconds: float) -> dict[str, Any]:
    """Return the microseconds of a message, and those of the raw work beside it."""
    for _ in range(row.backlog // 1_000):
        queue.put_many([BODY] * 1_000)
    row.measure(queue, row.count)  # the first round opens, loads and prepares
    rounds: list[float] = []
    raw_rounds: list[float] = []
    remaining = seconds
    while remaining > 0 or not rounds:
        if row.raw in raw:
            raw_rounds.append(_seconds(raw[row.raw].work, [()] * RAW_COUNT) / RAW_COUNT)
        used = row.measure(queue, row.count)
        rounds.append(used / row.count)
        remaining -= used
    figures: dict[str, Any] = {"value": statistics.median(rounds) * 1e6}
    if row.raw in raw:
        figures["raw"] = raw[row.raw].name
        figures["raw_value"] = statistics.median(raw_rounds) * 1e6
    return figures


def main() -> None:
    """Measure until standard input ends."""
    store, seconds = sys.argv[1:]
    raw = raw_work(store, os.environ["BIDE_URL"])
    with bide.Queue("work") as queue:
        for line in sys.stdin:
            try:
                answer = _measure(ROWS[line.rstrip("\n")], queue, raw, float(seconds))
            except Exception as error:  # noqa: BLE001 - a tree may lack it in any way; the row says so
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
