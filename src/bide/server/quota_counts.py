"""Count in the store what namespaces have: queues, messages, and their bytes.

Nothing is counted for each request. What this server puts is added to the last count, what leaves
is seen by the next; and a count that took long is not repeated soon.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bide.lane.lane import Lane
from bide.model.commands import Count, Queues
from bide.model.replies import Counts, Names, expect
from bide.server.quota_usage import NEVER, QuotaUsage
from bide.server.rights import Caller
from bide.server.slow_reads import SlowReads

COUNT_EVERY = 10.0
"""How often, in seconds, the messages of a namespace are counted while it has room."""

RECOUNT_EVERY = 1.0
"""How often they, and their bytes, are counted at most when it seems to have none."""

WEIGH_EVERY = 60.0
"""How often the bytes of a namespace are counted at most for who asks how much it uses."""

SHARE = 20
"""A count is repeated no sooner than after so many times the time that it took."""

_log = logging.getLogger("bide.server")


@dataclass(eq=False)
class QuotaCounts:
    """Counts, for all processes of a server together.

    Args:
        lane: where messages are counted.
        slow_reads: where their bytes are.
        usage: keeps the counts.
    """

    lane: Lane
    slow_reads: SlowReads
    usage: QuotaUsage
    queues: dict[str | None, set[str]] = field(default_factory=dict, init=False)
    """The queues, by their full names, that a namespace is known to have or have had."""
    _weighing: dict[str | None, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def count(self, caller: Caller, every: float) -> None:
        """Count the messages of a namespace, unless that was done `every` seconds ago."""
        began = time.monotonic()
        with self.usage.of(caller.namespace) as use:
            if began <= use.count_after + every:
                return
            use.count_after = began
        names = await self.names(caller)
        self.queues.setdefault(caller.namespace, set()).update(names)
        pending = await self._pending(names)
        with self.usage.of(caller.namespace) as use:
            use.pending = pending
            use.count_after = began + SHARE * (time.monotonic() - began)

    async def weigh(self, caller: Caller, every: float) -> None:
        """Count the bytes of a namespace, unless that was done `every` seconds ago."""
        with self.usage.of(caller.namespace) as use:
            due = time.monotonic() >= use.weigh_after + every
        if due:
            self._begin(caller)
        if (weighing := self._weighing.get(caller.namespace)) is not None:
            await asyncio.shield(weighing)

    async def keep_weighed(self, caller: Caller, most: float) -> None:
        """Have the bytes of a namespace counted for the first time, or when there seem to be more.

        The first count is not waited for.
        """
        with self.usage.of(caller.namespace) as use:
            first, over = use.weigh_after == NEVER, use.stored > most
        if first:
            self._begin(caller)
        elif over:
            await self.weigh(caller, 0.0)

    def _begin(self, caller: Caller) -> None:
        if caller.namespace in self._weighing:
            return
        with self.usage.of(caller.namespace) as use:
            use.weigh_after = time.monotonic() + WEIGH_EVERY  # in case this process dies meanwhile
        task = asyncio.create_task(self._weigh(caller))
        self._weighing[caller.namespace] = task
        task.add_done_callback(lambda task: self._weighed(caller.namespace, task))

    async def _weigh(self, caller: Caller) -> None:
        began = time.monotonic()
        with self.usage.of(caller.namespace) as use:
            before = use.added
        stored = await self._stored(await self.names(caller))
        now = time.monotonic()
        with self.usage.of(caller.namespace) as use:
            use.stored = stored + use.added - before
            use.weigh_after = now + max(RECOUNT_EVERY, SHARE * (now - began))

    def _weighed(self, namespace: str | None, task: asyncio.Task[None]) -> None:
        del self._weighing[namespace]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("the bytes of namespace %r cannot be counted: %s", namespace, error)

    async def of_some(self, caller: Caller) -> tuple[int, int]:
        """Return how many messages and bytes are in the queues of a caller of some."""
        names = await self.names(caller)
        return await self._pending(names), await self._stored(names)

    async def names(self, caller: Caller) -> list[str]:
        """Return the full names of a caller's queues."""
        names = expect(Names, await self.lane.acall(Queues(caller.prefix("")))).names
        return [name for name in names if caller.own(name) is not None]

    async def _pending(self, names: Sequence[str]) -> int:
        counted = [expect(Counts, await self.lane.acall(Count(name))) for name in names]
        return sum(counts.sizes.total + counts.kept for counts in counted)

    async def _stored(self, names: Sequence[str]) -> int:
        counts = [await self.slow_reads.read(Count(name, stored=True)) for name in names]
        return sum(expect(Counts, one).stored or 0 for one in counts)
