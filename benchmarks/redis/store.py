"""A server to measure on, a queue on it, and what was spent."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bide
from benchmarks.core.store import BODY
from tests.servers import RedisServer

__all__ = ["BATCH", "PENDING", "fill", "other", "per_second", "server_cpu", "store"]

BATCH = 500
PENDING = 100_000


@contextmanager
def store() -> Iterator[tuple[bide.Queue, Any]]:
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


def fill(queue: bide.Queue, count: int, delay: str = "1h") -> list[str]:
    """Put messages, and return their ids."""
    ids: list[str] = []
    for _ in range(count // BATCH):
        ids += [outcome.id for outcome in queue.put_many([BODY] * BATCH, delay=delay)]
    return ids


def per_second(count: int, work: Callable[[], object]) -> float:
    """Return how many a second were done."""
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def server_cpu(client: Any) -> float:
    """Return how many seconds of processor time the server has used."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


@contextmanager
def other(role: str, *arguments: object) -> Iterator[Callable[[], Any]]:
    """Start another process, and wait until it is ready; give what returns what it has printed."""
    command = [sys.executable, "-m", "benchmarks.redis.other", role, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = process.stdout
        try:
            yield lambda: json.loads(lines.readline())
        finally:
            process.terminate()
