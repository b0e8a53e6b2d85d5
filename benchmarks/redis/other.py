"""The other process: a consumer, or a worker with handlers; it prints what it saw as JSON."""

import asyncio
import json
import logging
import statistics
import sys
import time

import bide
from bide.worker.process.child import loop_factory
from bide.worker.process.runner import Runner


def ready() -> None:
    """Let the one who has started this process go on."""
    print("ready", flush=True)


def take(url: str, total: str) -> object:
    """Claim and ack so many messages; tell how late they were, in milliseconds."""
    late: list[float] = []
    with bide.Queue("late", url) as queue:
        queue.claim(1)
        ready()
        while len(late) < int(total):
            deliveries = queue.claim(500, wait=10)
            now = time.time() * 1000
            late.extend(now - delivery.message.due for delivery in deliveries)
            queue.ack(deliveries)
    late.sort()
    return {"p50": statistics.median(late), "p99": late[int(len(late) * 0.99)], "max": late[-1]}


def work(url: str, total: str) -> object:
    """Drain a backlog with async handlers that do nothing; tell how many a second."""

    async def drain() -> float:
        app, done, count = bide.App(url), asyncio.Event(), 0

        @app.handler("work")
        async def handle(body: str) -> None:
            nonlocal count
            count += 1
            if count >= int(total):
                done.set()

        begun = asyncio.Event()
        runner = Runner(app, ready=begun.set)
        task = asyncio.create_task(runner.run())
        await begun.wait()
        start = time.perf_counter()
        await done.wait()
        runner.stop()
        await task  # the last acks are part of the work
        return int(total) / (time.perf_counter() - start)

    ready()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(drain())


if __name__ == "__main__":
    logging.disable()
    role = {"take": take, "work": work}[sys.argv[1]]
    print(json.dumps(role(*sys.argv[2:])), flush=True)
