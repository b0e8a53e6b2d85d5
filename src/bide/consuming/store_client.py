"""Run the commands of a worker, and wait while the store is unavailable."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from bide.clock import Clock, sleep
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model.backoff import Backoff
from bide.model.commands import Command
from bide.model.errors import StoreError
from bide.model.replies import Reply, expect

R = TypeVar("R", bound=Reply)

PAUSES = Backoff(first="100ms", factor=2, ceiling="2s", jitter=0.2)
"""The pauses before a command is repeated while the store is away."""

_log = logger("bide.worker")


class StoreClient:
    """Runs commands, and logs when the store becomes unavailable and when it is back."""

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self.lane = lane
        self.clock = clock
        self._away_since: float | None = None  # by the monotonic clock; `None`: it is not away

    @property
    def away(self) -> bool:
        """Whether the last command found the store unavailable."""
        return self._away_since is not None

    async def patiently(
        self,
        kind: type[R],
        command: Command,
        owner: object = None,
        wait: float | None = None,
        before: Callable[[int], Awaitable[None]] | None = None,
    ) -> R:
        """Run a command; retry as long as the store is unavailable.

        After a failure a claim does not wait: its reply, which may be empty, says that the store is
        back. One that waits might say so hours later.

        Args:
            kind: the type of its reply.
            command: the command.
            owner, wait: as for `Lane.call`.
            before: is awaited before each attempt, with its number from 0; if it raises, as a
                command does, the attempt has failed.
        """
        attempt = 0
        while True:
            try:
                if before is not None:
                    await before(attempt)
                return await self.once(kind, command, owner, None if attempt else wait)
            except StoreError:
                attempt += 1
                await sleep(self.clock, PAUSES.delay(attempt, random.random()) / 1000)

    async def once(
        self, kind: type[R], command: Command, owner: object = None, wait: float | None = None
    ) -> R:
        """Run a command once; the arguments are those of `patiently`.

        Raises:
            StoreError: the store failed or is unavailable.
        """
        return expect(kind, await self.ask(command, owner, wait))

    async def ask(self, command: Command, owner: object = None, wait: float | None = None) -> Any:
        """Run a command once, as `once`, whatever its reply is."""
        try:
            reply = await self.lane.acall(command, owner, wait)
        except StoreError as error:
            if self._away_since is None:
                self._away_since = self.clock.monotonic()
                _log.error("the store is away; waiting for it: %s", error)
            raise
        if self._away_since is not None:
            _log.warning(
                "the store is back after %.1f s", self.clock.monotonic() - self._away_since
            )
            self._away_since = None
        return reply
