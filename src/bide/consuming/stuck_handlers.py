"""Notice when handlers past their timeout occupy all places of a queue."""

import asyncio
import logging
from collections.abc import Iterable

from bide.clock import Clock, Timer
from bide.consuming.handling import Handling

STUCK = 5.0
"""Seconds for which such handlers occupy all places before the worker reports it."""


_log = logging.getLogger("bide.worker.delivery")


class StuckHandlers:
    """Notices when a queue stands still because its handlers do not return.

    A thread, or a task that swallows its cancellation, cannot be ended: it keeps its place. The
    queue continues while one place is left; without one, only another process can work on it.

    Args:
        queue: its name.
        clock: measures how long they occupy all places.
    """

    def __init__(self, queue: str, clock: Clock) -> None:
        self.stuck = False
        """Whether they have occupied all places for `STUCK` seconds."""
        self._queue = queue
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None

    def look(self, running: Iterable[Handling], places: int) -> int:
        """Count the handlers past their timeout, after one of them started or ended to be so."""
        count = sum(one.gone and one.timed_out for one in running)
        if count < places:
            self.close()
            self.stuck = False
        elif self._timer is None:
            self._timer = self._clock.call_later(self._loop, STUCK, self._tell)
        return count

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self.stuck = True
        _log.error(
            "%s: all its places are taken by handlers that went on past their timeout; nothing "
            "more of it is begun in this process", self._queue, extra={"queue": self._queue},
        )  # fmt: skip
