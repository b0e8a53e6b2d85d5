"""The other process: a worker that notes how late each message is when its handler starts.

`python -m benchmarks.pending.handling URL TOTAL SECONDS` ends when so many messages are handled,
or after that time, and prints what it saw as JSON.
"""

import asyncio
import json
import logging
import sys
import time

import bide
from bide.worker.process.child import loop_factory
from bide.worker.process.runner import Runner

__all__: list[str] = []


async def _handle(url: str, total: int, seconds: float) -> dict[str, object]:
    """Work until all is done, or the time is over; lateness is in milliseconds."""
    app, done = bide.App(url), asyncio.Event()
    late: dict[str, float] = {}
    deliveries = 0
    last = 0.0

    @app.handler("late")
    async def note(delivery: bide.Handling) -> None:
        nonlocal deliveries, last
        last = time.time()
        deliveries += 1
        late.setdefault(delivery.id, last * 1000 - delivery.message.due)
        if len(late) == total:
            done.set()

    begun = asyncio.Event()
    runner = Runner(app, ready=begun.set)
    work = asyncio.create_task(runner.run())
    await begun.wait()
    print("ready", flush=True)
    try:
        async with asyncio.timeout(seconds):
            await done.wait()
    except TimeoutError:
        pass  # what was not handled is counted by the one who put it
    runner.stop()
    await work
    return {"late": sorted(late.values()), "again": deliveries - len(late), "last": last}


if __name__ == "__main__":
    logging.disable()
    with asyncio.Runner(loop_factory=loop_factory()) as runner_of_loop:
        seen = runner_of_loop.run(_handle(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
    print(json.dumps(seen), flush=True)
