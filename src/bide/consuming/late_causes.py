"""How late deliveries of a queue begin, and why."""

import asyncio
from collections.abc import Sequence

from bide.clock import sleep
from bide.consuming.handling import Handling
from bide.consuming.store_client import StoreClient
from bide.model.commands import Explain
from bide.model.errors import StoreError
from bide.model.replies import Explained, expect
from bide.observing.lateness import Span, Waited, causes_of
from bide.observing.tally import Histogram, Tally

PROMPT = 0.05
"""Seconds of lateness that are the timer's without a closer look."""

GATHER = 5.0
"""Seconds for which late deliveries are gathered before their causes are looked for."""

MOST = 10_000
"""How many of them are gathered at most."""


class LateCauses:
    """Gathers late deliveries, and reads now and then when their queue was paused.

    Deliveries on time cost nothing: the store is asked once for all that were late in five seconds.

    Args:
        queue: its name.
        store_client: asks the store.
    """

    def __init__(self, queue: str, store_client: StoreClient) -> None:
        self.unserved: Sequence[Span] = ()
        """When no worker served the queue, as far as this process knows."""
        self._queue = queue
        self._store_client = store_client
        self._waited: list[Waited] = []
        self._lateness: list[float] = []
        self._prompt: list[float] = []
        self._found: dict[str, list[float]] = {}
        self._pauses: list[Span] = []
        self._late = asyncio.Event()

    def began(self, one: Handling, asked: float) -> None:
        """Note a delivery whose handler is started.

        Args:
            one: the delivery.
            asked: when the claim began that brought it, by the monotonic clock.
        """
        lateness, message = one.lateness, one.message
        self._lateness.append(lateness)
        if lateness <= PROMPT and message.planned is None:
            self._prompt.append(lateness)
            return
        due = message.due if message.planned is None else message.planned
        retried = message.due
        if message.failures:
            retried = max(retried, message.failures[-1].moment)
        claimed = one.claimed
        before = claimed - (one.arrived - asked) * 1000
        began = claimed + (one.began - one.arrived) * 1000
        self._waited.append(Waited(due, min(retried, claimed), before, claimed, began, one.freed))
        if len(self._waited) >= MOST:
            self._find()
        self._late.set()

    async def keep(self) -> None:
        """Look for causes every few seconds, for as long as this runs."""
        while True:
            await self._late.wait()
            await sleep(self._store_client.clock, GATHER)
            self._late.clear()
            await self._read_pauses()
            self._find()

    def add_to(self, tally: Tally) -> None:
        """Add how late deliveries began, and what was found to be the cause."""
        tally.lateness.observe_all(self._lateness)
        self._lateness.clear()
        causes = tally.causes
        if self._prompt:
            causes.setdefault("timer", Histogram()).observe_all(self._prompt)
            self._prompt.clear()
        for cause, found in self._found.items():
            if not found:
                continue
            causes.setdefault(cause, Histogram()).observe_all(found)
        self._found.clear()

    async def _read_pauses(self) -> None:
        try:
            told = expect(Explained, await self._store_client.lane.acall(Explain(self._queue)))
        except StoreError:  # a token may not read, or the store is away: as it was last known
            return
        self._pauses = [
            (0 if one.since is None else one.since, told.now if one.until is None else one.until)
            for one in told.pauses
        ]

    def _find(self) -> None:
        backlog = self._found.setdefault("backlog", [])
        timer = self._found.setdefault("timer", [])
        over = max((end for _, end in (*self._pauses, *self.unserved)), default=0.0)
        for waited in self._waited:
            due, retried, asked, claimed, began, freed = waited
            # In a backlog all are like this.
            if max(over, freed, retried) <= due <= claimed:
                asked = min(max(asked, due), claimed)
                if busy := asked - due + began - claimed:
                    backlog.append(busy / 1000)
                if asked < claimed:
                    timer.append((claimed - asked) / 1000)
                continue
            for cause, ms in causes_of(waited, self._pauses, self.unserved).items():
                self._found.setdefault(cause, []).append(ms / 1000)
        self._waited.clear()
