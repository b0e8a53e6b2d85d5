"""Settle messages in batches: all that ended since the last batch."""

import asyncio
from collections.abc import Callable

from bide.consuming import policy
from bide.consuming.handling import Handling
from bide.consuming.policy import Verdict
from bide.consuming.results import keep_result
from bide.consuming.store_client import StoreClient
from bide.model.replies import Outcome, Outcomes

Pairs = list[tuple[Handling, Verdict]]


class Settling:
    """Collects the outcomes of one queue, and sends them to the store.

    Args:
        queue: its name.
        store_client: runs its commands on the store.
        told: called with the deliveries of a batch and the outcomes from the store.
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
        """Whether the store has not confirmed all outcomes yet."""
        return self._telling or bool(self._pairs)

    def add(self, one: Handling, verdict: Verdict) -> None:
        """Settle a message with the next batch."""
        if one.returned is not None:
            keep_result(one)
        self._pairs.append((one, verdict))
        self._news.set()

    def look(self) -> None:
        """Let `tell_all` return, even without outcomes to send."""
        self._news.set()

    async def tell_all(self) -> None:
        """Wait for outcomes, and send them; retry as long as the store is unavailable."""
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
