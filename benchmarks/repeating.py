"""Messages that repeat: a put and an ack beside those of messages that do not."""

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import bide
from benchmarks.compare.stores import open_store
from benchmarks.figure import Figure
from bide.model.runs import first_run

__all__ = ["run"]

CALLS = 200
PAIRS = 9
RULE = bide.Cron("0 9 * * MON", "Europe/Berlin")
AT_ONCE = 10_000
"""How many messages that repeat are due in the same minute."""
BATCH = 64
MINUTE = 60.0


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all stores whose name has a word."""
    for kind in ("memory", "sqlite", "postgres", "redis", "http"):
        if only in kind:
            with open_store(kind, Path.cwd()) as url, bide.Queue("reminders", url) as queue:
                yield from _puts(kind, queue)
                yield from _acks(kind, queue)
            with open_store(kind, Path.cwd()) as url, bide.Queue("reminders", url) as queue:
                yield _due_at_once(kind, queue)


def _puts(kind: str, queue: bide.Queue) -> Iterator[Figure]:
    """Put messages that repeat, in turn with messages that do not, all due at one time."""
    names = (f"put-{number}" for number in count())
    due = first_run(RULE, time.time_ns() // 1_000_000).due / 1_000

    def once() -> float:
        return _seconds(lambda id: queue.put("x", id=id, at=due), _next(names))

    def repeated() -> float:
        return _seconds(lambda id: queue.put("x", id=id, repeat=RULE), _next(names))

    yield _figure(f"put with a rule on {kind}, against one without", once, repeated, 1.3)


def _acks(kind: str, queue: bide.Queue) -> Iterator[Figure]:
    """Ack runs, in turn with an ack and the put of the next message."""
    names = (f"ack-{number}" for number in count())
    due = datetime.now(UTC) - timedelta(hours=1)

    def once() -> float:
        def settle(delivery: bide.Delivery) -> None:
            delivery.ack()
            queue.put("x", id=delivery.id, delay=3_600)

        queue.put_many([bide.NewMessage("x", id=id, at=due) for id in _next(names)])
        return _seconds(settle, queue.claim(CALLS))

    def repeated() -> float:
        messages = [bide.NewMessage("x", id=id, at=due, repeat=RULE) for id in _next(names)]
        queue.put_many(messages)
        return _seconds(bide.Delivery.ack, queue.claim(CALLS))

    yield _figure(f"ack of a run on {kind}, against an ack and a put", once, repeated, 1.5)


def _due_at_once(kind: str, queue: bide.Queue) -> Figure:
    """Claim and ack runs that are due in one minute; each ack puts the next run."""
    due = datetime.now(UTC) - timedelta(minutes=1)
    queue.put_many(
        bide.NewMessage("x", id=str(number), at=due, repeat=RULE) for number in range(AT_ONCE)
    )
    begin = time.perf_counter()
    while deliveries := queue.claim(BATCH):
        queue.ack(deliveries)
    seconds = time.perf_counter() - begin
    assert queue.counts().sizes.delayed == AT_ONCE
    name = f"{AT_ONCE:,} runs that are due in a minute end and are put again on {kind}"
    return Figure(name, seconds, "s", goal=f"< {MINUTE:.0f} s", met=seconds < MINUTE)


def _next(names: Iterator[str]) -> list[str]:
    """Return the ids of the next calls."""
    return [next(names) for _ in range(CALLS)]


def _figure(
    name: str, once: Callable[[], float], repeated: Callable[[], float], goal: float
) -> Figure:
    """Measure two ways in turn; return how the second one compares."""
    pairs = [(once(), repeated()) for _ in range(PAIRS)]
    base, mine = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    return Figure(name, mine, "us", base, ratio, f"<= {goal:.0%}", ratio <= goal)


def _seconds(call: Callable[[Any], Any], arguments: list[Any]) -> float:
    """Return how many seconds a call takes, of one with each argument."""
    begin = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - begin) / len(arguments)
