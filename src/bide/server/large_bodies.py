"""Large request bodies: how much memory they may take, and how they share the event loop."""

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

from bide.model.limits import MAX_BUFFERED
from bide.server.problem import Problem

LARGE = 64 * 1024
"""Bytes above which decoding a body takes the event loop milliseconds, and not less."""

SLICE = 0.002
"""Seconds after which a loop over a large request lets others go on."""

T = TypeVar("T")

Stepwise = Generator[None, None, T]
"""Work on something large: it yields wherever others may go on, and returns its result."""


class LargeBodies:
    """Bounds the memory of large bodies, and lets others go on between two of them.

    A body is decoded in one step, which no thread can make shorter: it holds the interpreter. So
    large ones take turns, one at a time in the order in which they came, and after each the event
    loop belongs to other requests for as long as that one took.

    Args:
        max_request: how many bytes a request may take.
    """

    def __init__(self, max_request: int) -> None:
        self._most = max(MAX_BUFFERED, 2 * max_request)
        self._turn = asyncio.Lock()
        self.buffered = 0
        """Bytes of requests that are under way, beyond `LARGE` each."""

    def grow(self, before: int, after: int) -> None:
        """Count what has come of a body; `grow(size, 0)` when its request is over.

        Raises:
            Problem: all large bodies together would take too much memory.
        """
        added = max(after - LARGE, 0) - max(before - LARGE, 0)
        if added > 0 and self.buffered + added > self._most:
            raise Problem(
                "overloaded",
                f"large requests under way take {self.buffered >> 20:,} MiB already; try again in "
                "a second, or send less at a time",
                headers={"connection": "close"},
            )
        self.buffered += added

    async def turn(self, size: int) -> None:
        """Wait until a body of so many bytes may be decoded, before the next `await`."""
        if size <= LARGE:
            return
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._over, loop.time())

    async def work(self, steps: Stepwise[T]) -> T:
        """Do some work, let others go on now and then, and return its result."""
        since = time.monotonic()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            since = await self.give_way(since)

    async def give_way(self, since: float) -> float:
        """Let others go on if a loop has run for `SLICE`; return since when it has run.

        Of all loops over large requests one at a time goes on.
        """
        if time.monotonic() - since < SLICE:
            return since
        await asyncio.sleep(0)
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._turn.release)
        return time.monotonic()

    def _over(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(loop.time() - began, self._turn.release)
