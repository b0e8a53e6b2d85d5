"""Attendance: a worker says in the store that it is there, so that it is seen when idle as well."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.model.errors import BideError
from bide.telemetry import presence
from bide.telemetry.presence import Lately, Roll
from bide.telemetry.tally import Tally
from bide.worker.access import sleep

__all__ = ["Attendance", "may_be_listed"]

PATIENCE = 2.0
"""Seconds that taking leave may need."""

SWEEP_EVERY = 60
"""After so many beats what dead processes have said is deleted."""

_log = logging.getLogger("bide.worker")


def may_be_listed(lane: Lane) -> bool:
    """Tell whether there is a place in the store for it, and somebody to look there."""
    can = lane.capabilities
    return can.shared and can.random_access


class Attendance:
    """Says every few seconds which worker is there, on which queues, and how late it was lately.

    Nothing depends on it: a store that is away, or that lets this worker put nothing, is no reason
    to work less.

    Args:
        lane: the way to the store.
        clock: what beats are measured by.
        process: by what name the store knows it.
        workers: returns who is there, and the queues that each works on.
        tallies: returns what was done so far, by queue.
    """

    def __init__(
        self,
        lane: Lane,
        clock: Clock,
        process: str,
        workers: Callable[[], Mapping[str, list[str]]],
        tallies: Callable[[], Mapping[str, Tally]],
    ) -> None:
        self._lane = lane
        self._clock = clock
        self._process = process
        self._workers = workers
        self._tallies = tallies
        self._lately = Lately()
        self._listed = False
        self._complained = False

    async def keep(self) -> None:
        """Say it for as long as this runs."""
        beats = 0
        while True:
            try:
                await self._say()
                if beats % SWEEP_EVERY == 0 and self._listed:
                    await self._lane.acall(presence.swept())
                self._complained = False
            except BideError as error:
                if not self._complained:
                    _log.info("others cannot be told that this process is there: %s", error)
                self._complained = True
            beats += 1
            await sleep(self._clock, presence.BEAT)

    async def leave(self) -> None:
        """Be there no longer."""
        if not self._listed:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._lane.acall(presence.forgotten(self._process))
        except (BideError, TimeoutError) as error:
            _log.debug("this process is listed until it is missed: %s", error)

    async def _say(self) -> None:
        lateness = {queue: tally.lateness for queue, tally in self._tallies().items()}
        lately = self._lately.of(lateness, self._clock.monotonic())
        workers = {holder: sorted(queues) for holder, queues in self._workers().items()}
        if workers or lately:
            await self._lane.acall(presence.announced(self._process, Roll(workers, lately)))
            self._listed = True
        elif self._listed:
            await self._lane.acall(presence.forgotten(self._process))
            self._listed = False
