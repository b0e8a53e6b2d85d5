"""Reads that may visit every message of a queue.

A slow read must not delay other requests. So slow reads have a separate lane, where they run one at
a time with a pause after each as long as it took.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Count, ForecastCommand, Scan
from bide.model.replies import Reply

MAX_PAUSE = 1.0
"""The longest pause after a slow read, in seconds."""


class Turns:
    """Turns, one at a time, with a pause after each that is as long as it took."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it while the block runs."""
        await self._turn.acquire()
        began = time.monotonic()
        try:
            yield
        finally:
            pause = min(MAX_PAUSE, time.monotonic() - began)
            asyncio.get_running_loop().call_later(pause, self._turn.release)


def is_slow(command: Command) -> bool:
    """Tell whether a command may visit every message of its queue.

    Example:
        >>> is_slow(Count("orders")), is_slow(Count("orders", recount=True))
        (False, True)
    """
    match command:
        case Count():
            return command.recount or command.stored
        case Scan():
            return command.where is not None or command.prefix is not None
        case Cancel():
            return command.only_reads
    return isinstance(command, ForecastCommand)


class SlowReads:
    """Executes slow reads, one at a time.

    Args:
        lane: the lane of all other commands.
    """

    def __init__(self, lane: Lane) -> None:
        self._main = lane
        self._own: Lane | None = None
        """The lane of slow reads, from the first one on; `_main` if the store has no second one."""
        self._turns = Turns()

    async def read(self, command: Command, owner: object = None) -> Reply:
        """Execute a slow read, and return its reply.

        Args:
            command: the slow read.
            owner: see `Lane.acall`.

        Raises:
            StoreError: it was not executed.
        """
        async with self._turns.turn():
            if self._own is None:
                self._own = await asyncio.to_thread(self._main.reading_lane) or self._main
            return await self._own.acall(command, owner)

    def close(self) -> None:
        """Close the separate lane, if there is one."""
        if self._own not in (None, self._main):
            self._own.close()
