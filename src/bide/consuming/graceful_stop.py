"""Stop consumers: let handlers finish, interrupt the others, release their messages.

If a part of the worker has failed, or its stop was cancelled, nothing is left that would extend
leases: see `release_all`.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from bide.clock import Clock, sleep
from bide.consuming.consumer import Consumer
from bide.logs import logger
from bide.tasks import cancel, first_of

INTERRUPTED = 1.0
"""Seconds that handlers get to clean up after they were interrupted."""

FAREWELL = 5.0
"""Seconds to settle the last messages; without that, their leases expire."""

_log = logger("bide.worker")


def unfinished(consumers: Collection[Consumer]) -> str:
    """Return what a stop has to wait for, for the log; an empty text if nothing is left."""
    running = sum(len(consumer.running) for consumer in consumers)
    to_settle = sum(consumer.to_settle for consumer in consumers)
    parts = [f"{running} running"] if running else []
    if to_settle:
        parts.append(f"{to_settle} to settle in the store")
    return ", ".join(parts)


async def stop(
    consumers: Sequence[Consumer],
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
    all_quiet = asyncio.gather(*[consumer.until_quiet() for consumer in consumers])
    try:
        end_of_grace = () if grace is None else (sleep(clock, grace),)
        await first_of(all_quiet, hurry.wait(), *end_of_grace, *tasks)
        # First async handlers may clean up; then all that still run lose their messages.
        for interrupt, seconds in ((True, INTERRUPTED), (False, FAREWELL)):
            if not all_quiet.done():
                for consumer in consumers:
                    consumer.release_running(interrupt=interrupt)
                await first_of(all_quiet, sleep(clock, seconds), *tasks)
        if not all_quiet.done():
            _log.error("the last messages could not be settled in the store; their leases expire")
    except BaseException:  # a part has failed, or the stop was cancelled
        await release_all(consumers, clock)
        raise
    finally:
        await cancel([all_quiet])
        for consumer in consumers:
            await consumer.close()


async def release_all(consumers: Sequence[Consumer], clock: Clock) -> None:
    """Interrupt all handlers at once, and release their messages as far as that is possible.

    Args:
        consumers: of a worker that was cancelled, or of which a part has failed, perhaps one of
            them.
        clock: measures the wait.
    """
    opened = [consumer for consumer in consumers if consumer.chores]
    await cancel(consumer.claims for consumer in opened)
    for consumer in opened:
        consumer.leave()
        consumer.release_running(interrupt=False)
    settling = [consumer for consumer in opened if consumer.settles]
    all_quiet = asyncio.gather(*[consumer.until_quiet() for consumer in settling])
    ends = [asyncio.wait([consumer.chores[0]]) for consumer in settling]  # nothing settles then
    try:
        await first_of(all_quiet, sleep(clock, FAREWELL), *ends)
    finally:
        await cancel([all_quiet])
