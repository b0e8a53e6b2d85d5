"""What a limited queue costs: turns of a hundred groups, and one message behind a large backlog."""

import statistics
from collections.abc import Iterator
from functools import partial

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.redis.server_time import script_time
from benchmarks.redis.store import BATCH, PENDING, per_second, store

__all__ = ["MEASUREMENTS"]

GROUPS = 100
FEW = 2_000


def limited() -> Iterator[Figure]:
    """Claims and acks of a queue with both limits, with few and with many ready messages."""
    costs: dict[int, list[float]] = {64: [], 1: []}
    for ready in (FEW, PENDING):
        with store() as (queue, client):
            queue.configure(limit=1_000, group_limit=10)
            _fill(queue, ready)
            for _ in range(ready // 1_000 + 1):
                queue.ack(queue.claim(1))  # each claim lines up some
            for size, count in ((64, 960), (1, 300)):
                rounds = []
                for _ in range(5):
                    rounds.append(script_time(client, count, partial(_work, queue, size, count)))
                    _fill(queue, count)
                costs[size].append(statistics.median(rounds))
            rate = per_second(3_200, partial(_work, queue, 64, 3_200))
    for size, (few, many) in costs.items():
        name = f"limited queue, 100 k ready in 100 groups: claim({size}) + ack({size})"
        yield Figure(f"{name}: server time a message, against 2 k ready", many, "µs", few)
    yield Figure("limited queue, 100 k ready in 100 groups: claim(64) + ack(64)", rate, "/s")


def _fill(queue: bide.Queue, count: int) -> None:
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        queue.put_many(bide.NewMessage(BODY, group=f"g{number % GROUPS}") for number in numbers)


def _work(queue: bide.Queue, size: int, count: int) -> None:
    for _ in range(count // size):
        queue.ack(queue.claim(size))


def limited_turns() -> Iterator[Figure]:
    """A message of one group, put behind 100,000 of another, with one message at a time."""
    with store() as (queue, _):
        queue.configure(limit=1)
        for _ in range(PENDING // BATCH):
            queue.put_many([bide.NewMessage(BODY, group="a")] * BATCH)
        for _ in range(PENDING // 1_000 + 1):
            (running,) = queue.claim(1)
            queue.release([running])
        (running,) = queue.claim(1)
        queue.put(BODY, group="b")
        before = 0
        while running.message.group == "a":
            queue.ack([running])
            (running,) = queue.claim(1)
            before += 1
    yield Figure("messages that end before one of another group, 100 k ready before it", before, "")


MEASUREMENTS = (limited, limited_turns)
