"""Requests of operators to replace worker processes, as the supervisor hears of them."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from bide.lane.lane import Lane
from bide.model.errors import BideError
from bide.model.replies import Found, Outcomes, expect
from bide.observing.heartbeat import STOPS
from bide.observing.workers import asked, find_requests, withdraw_stop

EVERY = 5.0
"""Seconds between two looks."""

PATIENCE = 10.0
"""Seconds that a store gets to answer."""

_log = logging.getLogger("bide.worker")


class StopRequests:
    """Looks for requests. If the store is down, work goes on, and the next look may find them.

    Args:
        lane: returns the lane to the store; `None` while it is unknown, or in memory.
    """

    def __init__(self, lane: Callable[[], Lane | None]) -> None:
        self._lane = lane
        self._complained = False

    async def take(self, holders: Sequence[str]) -> dict[str, str]:
        """Return who asked to replace which of some processes, and delete these requests.

        Args:
            holders: the names under which the processes claim.
        """
        lane = self._lane()
        if lane is None or not holders:
            return {}
        try:
            async with asyncio.timeout(PATIENCE):
                found = expect(Found, await lane.acall(find_requests(list(holders))))
                taken: dict[str, str] = {}
                for message in found.messages:
                    if message is None:
                        continue
                    gone = expect(Outcomes, await lane.acall(withdraw_stop(STOPS, message.id)))
                    actor = asked(message)
                    if actor is not None and gone.outcomes[0].done:
                        taken[message.id] = actor
                self._complained = False
                return taken
        except (BideError, TimeoutError) as error:
            if not self._complained:
                _log.info("requests to replace processes cannot be looked for: %s", error)
            self._complained = True
            return {}
