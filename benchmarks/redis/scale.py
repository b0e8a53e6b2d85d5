"""What a message takes, whether more of them cost more, and what all at once do to the server."""

import statistics
from collections.abc import Iterator

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.redis.store import BATCH, PENDING, fill, per_second, store

__all__ = ["MEASUREMENTS"]


def memory() -> Iterator[Figure]:
    """What the server needs for a message."""
    with store() as (queue, client):
        before = client.info("memory")["used_memory"]
        fill(queue, PENDING)
        size = (client.info("memory")["used_memory"] - before) / PENDING
    yield Figure("server memory a message", size, "bytes", goal="< 560 bytes", met=size < 560)


def growth() -> Iterator[Figure]:
    """A put, a claim and an ack with a million messages pending, against a thousand."""
    with store() as (queue, _):

        def cycle() -> float:
            def work() -> None:
                queue.put_many([BODY] * BATCH)
                queue.ack(queue.claim(BATCH))

            return statistics.median(per_second(BATCH, work) for _ in range(41))

        fill(queue, 1_000)
        few = cycle()
        fill(queue, 1_000_000)
        many = cycle()
    cost = few / many
    yield Figure("cost at 1 M pending against 1 k", cost, "times", goal="<= 1.3", met=cost <= 1.3)


def instant() -> Iterator[Figure]:
    """A hundred thousand messages that are due at one instant."""
    rates: list[float] = []
    longest: list[float] = []
    for _ in range(3):
        with store() as (queue, client):
            fill(queue, PENDING, "0s")
            client.config_set("slowlog-log-slower-than", 1_000)
            client.slowlog_reset()

            def drain(queue: bide.Queue = queue) -> None:
                while deliveries := queue.claim(BATCH):
                    queue.ack(deliveries)

            rates.append(per_second(PENDING, drain))
            slow = [entry["duration"] / 1000 for entry in client.slowlog_get(1_000)]
            longest.append(max(slow, default=1.0))
    yield Figure(f"{PENDING:,} due at one instant, drained", statistics.median(rates), "/s")
    # Whoever else runs on this machine makes it longer, and nothing makes it shorter.
    least = min(longest)
    name = "the longest that one script took, least of three drains"
    yield Figure(name, least, "ms", goal="< 5 ms", met=least < 5)


MEASUREMENTS = (memory, growth, instant)
