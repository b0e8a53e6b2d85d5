"""How long a message takes from the commit of the outbox to the store, by another process."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.postgres.store import store as database
from benchmarks.redis.store import store
from bide.outbox.forwarder import table_of

__all__ = ["MEASUREMENTS"]

RATE, SECONDS = 200, 10
GOAL = 50
"""Milliseconds, p99."""


def outbox() -> Iterator[Figure]:
    """Transactions at an even pace, each with one message; the store is a Redis server."""
    with database() as (_, server), store() as (queue, _):
        table_of(server.url).close()
        began: list[float] = []
        with _forwarding(server.url, queue.url), psycopg.connect(server.url) as shop:
            begin = time.monotonic()
            for number in range(RATE * SECONDS):
                time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
                queue.put(BODY, id=f"m{number}", delay="1h", within=shop)
                began.append(time.time() * 1000)
                shop.commit()
            while queue.get(f"m{number}") is None:
                time.sleep(0.01)
        messages = {message.id: message for message in queue.scan()}
    late = sorted(
        (messages[f"m{number}"].created or 0) - moment for number, moment in enumerate(began)
    )
    yield Figure("from an outbox's commit to Redis, p50", late[len(late) // 2], "ms")
    p99 = late[int(len(late) * 0.99)]
    yield Figure(
        "from an outbox's commit to Redis, p99", p99, "ms", goal=f"< {GOAL} ms", met=p99 < GOAL
    )


@contextmanager
def _forwarding(database: str, store: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bide", "forward", database, "--url", store]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "forwarding what is committed" not in (line := process.stderr.readline()):
                assert line
            yield
        finally:
            process.terminate()


MEASUREMENTS = (outbox,)
