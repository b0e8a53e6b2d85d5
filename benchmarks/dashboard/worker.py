"""A worker process that notes how late it begins each message: `python -m ... STORE MESSAGES`."""

import asyncio
import json
import logging
import sys
import time

import bide
from bide.worker.process.child import loop_factory
from bide.worker.process.runner import Runner


async def measure(store: str, wanted: int) -> list[float]:
    """Handle so many messages; return by how many milliseconds each was late."""
    app, late, over = bide.App(store), list[float](), asyncio.Event()

    @app.handler("work")
    async def look(delivery: bide.Delivery) -> None:
        late.append(time.time() * 1000 - delivery.message.due)
        if len(late) >= wanted:
            over.set()

    runner = Runner(app, ready=lambda: print("ready", flush=True))
    task = asyncio.create_task(runner.run())
    await over.wait()
    runner.stop()
    await task
    return late


if __name__ == "__main__":
    logging.disable()
    with asyncio.Runner(loop_factory=loop_factory()) as running:
        print(json.dumps(running.run(measure(sys.argv[1], int(sys.argv[2])))))
