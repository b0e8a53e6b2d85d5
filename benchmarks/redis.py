"""The queue on a Redis server of its own, by a Unix socket and without a disk."""

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure, paired
from bide.model.identity import new_ids
from tests.servers import RedisServer

__all__ = ["run"]

BATCH = 500
RATE, SECONDS = 200, 8
IDLE_SECONDS = 10
PENDING = 100_000


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (
        put_many, claim_and_ack, one_caller, tasks, cancel, memory, growth, instant, lateness, idle,
    ):  # fmt: skip
        if only in measurement.__name__:
            yield from measurement()


@contextmanager
def _store() -> Iterator[tuple[bide.Queue, Any]]:
    """Give a queue on a new server, and a plain client beside it."""
    with tempfile.TemporaryDirectory(prefix="bide-bench-") as folder:
        server = RedisServer(Path(folder))
        client = server.client()
        try:
            with bide.Queue("work", server.url) as queue:
                queue.put(BODY, delay="1h")
                yield queue, client
        finally:
            client.close()
            server.stop()


def _fill(queue: bide.Queue, count: int, delay: str = "1h") -> list[str]:
    ids: list[str] = []
    for _ in range(count // BATCH):
        ids += [outcome.id for outcome in queue.put_many([BODY] * BATCH, delay=delay)]
    return ids


def _rate(count: int, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def put_many() -> Iterator[Figure]:
    """Five hundred messages a call, against ZADD and HSET of as many in one pipeline."""
    with _store() as (queue, client):

        def raw() -> None:
            for _ in range(20):
                ids = new_ids(BATCH)
                pipeline = client.pipeline(transaction=False)
                pipeline.zadd("raw:due", dict.fromkeys(ids, 1_800_000_000_000))
                pipeline.hset("raw:body", mapping=dict.fromkeys(ids, BODY))
                pipeline.execute()

        count = 20 * BATCH
        value, limit, ratio = paired(
            9, lambda: _rate(count, lambda: _fill(queue, count)), lambda: _rate(count, raw)
        )
    yield Figure(
        f"put_many({BATCH})", value, "/s", limit, ratio, "60 % of ZADD + HSET", ratio >= 0.6
    )


def claim_and_ack() -> Iterator[Figure]:
    """Five hundred messages a call."""
    with _store() as (queue, _):

        def drain() -> None:
            done = 0
            while done < 10_000:
                deliveries = queue.claim(BATCH)
                queue.ack(deliveries)
                done += len(deliveries)

        rates = []
        for _ in range(7):
            _fill(queue, 10_000, "0s")
            rates.append(_rate(10_000, drain))
        value = statistics.median(rates)
    yield Figure(f"claim({BATCH}) + ack", value, "/s", goal="200 k/s", met=value >= 200_000)


def _ping_rate(client: Any) -> float:
    return _rate(500, lambda: [client.ping() for _ in range(500)])


def one_caller() -> Iterator[Figure]:
    """One put at a time, against round trips of redis-py's PING."""
    with _store() as (queue, client):
        value, limit, ratio = paired(
            15,
            lambda: _rate(500, lambda: [queue.put(BODY, delay="1h") for _ in range(500)]),
            lambda: _ping_rate(client),
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

    with _store() as (queue, _):
        value = asyncio.run(measure(queue.url))
    yield Figure("put, 64 async tasks", value, "/s", goal="60 k/s", met=value >= 60_000)


def cancel() -> Iterator[Figure]:
    """By id, many and one at a time."""
    with _store() as (queue, client):
        rates = []
        for _ in range(5):
            ids = _fill(queue, 10_000)
            rates.append(_rate(10_000, lambda ids=ids: queue.cancel_many(ids)))  # type: ignore[misc]
        value = statistics.median(rates)
        left = iter(_fill(queue, 10_000))
        one, limit, ratio = paired(
            15,
            lambda: _rate(500, lambda: [queue.cancel(next(left)) for _ in range(500)]),
            lambda: _ping_rate(client),
        )
    yield Figure("cancel_many(10,000)", value, "/s", goal="200 k/s", met=value >= 200_000)
    yield Figure("cancel, one sync caller", one, "/s", limit, ratio, "75 % of PING", ratio >= 0.75)


def memory() -> Iterator[Figure]:
    """What the server needs for a message."""
    with _store() as (queue, client):
        before = client.info("memory")["used_memory"]
        _fill(queue, PENDING)
        size = (client.info("memory")["used_memory"] - before) / PENDING
    yield Figure("server memory a message", size, "bytes", goal="< 560 bytes", met=size < 560)


def growth() -> Iterator[Figure]:
    """A put, a claim and an ack with a million messages pending, against a thousand."""
    with _store() as (queue, _):

        def cycle() -> float:
            def work() -> None:
                queue.put_many([BODY] * BATCH)
                queue.ack(queue.claim(BATCH))

            return statistics.median(_rate(BATCH, work) for _ in range(41))

        _fill(queue, 1_000)
        few = cycle()
        _fill(queue, 1_000_000)
        many = cycle()
    cost = few / many
    yield Figure("cost at 1 M pending against 1 k", cost, "times", goal="<= 1.3", met=cost <= 1.3)


def instant() -> Iterator[Figure]:
    """A hundred thousand messages that are due at one instant."""
    with _store() as (queue, client):
        _fill(queue, PENDING, "0s")
        client.config_set("slowlog-log-slower-than", 1_000)
        client.slowlog_reset()

        def drain() -> None:
            while deliveries := queue.claim(BATCH):
                queue.ack(deliveries)

        rate = _rate(PENDING, drain)
        slow = [entry["duration"] / 1000 for entry in client.slowlog_get(1_000)]
    longest = max(slow, default=1.0)
    yield Figure(f"{PENDING:,} due at one instant, drained", rate, "/s")
    yield Figure("the longest that one script took", longest, "ms", goal="< 5 ms", met=longest < 5)


def lateness() -> Iterator[Figure]:
    """Two hundred messages a second, put by one connection and claimed by another."""
    with _store() as (queue, _):
        late: list[float] = []
        # A URL that reads otherwise: a lane of its own, as if in another process.
        with (
            bide.Queue("late", queue.url) as putter,
            bide.Queue("late", f"{queue.url}?db=0") as taker,
        ):

            def take() -> None:
                while len(late) < RATE * SECONDS:
                    deliveries = taker.claim(50, wait=10)
                    now = time.time() * 1000
                    late.extend(now - delivery.message.due for delivery in deliveries)
                    taker.ack(deliveries)

            thread = threading.Thread(target=take)
            thread.start()
            begin = time.monotonic()
            for number in range(RATE * SECONDS):
                time.sleep(max(0, begin + number / RATE - time.monotonic()))
                putter.put(BODY, delay=0.5 + number * 7919 % 1500 / 1000)
            thread.join()
    late.sort()
    p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
    yield Figure(f"lateness at {RATE}/s, p50", p50, "ms", goal="< 1 ms", met=p50 < 1)
    yield Figure(f"lateness at {RATE}/s, p99", p99, "ms", goal="< 3 ms", met=p99 < 3)


def idle() -> Iterator[Figure]:
    """A claimer that waits while 100,000 messages are far off."""
    with _store() as (queue, client):
        _fill(queue, PENDING, "30d")
        queue.claim(1, wait=1)
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        queue.claim(1, wait=IDLE_SECONDS)
        after = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    rate = (after - before) / IDLE_SECONDS
    # One more for the claim itself, when it comes and when it goes.
    met = after - before <= IDLE_SECONDS + 2
    yield Figure("commands of an idle claimer, 100 k pending", rate, "/s", goal="1 /s", met=met)
