"""The plans of queues for what is overdue, applied for clients that claim over HTTP."""

import asyncio

from bide.clock import Clock
from bide.consuming.overdue import GAP, recover_after_gap
from bide.engines.bounded_dict import BoundedDict
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model.errors import BideError
from bide.model.internal_queues import is_internal
from bide.model.limits import MAX_TALLIES
from bide.queue.arguments import own_name
from bide.tasks import cancel

_log = logger("bide.server")


class OverduePlans:
    """Applies the plan of a queue before the first claim after a gap without claims here.

    Args:
        lane: to the store.
        clock: the clock of the store.
    """

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self._lane, self._clock = lane, clock
        self._claimed_at: BoundedDict[str, float] = BoundedDict(MAX_TALLIES)
        """By queue: when a client has claimed last, by the monotonic clock."""
        self._under_way: dict[str, asyncio.Task[None]] = {}
        """By queue: a look whether there was a gap, with the recovery if there was one."""

    async def before_claim(self, queue: str) -> None:
        """Wait until what is overdue in a queue has the places of its plan, if there was a gap.

        Args:
            queue: its full name.
        """
        now, last = self._clock.monotonic(), self._claimed_at.get(queue)
        self._claimed_at[queue] = now
        task = self._under_way.get(queue)
        if task is None:
            if is_internal(queue) or (last is not None and (now - last) * 1000 < GAP):
                return
            task = self._under_way[queue] = asyncio.create_task(self._look(queue))
        await asyncio.shield(task)  # another client may wait for it

    async def _look(self, queue: str) -> None:
        """Apply the plan if there was a gap; if that fails, messages are delivered as they are."""
        try:
            # If the store is behind another server, that server applies the plan.
            if not self._lane.capabilities.has_server:
                ask = self._lane.acall
                await recover_after_gap(queue, self._lane, ask, self._clock, own_name())
        except BideError as error:
            _log.warning("%s: overdue messages are delivered without a plan: %s", queue, error)
        finally:
            self._under_way.pop(queue, None)

    async def close(self) -> None:
        """End what is under way: the next process that comes goes on with it."""
        await cancel(self._under_way.values())
