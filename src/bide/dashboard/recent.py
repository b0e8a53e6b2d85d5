"""Share what is read from the store: one read serves all browsers that ask within seconds."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

MOST = 256
"""How many results are kept."""

SHARE = 20
"""A result is kept at least so many times as long as it took to read."""


class Recent:
    """Keeps what was read lately. What takes long is read more rarely: at most 5 % of the time.

    Nothing is read while nobody asks.

    Args:
        clock: measures how old results are.

    Example:
        >>> async def twice() -> list[int]:
        ...     recent, reads = Recent(), []
        ...     async def read() -> int:
        ...         reads.append(1)
        ...         return len(reads)
        ...     return [await recent.get("counts", 60, read) for _ in range(2)]
        >>> asyncio.run(twice())
        [1, 1]
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    async def get(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return a result that is at most so old, or read it.

        Args:
            key: what is read.
            seconds: how long the result is good.
            read: reads it; callers that come meanwhile wait for the same result.
        """
        entry = self._entries.get(key)
        if entry is None or entry.until <= self._clock.monotonic():
            entry = self._entries[key] = _Entry(self._clock, seconds, read)
            while len(self._entries) > MOST:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        result: T = await asyncio.shield(entry.task)
        return result

    def forget(self) -> None:
        """Read everything again: something was changed."""
        self._entries.clear()


class _Entry:
    """A result, or the task that reads it."""

    def __init__(self, clock: Clock, seconds: float, read: Callable[[], Awaitable[Any]]) -> None:
        self.until = float("inf")
        """Until when it is good; endless while it is read."""
        self._clock = clock
        self._seconds = seconds
        self._began = clock.monotonic()
        self.task = asyncio.ensure_future(read())
        self.task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[Any]") -> None:
        now = self._clock.monotonic()
        failed = task.cancelled() or task.exception() is not None
        self.until = now if failed else now + max(self._seconds, SHARE * (now - self._began))
