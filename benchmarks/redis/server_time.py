"""What the server spends on a message, at the sizes that users have, and on looking at millions."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.core.looking import DAY, forecast
from benchmarks.core.store import BODY
from benchmarks.figure import Figure, paired
from benchmarks.redis.store import BATCH, fill, per_second, store

__all__ = ["MEASUREMENTS"]

PENDING = 5_000_000


def script_time(client: Any, count: int, work: Callable[[], object]) -> float:
    """Return how many microseconds of scripts the server spent on each of so many messages."""

    def spent() -> float:
        return float(client.info("commandstats").get("cmdstat_fcall", {"usec": 0})["usec"])

    before = spent()
    work()
    return (spent() - before) / count


def server_time() -> Iterator[Figure]:
    """Claims and acks of 64 and of one, and puts of eight."""
    with store() as (queue, client):

        def drain(size: int, count: int) -> None:
            for _ in range(count // size):
                queue.ack(queue.claim(size))

        def put_eight() -> None:
            for _ in range(250):
                queue.put_many([BODY] * 8, delay="1h")

        for name, size, goal in (("claim(64) + ack(64)", 64, 5.0), ("claim(1) + ack", 1, 60.0)):
            costs = []
            for _ in range(5):
                count = size * (30 if size > 1 else 500)
                fill(queue, 2_000, "0s")
                costs.append(script_time(client, count, lambda s=size, c=count: drain(s, c)))  # type: ignore[misc]
                drain(500, 2_000)
            value = statistics.median(costs)
            yield Figure(
                f"{name}: server time a message",
                value,
                "µs",
                goal=f"<= {goal:g} µs",
                met=value <= goal,
            )
        value = statistics.median(script_time(client, 2_000, put_eight) for _ in range(5))
    yield Figure(
        "put of 8: server time a message", value, "µs", goal="<= 10.5 µs", met=value <= 10.5
    )


def cycle() -> Iterator[Figure]:
    """A blocking put, claim(1) and ack from the main thread, in PINGs of redis-py."""
    with store() as (queue, client):

        def cycles() -> float:
            def work() -> None:
                for _ in range(300):
                    queue.put(BODY)
                    queue.ack(queue.claim(1))

            return 1 / per_second(300, work)

        def pings() -> float:
            return 1 / per_second(900, lambda: [client.ping() for _ in range(900)])

        value, ping, ratio = paired(15, cycles, pings)
    yield Figure(
        "put + claim(1) + ack", value * 1e6, "µs", ping * 1e6, ratio, "<= 6 PINGs", ratio <= 6
    )


def looking() -> Iterator[Figure]:
    """A forecast of 720 hours and a scan of one day in thirty, with 5,000,000 pending."""
    with store() as (queue, _):
        now = time.time()
        yield forecast(queue, now, PENDING, BATCH, 15)
        begin = time.perf_counter()
        found = sum(1 for _ in queue.scan(after=now + 14 * DAY, before=now + 15 * DAY))
        rate = found / (time.perf_counter() - begin)
    assert found > 150_000
    yield Figure(
        "scan of one day in thirty, 5 M pending", rate, "/s", goal="60 k/s", met=rate >= 60_000
    )


MEASUREMENTS = (server_time, cycle, looking)
