"""The upkeep of a source or a schedule: its queue has a message of it while a worker runs."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from bide.clock import sleep
from bide.consuming.handling import Handling
from bide.consuming.store_client import StoreClient
from bide.engines.losses import listening
from bide.model.commands import ForecastCommand
from bide.model.errors import StopRequested
from bide.model.replies import Forecasted
from bide.tasks import first_of

POLL = 60.0
"""Seconds between two checks of each process whether a message is missing, as after a purge."""


class PeriodicUpkeep(ABC):
    """Puts what a source or a schedule needs in its queue, and repairs it.

    Args:
        store_client: runs its commands on the store.
        queue: of the source or the schedule.
    """

    def __init__(self, store_client: StoreClient, queue: str) -> None:
        self.store_client = store_client
        self.queue = queue

    async def keep(self) -> None:
        """Begin, and repair whatever is missing, at once after a loss."""
        loop, loss = asyncio.get_running_loop(), asyncio.Event()
        with listening(lambda: loop.call_soon_threadsafe(loss.set)):
            await self.begin()
            while True:
                await first_of(sleep(self.store_client.clock, POLL), loss.wait())
                refill = loss.is_set()
                loss.clear()
                await self.ensure(refill=refill)

    async def begin(self) -> None:
        """Put the first message if there is none."""
        await self.ensure()

    @abstractmethod
    async def ensure(self, *, refill: bool = False) -> None:
        """Put a message if there is none, and adapt those that wait.

        Args:
            refill: whether the store has lost changes.
        """

    @abstractmethod
    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Run around each delivery, outside all middleware."""

    @staticmethod
    def end_if_cancelled(handling: Handling) -> None:
        """Let a delivery whose function has returned count as cancelled if it was asked to stop.

        An ack would say that it was too late, and its message goes on all the same.

        Raises:
            StopRequested: it was asked to stop.
        """
        if handling.stopping:
            raise StopRequested(f"{handling.id} was cancelled while it ran")

    async def now(self) -> int:
        """Return the store's time."""
        # A forecast is a read that has it; its buckets of 1 ms do not round it.
        command = ForecastCommand(self.queue, 1, 1)
        return (await self.store_client.patiently(Forecasted, command)).start
