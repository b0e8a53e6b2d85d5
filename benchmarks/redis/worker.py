"""One worker process, beside the claims and acks of one caller."""

import statistics
from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.redis.store import BATCH, fill, other, per_second, store

__all__ = ["MEASUREMENTS"]

MESSAGES = 20_000
ROUNDS = 3


def worker() -> Iterator[Figure]:
    """Async handlers that do nothing, in turn with claim and ack by hand."""
    pairs: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        with store() as (queue, _client):

            def drain(queue: object = queue) -> None:
                while deliveries := queue.claim(BATCH):  # type: ignore[attr-defined]
                    queue.ack(deliveries)  # type: ignore[attr-defined]

            fill(queue, MESSAGES, "0s")
            alone = per_second(MESSAGES, drain)
            fill(queue, MESSAGES, "0s")
            with other("work", queue.url, MESSAGES) as result:
                pairs.append((alone, result()))
    alone, value = (statistics.median(column) for column in zip(*pairs, strict=True))
    name = f"async handlers, against claim({BATCH}) + ack"
    yield Figure(name, value, "/s", alone, value / alone, "40 k/s", value >= 40_000)


MEASUREMENTS = (worker,)
