"""Settling: the store is told what became of messages, all that ended meanwhile at a time."""

import asyncio
from collections.abc import Callable

from bide.consuming import policy
from bide.consuming.handling import Handling
from bide.consuming.policy import Verdict
from bide.consuming.store_client import StoreClient
from bide.model.replies import Outcome, Outcomes

__all__ = ["Pairs", "Settling"]

Pairs = list[tuple[Handling, Verdict]]


class Settling:
    """What is to be told to the store of one queue, and what is being told.

    Args:
        queue: its name.
        store_client: runs its commands on the store.
        told: called with what the store was told, and what it has answered.
    """

    def __init__(
        self, queue: str, store_client: StoreClient, told: Callable[[Pairs, list[Outcome]], None]
    ) -> None:
        self._queue = queue
        self._store_client = store_client
        self._told = told
        self._pairs: Pairs = []
        self._telling = False
        self._news = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether there is something that the store does not know yet."""
        return self._telling or bool(self._pairs)

    def add(self, one: Handling, verdict: Verdict) -> None:
        """Have the store told what becomes of a message."""
        self._pairs.append((one, verdict))
        self._news.set()

    def look(self) -> None:
        """Let `tell_all` return, even if there is nothing to tell."""
        self._news.set()

    async def tell_all(self) -> None:
        """Wait for something to tell, and tell it, however long the store is away."""
        await self._news.wait()
        self._news.clear()
        if not self._pairs:
            return
        self._telling = True
        pairs, self._pairs = self._pairs, []
        parts = policy.commands(self._queue, pairs)
        replies = await asyncio.gather(
            *[self._store_client.patiently(Outcomes, command) for command, _ in parts]
        )
        for (_, those), reply in zip(parts, replies, strict=True):
            self._told(those, reply.outcomes)
        self._telling = False
        if self._pairs:
            self._news.set()
