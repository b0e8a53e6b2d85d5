"""Tasks: a put beside that of a queue with the same body, and a worker beside a handler's."""

import asyncio
import json
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bide
from benchmarks.compare.stores import open_store
from benchmarks.core.store import folder
from benchmarks.figure import Figure
from bide.worker.process.child import loop_factory
from bide.worker.process.runner import Runner

__all__ = ["run"]

PUTS = 500
MESSAGES = 20_000
PAIRS = 9
RUNNING = 1_000
STOPPED = 200
ROWS: dict[str, Any] = {"check_same_thread": False}
BODY = {"task": "work", "args": {"order": 42, "reason": "unpaid"}}


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (puts, drains, batches, stops):
        if only in measurement.__name__:
            yield from measurement()


def puts() -> Iterator[Figure]:
    """Put a task, in turn with a put of the same body."""
    for kind in ("SQLite", "memory"):
        with folder() as path:
            url = f"sqlite:///{path / 'bide.db'}" if kind == "SQLite" else "memory://tasks"
            app = bide.App(url)

            @app.task
            def work(order: int, *, reason: str = "unpaid") -> None: ...

            plainly = partial(work.queue.put, BODY)
            as_task = partial(work.put, 42, reason="unpaid")
            pairs = [(_seconds(plainly), _seconds(as_task)) for _ in range(PAIRS)]
            app.close()
        plain, task = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
        ratio = statistics.median(mine / base for base, mine in pairs)
        name = f"put of a task on {kind}, against a put of the same body"
        goal, met = ("<= 115%", ratio <= 1.15) if kind == "SQLite" else ("", None)
        yield Figure(name, task, "us", plain, ratio, goal, met)


def drains() -> Iterator[Figure]:
    """Drain a backlog with an async task that does nothing, in turn with a handler."""
    pairs = [(_drain("handler"), _drain("task")) for _ in range(PAIRS)]
    handler, task = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / base for base, mine in pairs)
    name = "async tasks that do nothing, against handlers"
    yield Figure(name, task, "/s", handler, ratio, ">= 90%", ratio >= 0.9)


def batches() -> Iterator[Figure]:
    """Write a row for each message, with a commit for each call: plain handlers, and batches."""
    pairs = [(_drain("rows"), _drain("batch")) for _ in range(PAIRS)]
    single, many = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / base for base, mine in pairs)
    name = "a batch handler of 100 that commits once, against plain handlers that commit"
    yield Figure(name, many, "/s", single, ratio, ">= 3 times", ratio >= 3)


def stops() -> Iterator[Figure]:
    """Cancel async handlers, one after the other, while a worker process runs 1,000 of them."""
    for kind in ("sqlite", "postgres", "redis", "http"):
        with open_store(kind, Path.cwd()) as url, bide.Queue("work", url) as queue:
            ids = [f"m{number}" for number in range(RUNNING)]
            queue.put_many([bide.NewMessage(BODY, id=id) for id in ids])
            command = [sys.executable, "-m", "benchmarks.tasks", "stopped", url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "all run\n"
                asked: dict[str, float] = {}
                for id in ids[:: RUNNING // STOPPED]:
                    asked[id] = time.time()
                    queue.cancel(id, running=True)
                heard: dict[str, float] = json.loads(process.stdout.readline())
        late = sorted(1000 * (heard[id] - asked[id]) for id in asked)
        name = f"cancel(running=True) on {kind}, {RUNNING:,} running, until its async handler hears"
        yield Figure(f"{name}: p50", late[len(late) // 2], "ms")
        p99 = late[int(len(late) * 0.99)]
        yield Figure(f"{name}: p99", p99, "ms", None, None, "< 1,000 ms", p99 < 1_000)


async def _stopped(url: str) -> dict[str, float]:
    """Return when each handler was cancelled, by the clock of the machine."""
    app, count, heard, over = bide.App(url), 0, dict[str, float](), asyncio.Event()

    @app.handler("work", concurrency=RUNNING)
    async def work(body: dict[str, Any], delivery: bide.Handling) -> None:
        nonlocal count
        count += 1
        if count == RUNNING:
            print("all run", flush=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard[delivery.id] = time.time()
            if len(heard) == STOPPED:
                over.set()
            raise

    ready = asyncio.Event()
    runner = Runner(app, ready=ready.set)
    running = asyncio.create_task(runner.run())
    await over.wait()
    stopped = dict(heard)
    runner.stop(hurry=True)
    await running
    return stopped


def _seconds(call: Callable[[], Any]) -> float:
    """Return how many seconds a call takes, of many."""
    begin = time.perf_counter()
    for _ in range(PUTS):
        call()
    return (time.perf_counter() - begin) / PUTS


def _drain(kind: str) -> float:
    """Return how many messages a second a worker process of its own handles."""
    with folder() as path:
        url = f"sqlite:///{path / 'bide.db'}"
        with bide.Queue("work", url) as queue:
            for _ in range(MESSAGES // 1_000):
                queue.put_many([BODY] * 1_000)
        command = [sys.executable, "-m", "benchmarks.tasks", kind, url]
        return float(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)


async def _work(kind: str, url: str) -> float:
    app = bide.App(url)
    count, over, ready = 0, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def note() -> None:
        nonlocal count
        count += 1
        if count == MESSAGES:
            over.set()

    rows = sqlite3.connect(Path(url.removeprefix("sqlite:///")).with_name("rows.db"), **ROWS)
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("CREATE TABLE IF NOT EXISTS sent (number INTEGER)")
    if kind == "rows":

        @app.handler("work", concurrency=1)
        def write(body: dict[str, Any]) -> None:
            with rows:
                rows.execute("INSERT INTO sent VALUES (?)", (body["args"]["order"],))
            loop.call_soon_threadsafe(note)
    elif kind == "batch":

        @app.handler("work", batch=100, concurrency=100)  # one call at a time, as beside it
        def write_many(bodies: list[dict[str, Any]]) -> None:
            with rows:
                numbers = [(body["args"]["order"],) for body in bodies]
                rows.executemany("INSERT INTO sent VALUES (?)", numbers)
            for _ in bodies:
                loop.call_soon_threadsafe(note)
    elif kind == "task":

        @app.task
        async def work(order: int, *, reason: str = "unpaid") -> None:
            note()
    else:

        @app.handler("work")
        async def handle(body: dict[str, Any]) -> None:
            note()

    runner = Runner(app, ready=ready.set)
    running = asyncio.create_task(runner.run())
    await ready.wait()
    begin = time.perf_counter()
    await over.wait()
    runner.stop()
    await running  # the last acks are part of the work
    return MESSAGES / (time.perf_counter() - begin)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        kind, url = sys.argv[1:]
        work = _stopped(url) if kind == "stopped" else _work(kind, url)
        print(json.dumps(runner.run(work)))
