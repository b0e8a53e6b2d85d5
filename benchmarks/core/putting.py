"""How fast messages go in."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bide
from benchmarks.core.store import BODY, folder, queue_in, random_dues, raw_store, raw_write
from benchmarks.figure import Figure, paired
from benchmarks.raw import insert_one
from bide.model.identity import new_id

__all__ = ["MEASUREMENTS"]


def _raw_single(connection: sqlite3.Connection, count: int) -> float:
    ids = [new_id() for _ in range(count)]
    start = time.perf_counter()
    for id in ids:
        insert_one(connection, id)
    return count / (time.perf_counter() - start)


def _put_single(queue: bide.Queue, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        queue.put(BODY, delay="1h")
    return count / (time.perf_counter() - start)


def put_one() -> Iterator[Figure]:
    """One caller, one message a commit."""
    with folder() as path, queue_in(path) as queue:
        raw = raw_store(path)
        _raw_single(raw, 1_500)
        _put_single(queue, 1_500)
        value, limit, ratio = paired(
            15, lambda: _put_single(queue, 400), lambda: _raw_single(raw, 400)
        )
        raw.close()
    yield Figure(
        "put, one sync caller", value, "/s", limit, ratio, "80 % of a raw commit", ratio >= 0.8
    )


def put_many() -> Iterator[Figure]:
    """A thousand messages a commit."""
    for kind, spread in (("constant delay", False), ("due at random over a week", True)):
        with folder() as path, queue_in(path) as queue:
            raw = raw_store(path)
            now = time.time()

            def ours(queue: bide.Queue = queue, spread: bool = spread, now: float = now) -> float:
                dues = random_dues(20_000, now) if spread else [now + 3_600] * 20_000
                start = time.perf_counter()
                for first in range(0, len(dues), 1_000):
                    queue.put_many(
                        [bide.NewMessage(body=BODY, at=due) for due in dues[first : first + 1_000]]
                    )
                return len(dues) / (time.perf_counter() - start)

            def base(
                raw: sqlite3.Connection = raw, spread: bool = spread, now: float = now
            ) -> float:
                dues = random_dues(20_000, now) if spread else [now + 3_600] * 20_000
                start = time.perf_counter()
                for first in range(0, len(dues), 1_000):
                    raw_write(raw, [round(due * 1000) for due in dues[first : first + 1_000]])
                return len(dues) / (time.perf_counter() - start)

            value, limit, ratio = paired(7, ours, base)
            raw.close()
        yield Figure(
            f"put_many(1000), {kind}",
            value,
            "/s",
            limit,
            ratio,
            "60 % of executemany",
            ratio >= 0.6,
        )


def put_async() -> Iterator[Figure]:
    """Sixty-four tasks, each putting one message at a time."""
    with folder() as path:

        def ours() -> float:
            return asyncio.run(_tasks(f"sqlite:///{path / 'bide.db'}", 64, 200))

        raw = raw_store(path)
        value, limit, ratio = paired(5, ours, lambda: _locked(raw, 64, 30))
        raw.close()
    yield Figure(
        "put, 64 async tasks",
        value,
        "/s",
        limit,
        ratio,
        "6 x one connection behind a lock",
        ratio >= 6,
    )


async def _tasks(url: str, tasks: int, each: int) -> float:
    async with bide.AsyncQueue("work", url) as queue:
        await queue.put(BODY, delay="1h")

        async def produce() -> None:
            for _ in range(each):
                await queue.put(BODY, delay="1h")

        start = time.perf_counter()
        await asyncio.gather(*(produce() for _ in range(tasks)))
        return tasks * each / (time.perf_counter() - start)


def _locked(connection: sqlite3.Connection, threads: int, each: int) -> float:
    lock = threading.Lock()

    def produce() -> None:
        for _ in range(each):
            with lock:
                insert_one(connection, new_id())

    workers = [threading.Thread(target=produce) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - start)


def put_threads() -> Iterator[Figure]:
    """Sixteen threads, each putting one message at a time."""
    with folder() as path, queue_in(path) as queue:

        def ours() -> float:
            workers = [threading.Thread(target=_put_single, args=(queue, 200)) for _ in range(16)]
            start = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return 16 * 200 / (time.perf_counter() - start)

        raw = raw_store(path)
        value, limit, ratio = paired(5, ours, lambda: _locked(raw, 16, 100))
        raw.close()
    yield Figure("put, 16 threads", value, "/s", limit, ratio)


def file_size() -> Iterator[Figure]:
    """What a message takes on the disk."""
    for kind, spread in (("constant delay", False), ("due at random", True)):
        with folder() as path:
            size = _size(path, spread)
        yield Figure(f"file size a message, {kind}", size, "bytes", goal="< 400", met=size < 400)


def _size(path: Path, spread: bool) -> float:
    count = 200_000
    now = time.time()
    with queue_in(path) as queue:
        dues = random_dues(count, now) if spread else [now + 3_600] * count
        for first in range(0, count, 1_000):
            part = dues[first : first + 1_000]
            queue.put_many([bide.NewMessage(body=BODY, at=due) for due in part])
    return (path / "bide.db").stat().st_size / count


MEASUREMENTS = (put_one, put_many, put_async, put_threads, file_size)
