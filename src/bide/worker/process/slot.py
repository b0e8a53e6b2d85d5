"""A slot of a supervisor: one process after the other works in it."""

import asyncio
import logging
from collections.abc import Callable

from bide.consuming.graceful_stop import first_of
from bide.model.backoff import Backoff
from bide.worker.process.process import Process

SLOW = 10.0
"""Seconds between two warnings that a new process is not ready yet."""

STEADY = 30.0
"""Seconds after which the death of a process is not part of a crash loop."""

PAUSES = Backoff(first="500ms", factor=2, ceiling="30s", jitter=0)
"""The delays before a dead process is replaced."""

_log = logging.getLogger("bide.worker")


class Slot:
    """Keeps one process at work, and replaces it.

    Args:
        number: for the log.
        start: starts a process for the slot of a number.
        end: asks a process to end.
    """

    def __init__(
        self, number: int, start: Callable[[int], Process], end: Callable[[Process], None]
    ) -> None:
        self.number = number
        self.process: Process | None = None
        """The process at work. One that was replaced may still finish its deliveries."""
        self.again = 0.0
        """When the next attempt to replace a stuck process may begin, by `time.monotonic`."""
        self.asked = ""
        """Who asked to replace the process at work; empty: nobody."""
        self._start = start
        self._end = end
        self._replaced = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether a process is at work."""
        return self.process is not None and self.process.ready

    async def fill(self) -> Process:
        """Start a process unless there is one; wait for its end, or that of its replacement."""
        if self.process is None:
            self.process = self._start(self.number)
        while True:
            process = self.process
            await first_of(process.over, self._replaced.wait())
            self._replaced.clear()
            if self.process is process and process.over.done():
                self.process = None
                return process

    async def replace(self, given_up: asyncio.Event, *, hurry: bool) -> bool:
        """Start another process, and end the one before once the new one is at work.

        Args:
            given_up: set when the caller no longer waits for the new process.
            hurry: the one before must end at once.

        Returns:
            Whether the new process works; if not, the one before goes on.
        """
        fresh = self._start(self.number)
        if not await self.until_ready(fresh, given_up):
            return False
        old, self.process = self.process, fresh
        self._replaced.set()
        if old is not None:  # else it died meanwhile
            self._end(old)
            if hurry:
                self._end(old)
            await asyncio.wait([old.over])
        return True

    async def until_ready(self, fresh: Process, given_up: asyncio.Event) -> bool:
        """Wait until a new process works; return whether it does."""
        known = asyncio.create_task(fresh.until_known())
        hurry = asyncio.create_task(given_up.wait())
        waited = 0.0
        try:
            while not (await _first(known, hurry)):
                waited += SLOW
                _log.warning("the new process %d is not ready after %g s", self.number, waited)
        finally:
            known.cancel()
            hurry.cancel()
        if fresh.ready:
            return True
        if not fresh.over.done():
            self._end(fresh)
        elif not fresh.told:
            _log.error(
                "the new process %d has ended (%s) before it was ready; those that work go on with "
                "the code they have",
                self.number, fresh.cause(),
            )  # fmt: skip
        return False


async def _first(*tasks: "asyncio.Task[bool]") -> bool:
    """Wait up to `SLOW` seconds until one of them is done; return whether one is."""
    done, _ = await asyncio.wait(tasks, timeout=SLOW, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


class Restarts:
    """Counts how often in a row a process died soon after its start.

    Example:
        >>> restarts = Restarts()
        >>> [restarts.pause(lived) for lived in (0.1, 0.1, 0.1, 300, 0.1)]
        [0.5, 1.0, 2.0, 0.5, 0.5]
    """

    def __init__(self) -> None:
        self._young = 0

    def pause(self, lived: float) -> float:
        """Return how many seconds to wait before the next process is started."""
        self._young = 0 if lived >= STEADY else self._young + 1
        return PAUSES.delay(self._young, 0.5) / 1000
