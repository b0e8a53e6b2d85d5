"""A consumer that makes one delivery at a time for a test, and records each outcome."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bide.consuming.consumer import Consumer
from bide.consuming.handler import Middleware
from bide.consuming.handling import Handling
from bide.consuming.outcomes import ChosenOutcome
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.settling import overtime, result
from bide.consuming.store_client import StoreClient
from bide.consuming.verdict import Pairs
from bide.model.commands import Claim, Scan
from bide.model.message import Message
from bide.model.replies import Claimed, Outcome, Page
from bide.observing.tally import Result
from bide.tasks import first_of

HOLDER = "test"
"""The name under which a test's worker claims."""


@dataclass(frozen=True)
class Handled:
    """One delivery that a test's worker made."""

    message: Message
    """The message as it was claimed."""
    outcome: Result
    """The outcome. "lost": the lease ended before the handler did."""
    error: BaseException | None = None
    """What the handler raised, including `bide.Retry`, `bide.Discard` and `bide.Bury`."""
    reason: str = ""
    """The reason stored with the failure."""

    @property
    def queue(self) -> str:
        """The queue of the message."""
        return self.message.queue

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @property
    def body(self) -> Any:
        """The message's body."""
        return self.message.body

    @property
    def attempt(self) -> int:
        """Which attempt it was, counted from 1."""
        return self.message.attempt

    @property
    def failed(self) -> bool:
        """Whether the handler raised an error, not `bide.Retry`, `Discard` or `Bury`."""
        return self.error is not None and not isinstance(self.error, ChosenOutcome)


class ManualConsumer(Consumer):
    """A consumer that claims when the test says so. Retry delays have no jitter."""

    def __init__(
        self,
        queue_handlers: QueueHandlers,
        around: Sequence[Middleware],
        state: Any,
        store_client: StoreClient,
    ) -> None:
        super().__init__(queue_handlers, around, state, store_client, HOLDER)
        self._chance = lambda: 0.5  # the middle of a jitter
        self._raised: dict[Handling, BaseException | None] = {}
        """What each handler has raised that has ended and is not settled; `None`: nothing."""
        self._handled: list[Handled] = []
        """Deliveries that are settled, and that `handle_next` has not returned."""

    async def head(self) -> Message | None:
        """Return the message that is delivered next, if there is one."""
        page = await self._store_client.once(Page, Scan(self.queue_handlers.queue, "next", limit=1))
        return page.messages[0] if page.messages else None

    async def handle_next(self, patience: float) -> Handled | float | None:
        """Make the next delivery, if a message is due.

        Args:
            patience: how many real seconds it may take.

        Returns:
            The outcome; or in how many milliseconds a message is due, `None` for never.

        Raises:
            TimeoutError: the handler did not end in time.
        """
        if self._handled:  # others of the last batch
            return self._handled.pop(0)
        window, now = self.queue_handlers.window, self._clock.now()
        if window is not None and not window.is_open(now):
            return window.opening(now) - now
        # One message, or of a batch handler one batch.
        count = max(handler.batch for handler in self.queue_handlers.handlers.values())
        command = Claim(self.queue_handlers.queue, count, self.queue_handlers.lease, HOLDER)
        reply = await self._store_client.once(Claimed, command)
        if not reply.messages:
            return reply.next
        lane = self._store_client.lane
        lane.overhear(self._overheard)  # first: a handler may be stopped as soon as it runs
        try:
            self.start(reply)
            await self._settle_started(patience)
        finally:
            lane.stop_listening(self._overheard)
        return self._handled.pop(0)

    async def _settle_started(self, patience: float) -> None:
        """Settle what was started; release what does not end in time."""
        try:
            await self._settle_all(patience)
        except (TimeoutError, asyncio.CancelledError) as error:
            stuck = ", ".join(
                f"{handling.handler.name} with {handling!r}" for handling in self.running
            )
            self.release_running()
            with suppress(TimeoutError):  # a plain handler cannot be ended
                await self._settle_all(1)
            self._handled.clear()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise TimeoutError(
                f"{stuck} did not end within {patience:g} s of real time. Does it wait for "
                "something that the test does not do? The fake clock does not move meanwhile"
            ) from None

    async def _settle_all(self, patience: float) -> None:
        """Settle all that runs.

        Raises:
            TimeoutError: a handler did not end in so many real seconds.
        """
        async with asyncio.timeout(patience):
            chores = self.settle(), self.look_at_hinted(), self.store_reports()
            await first_of(self.until_quiet(), *chores)

    def _ended(self, handling: Handling, error: BaseException | None) -> None:
        self._raised[handling] = error
        super()._ended(handling, error)

    def _left(self, handling: Handling, error: BaseException | None) -> None:
        self._raised[handling] = error
        super()._left(handling, error)

    def _settled(self, pairs: Pairs, outcomes: list[Outcome]) -> None:
        """Keep what became of each delivery, for the test that ran it."""
        super()._settled(pairs, outcomes)
        for (handling, verdict), outcome in zip(pairs, outcomes, strict=True):
            error = self._raised.pop(handling, None)
            if handling.timed_out:  # else it would be the cancellation that ended the handler
                error = overtime(handling.handler)
            self._handled.append(
                Handled(handling.message, result(handling, verdict, outcome), error, verdict.reason)
            )
