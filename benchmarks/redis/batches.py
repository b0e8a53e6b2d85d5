"""Many at once, and one at a time, against what the server does without bide."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure, paired
from benchmarks.redis.store import BATCH, fill, per_second, server_cpu, store
from bide.model.identity import new_ids

__all__ = ["MEASUREMENTS"]


def put_many() -> Iterator[Figure]:
    """Five hundred messages a call, against ZADD and HSET of as many in one pipeline."""
    with store() as (queue, client):

        def raw() -> None:
            for _ in range(20):
                ids = new_ids(BATCH)
                pipeline = client.pipeline(transaction=False)
                pipeline.zadd("raw:due", dict.fromkeys(ids, 1_800_000_000_000))
                pipeline.hset("raw:body", mapping=dict.fromkeys(ids, BODY))
                pipeline.execute()

        count = 20 * BATCH
        value, limit, ratio = paired(
            9, lambda: per_second(count, lambda: fill(queue, count)), lambda: per_second(count, raw)
        )
        cost, least, times = paired(
            9,
            lambda: _server_cost(client, count, lambda: fill(queue, count)),
            lambda: _server_cost(client, count, raw),
        )
    name = f"put_many({BATCH})"
    yield Figure(name, value, "/s", limit, ratio, "50 % of ZADD + HSET", ratio >= 0.5)
    yield Figure(f"{name}: the server's processor, a message", cost, "µs", least, times)


def _server_cost(client: Any, count: int, work: Callable[[], object]) -> float:
    """Return how many microseconds of its processor the server spent on each of so many."""
    before = server_cpu(client)
    work()
    return (server_cpu(client) - before) / count * 1e6


def claim_and_ack() -> Iterator[Figure]:
    """Five hundred messages a call."""
    with store() as (queue, client):

        def drain() -> None:
            done = 0
            while done < 10_000:
                deliveries = queue.claim(BATCH)
                queue.ack(deliveries)
                done += len(deliveries)

        rates, costs = [], []
        for _ in range(7):
            fill(queue, 10_000, "0s")
            before = server_cpu(client)
            rates.append(per_second(10_000, drain))
            costs.append((server_cpu(client) - before) / 10_000 * 1e6)
        value, cost = statistics.median(rates), statistics.median(costs)
    name = f"claim({BATCH}) + ack"
    yield Figure(name, value, "/s", goal="120 k/s", met=value >= 120_000)
    yield Figure(f"{name}: the server's processor, a message", cost, "µs")


def _pings(client: Any) -> float:
    return per_second(500, lambda: [client.ping() for _ in range(500)])


def one_caller() -> Iterator[Figure]:
    """One put at a time, against round trips of redis-py's PING."""
    with store() as (queue, client):
        value, limit, ratio = paired(
            15,
            lambda: per_second(500, lambda: [queue.put(BODY, delay="1h") for _ in range(500)]),
            lambda: _pings(client),
        )
    yield Figure("put, one sync caller", value, "/s", limit, ratio, "75 % of PING", ratio >= 0.75)


def tasks() -> Iterator[Figure]:
    """Sixty-four tasks, one put each at a time."""

    async def measure(url: str) -> float:
        async with bide.AsyncQueue("tasks", url) as queue:

            async def task() -> None:
                for _ in range(100):
                    await queue.put(BODY, delay="1h")

            rates = []
            for _ in range(7):
                begin = time.perf_counter()
                await asyncio.gather(*(task() for _ in range(64)))
                rates.append(6_400 / (time.perf_counter() - begin))
            return statistics.median(rates)

    with store() as (queue, _):
        value = asyncio.run(measure(queue.url))
    yield Figure("put, 64 async tasks", value, "/s", goal="45 k/s", met=value >= 45_000)


def cancel() -> Iterator[Figure]:
    """By id, many and one at a time."""
    with store() as (queue, client):
        rates = []
        for _ in range(5):
            ids = fill(queue, 10_000)
            rates.append(per_second(10_000, lambda ids=ids: queue.cancel_many(ids)))  # type: ignore[misc]
        value = statistics.median(rates)
        left = iter(fill(queue, 10_000))
        one, limit, ratio = paired(
            15,
            lambda: per_second(500, lambda: [queue.cancel(next(left)) for _ in range(500)]),
            lambda: _pings(client),
        )
    yield Figure("cancel_many(10,000)", value, "/s", goal="200 k/s", met=value >= 200_000)
    yield Figure("cancel, one sync caller", one, "/s", limit, ratio, "75 % of PING", ratio >= 0.75)


MEASUREMENTS = (put_many, claim_and_ack, one_caller, tasks, cancel)
