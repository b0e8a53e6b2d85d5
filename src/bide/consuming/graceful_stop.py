"""Stop consumers: let handlers finish, interrupt the others, release their messages."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bide.clock import Clock, sleep
from bide.logs import logger

if TYPE_CHECKING:
    from bide.consuming.consumer import Consumer

INTERRUPTED = 1.0
"""Seconds that handlers get to clean up after they were interrupted."""

FAREWELL = 5.0
"""Seconds to settle the last messages; without that, their leases expire."""

_log = logger("bide.worker")


async def stop(
    consumers: "Sequence[Consumer]",
    clock: Clock,
    grace: float | None,
    hurry: asyncio.Event,
    beside: "Sequence[asyncio.Future[Any]]" = (),
) -> None:
    """Claim no more, wait until handlers have finished, and release the messages of the others.

    Args:
        consumers: end together.
        clock: measures the waits.
        grace: how many seconds handlers get to finish; `None`: as many as they need.
        hurry: set when a second signal ends the wait.
        beside: tasks that run meanwhile; their errors, and those of a consumer, end the stop.
    """
    tasks = [task for consumer in consumers for task in consumer.chores] + list(beside)
    await cancel(consumer.claims for consumer in consumers)
    for consumer in consumers:
        consumer.leave()
    quiet = asyncio.gather(*[consumer.until_quiet() for consumer in consumers])
    try:
        over = () if grace is None else (sleep(clock, grace),)
        await first_of(quiet, hurry.wait(), *over, *tasks)
        for interrupt, seconds in ((True, INTERRUPTED), (False, FAREWELL)):
            if not quiet.done():
                for consumer in consumers:
                    consumer.release_running(interrupt=interrupt)
                await first_of(quiet, sleep(clock, seconds), *tasks)
        if not quiet.done():
            _log.error("the last messages could not be settled in the store; their leases expire")
    finally:
        await cancel([quiet])
        for consumer in consumers:
            await consumer.close()


async def first_of(*waits: Awaitable[Any]) -> None:
    """Wait until one of them is done, and raise what it raised; coroutines are cancelled then."""
    futures = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(
            future for future, wait in zip(futures, waits, strict=True) if future is not wait
        )
    for future in done:
        future.result()


async def cancel(tasks: "Iterable[asyncio.Future[Any]]") -> None:
    """Cancel tasks, and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
