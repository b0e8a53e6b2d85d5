"""Slow reads: those that may look at every message of a queue.

A second on a large queue is little for who asks, and much for everybody who waits behind it. So
these have a lane of their own, one at a time, and a pause after each as long as it took.
"""

import asyncio

from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Count, Forecast, Scan
from bide.model.replies import Reply
from bide.server.turns import Turns


def is_slow(command: Command) -> bool:
    """Tell whether a command may look at every message of its queue.

    Example:
        >>> is_slow(Count("orders")), is_slow(Count("orders", recount=True))
        (False, True)
    """
    match command:
        case Count():
            return command.recount or command.stored
        case Scan() | Cancel():
            by_id = isinstance(command, Scan) and command.prefix is not None
            return command.only_reads and (command.where is not None or by_id)
        case Forecast():
            return True
    return False


class SlowReads:
    """Carries out slow reads, one at a time.

    Args:
        lane: that of all other commands.
    """

    def __init__(self, lane: Lane) -> None:
        self._main = lane
        self._own: Lane | None = None
        self._turns = Turns()

    async def read(self, command: Command, owner: object = None) -> Reply:
        """Execute a slow read, and return its reply.

        Raises:
            StoreError: it was not executed.
        """
        async with self._turns.one():
            if self._own is None:
                self._own = await asyncio.to_thread(self._main.beside) or self._main
            return await self._own.acall(command, owner)

    def close(self) -> None:
        """Close the lane, if there is one of its own."""
        if self._own not in (None, self._main):
            self._own.close()
