"""How fast messages go out, how late they are, and what it costs to wait."""

import statistics
import time
from collections.abc import Iterator

import bide
from benchmarks.core.growth import FEW, compare
from benchmarks.figure import Figure
from benchmarks.postgres.idling import idle
from benchmarks.postgres.store import BATCH, fill, store
from benchmarks.redis.store import other, per_second
from benchmarks.redis.waiting import SECONDS, produce

__all__ = ["MEASUREMENTS"]

MESSAGES = 20_000
ROUNDS = 3
MANY = 1_000_000


def _drain(queue: bide.Queue) -> None:
    while deliveries := queue.claim(BATCH):
        queue.ack(deliveries)


def claim() -> Iterator[Figure]:
    """Claim and ack by hand."""
    with store() as (queue, _):
        rates = []
        for _ in range(ROUNDS):
            fill(queue, MESSAGES, 0)
            rates.append(per_second(MESSAGES, lambda: _drain(queue)))
    value = statistics.median(rates)
    yield Figure(f"claim({BATCH}) + ack", value, "/s", goal="40 k/s", met=value >= 40_000)


def worker() -> Iterator[Figure]:
    """One worker process with async handlers that do nothing, and its longest statement."""
    with store(log="50") as (queue, server):
        rates = []
        for _ in range(ROUNDS):
            fill(queue, MESSAGES, 0)
            with other("work", server.url, MESSAGES) as result:
                rates.append(result())
        slow = (server.folder / "log").read_text().count("duration:")
    value = statistics.median(rates)
    name = f"one worker, async handlers, {MESSAGES:,} due at once"
    yield Figure(name, value, "/s", goal="25 k/s", met=value >= 25_000)
    yield Figure("statements of 50 ms or more meanwhile", slow, "", goal="none", met=slow == 0)


def lateness() -> Iterator[Figure]:
    """Two hundred messages a second, put by this process and claimed by another."""
    with store() as (_, server), bide.Queue("late", server.url) as putter:
        putter.counts()
        with other("take", server.url, 200 * SECONDS) as result:
            produce(putter, 200, 200 * SECONDS)
            late = result()
    for name, bound in (("p50", 3), ("p99", 10)):
        yield Figure(
            f"lateness at 200/s, {name}",
            late[name],
            "ms",
            goal=f"< {bound} ms",
            met=late[name] < bound,
        )


def growth() -> Iterator[Figure]:
    """A million pending: each operation against a thousand, claims, and what waiting costs."""
    with store() as (few, _), store() as (many, server):
        for queue, count in ((few, FEW), (many, MANY)):
            fill(queue, count, 3_600, spread=604_800)
            queue.put_many(
                [bide.NewMessage(body="x", id=f"m{n}", delay=86_400) for n in range(FEW)]
            )
            queue.counts()
        with server.client() as client:
            client.execute("CHECKPOINT")
            client.execute("VACUUM ANALYZE")
        yield from compare(few, many)
        fill(many, MESSAGES, 0, spread=1)
        time.sleep(1.2)
        value = per_second(MESSAGES, lambda: _drain(many))
        yield Figure(
            f"claim({BATCH}) + ack, due at random, 1 M pending",
            value,
            "/s",
            goal="40 k/s",
            met=value >= 40_000,
        )
        many.claim(1, wait=1)
        with server.client() as client:
            client.execute("ALTER SYSTEM SET log_statement = 'all'")
            client.execute("SELECT pg_reload_conf()")
        yield from idle(many, server)


MEASUREMENTS = (claim, worker, lateness, growth)
