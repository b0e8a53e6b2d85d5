"""The plan of a queue for what is overdue, applied before the first claim after a gap.

One process applies it, and the others wait until it is through: see `StoreLock`.
"""

import asyncio
from typing import Any

from bide.clock import Clock, sleep
from bide.consuming.store_client import StoreClient
from bide.consuming.store_lock import Ask, LockLost, StoreLock
from bide.lane.lane import Lane
from bide.lane.steps import arun_steps
from bide.logs import logger
from bide.model.commands import Command, Count, Explain
from bide.model.errors import BideError, InvalidArgument, StoreBusy, StoreUnavailable
from bide.model.identity import actor_of, split_name
from bide.model.internal_queues import InternalQueue, is_internal
from bide.model.replies import Counts, Explained
from bide.observing.heartbeat import REGISTER, recent_reports

GAP = 60_000
"""Milliseconds: a queue in which a message has been due for so long, and that no worker has served
for so long, has had a gap. So has one whose store was away for so long."""

LOOK = 0.25
"""Seconds between two looks whether another process is through."""

_log = logger("bide.worker")


async def recover_after_gap(
    queue: str, lane: Lane, ask: Ask, clock: Clock, holder: str, *, was_away: bool = False
) -> None:
    """Apply the plan of a queue if there was a gap; wait for another process that does.

    Args:
        queue: its name.
        lane: to the store.
        ask: executes commands there.
        clock: for waiting.
        holder: the name of this process, which may have reported that it is alive.
        was_away: whether the store was away for as long as a gap; else a queue without workers has
            a gap.

    Raises:
        StoreError: the store failed or is unavailable.
    """
    counts: Counts = await ask(Count(queue))
    if not counts.overdue:
        return
    lock = StoreLock(InternalQueue.RECOVERY.beside(queue), split_name(queue)[1], ask, clock)
    while True:
        other = await lock.look()
        if other is None:
            if not (
                await _is_late(queue, ask) and (was_away or await _is_idle(queue, ask, holder))
            ):
                return
        elif other.state == "delayed":  # its process is at work
            await sleep(clock, LOOK)
            if await lock.look() is None:
                return
            continue
        if await lock.take(other):
            break
    try:
        if other is not None or await _is_late(queue, ask):  # another one may have come first
            await _apply(queue, lane, ask, lock, counts.overdue, holder)
    finally:
        await lock.release()


async def _is_late(queue: str, ask: Ask) -> bool:
    """Return whether a message of a queue has been due for as long as a gap."""
    counts: Counts = await ask(Count(queue))
    explained: Explained = await ask(Explain(queue))
    return counts.oldest is not None and explained.now - counts.oldest >= GAP


async def _is_idle(queue: str, ask: Ask, holder: str) -> bool:
    """Return whether no other worker serves a queue that has begun before the end of a gap.

    Workers that have just begun, as this one, are no sign that the queue was served.
    """
    explained: Explained = await ask(Explain(queue))
    registers = sorted({REGISTER, InternalQueue.WORKERS.beside(queue)})
    reports, _ = await arun_steps(recent_reports(registers, explained.now), ask)
    return not any(
        recent.silent is None
        and explained.now - recent.report.began >= GAP
        and any(queue in queues for name, queues in recent.report.workers.items() if name != holder)
        for recent in reports
    )


async def _apply(queue: str, lane: Lane, ask: Ask, lock: StoreLock, text: str, holder: str) -> None:
    """Apply a plan, and log what it has done."""
    from bide.model.recovery import plan_of  # here: most queues have none
    from bide.undoing.changes import in_store
    from bide.undoing.recovering import recovering

    async def ask_locked(command: Command) -> Any:
        await lock.renew()
        return await ask(command)

    steps = recovering(queue, plan_of(text), in_store(lane), actor=actor_of(holder))
    try:
        result = await arun_steps(steps, ask_locked)
    except LockLost:
        _log.warning("%s: another process handles what is overdue", queue)
        return
    done = {"dropped": result.dropped + result.superseded, "moved": result.moved}
    _log.warning(
        "%s: after a gap without workers %s messages were overdue; by its setting %r %s%s",
        queue,
        f"{result.overdue:,}",
        text,
        ", ".join(f"{count:,} were {verb}" for verb, count in done.items()),
        f"; to take it back: bide undo {queue} {result.undo}" if result.undo else "",
    )


class OverdueWatch:
    """Lets the plan of a queue be applied before its first claim, and the first after an outage.

    A server applies the plans of its store itself: its clients do nothing.

    Args:
        queue: the name of the queue.
        store_client: runs the commands.
        holder: the name of the worker.
    """

    def __init__(self, queue: str, store_client: StoreClient, holder: str) -> None:
        self._queue, self._client, self._holder = queue, store_client, holder
        self._is_to_look = not is_internal(queue)
        self._was_away = False
        self._failed_at: float | None = None
        """When claims have begun to fail, by the monotonic clock; `None`: they do not."""

    async def before_claim(self, attempt: int) -> None:
        """Apply the plan if there was a gap.

        Args:
            attempt: how often the claim has failed: because the store is away.

        Raises:
            StoreBusy, StoreUnavailable: the store is away.
        """
        if attempt and self._failed_at is None:
            self._failed_at = self._client.clock.monotonic()
        elif not attempt and not self._client.away:
            self._failed_at = None
        if self._failed_at is not None and not is_internal(self._queue):
            away_ms = (self._client.clock.monotonic() - self._failed_at) * 1000
            self._was_away = self._was_away or away_ms >= GAP
        if not (self._is_to_look or self._was_away):
            return
        await self._look()
        self._is_to_look = self._was_away = False
        self._failed_at = None

    async def _look(self) -> None:
        """Apply the plan; a worker that may not, or cannot, works without."""
        client = self._client
        try:
            await asyncio.to_thread(client.lane.open)
            if client.lane.capabilities.has_server:
                return
            await recover_after_gap(
                self._queue,
                client.lane,
                client.ask,
                client.clock,
                self._holder,
                was_away=self._was_away,
            )
        except (StoreBusy, StoreUnavailable):
            raise
        except BideError as error:
            fix = " (its plan is of a newer version?)" if isinstance(error, InvalidArgument) else ""
            _log.warning(
                "%s: overdue messages are delivered without a plan%s: %s", self._queue, fix, error
            )
