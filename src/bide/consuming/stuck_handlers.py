"""Notice when handlers that went on past their timeout take all places of a queue."""

import asyncio
from collections.abc import Iterable

from bide.clock import Clock, Timer
from bide.consuming import delivery_log
from bide.consuming.handling import Handling

__all__ = ["STUCK", "StuckHandlers"]

STUCK = 5.0
"""Seconds for which all places of a queue are taken by runaways before that is told."""


class StuckHandlers:
    """Notices when a queue stands still because its handlers do not return.

    Nobody can end a thread, or a task that swallows its cancellation: each keeps its place. While
    one place is left the queue goes on. Without one, only another process can go on.

    Args:
        queue: its name.
        clock: what says how long it has been so.
    """

    def __init__(self, queue: str, clock: Clock) -> None:
        self.stuck = False
        """Whether all places have been taken for a while."""
        self._queue = queue
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None

    def look(self, running: Iterable[Handling], places: int) -> int:
        """Something has run away, or has ended after all: return how many run now like that."""
        count = sum(one.gone and one.timed_out for one in running)
        if count < places:
            self.close()
            self.stuck = False
        elif self._timer is None:
            self._timer = self._clock.call_later(self._loop, STUCK, self._tell)
        return count

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self.stuck = True
        delivery_log.stuck(self._queue)
