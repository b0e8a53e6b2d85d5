"""A station at which a test does one delivery at a time, and writes down what came of each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bide.consuming import policy as desk
from bide.consuming.consumer import Consumer
from bide.consuming.handler import Middleware, Unwanted
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Signal
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.settling import Pairs
from bide.consuming.store_client import StoreClient
from bide.model.commands import Claim, Scan
from bide.model.message import Message
from bide.model.replies import Claimed, Outcome, Page

__all__ = ["Bench", "Handled"]

HOLDER = "test"


@dataclass(frozen=True)
class Handled:
    """One delivery that a test's worker has made."""

    message: Message
    """As it was claimed."""
    outcome: Literal["acked", "discarded", "retried", "dead", "released", "lost"]
    """What became of the message. "lost": its lease was over before the handler was."""
    error: BaseException | None = None
    """What the handler raised; `bide.Retry`, `bide.Discard` and `bide.Bury` too."""
    reason: str = ""
    """What the message remembers of a failure."""

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
        """Whether the handler has raised something that is an error, and no signal."""
        return self.error is not None and not isinstance(self.error, (Signal, Unwanted))


class Bench(Consumer):
    """A station that claims when it is told to. Pauses between attempts have no jitter."""

    def __init__(
        self, duty: QueueHandlers, around: Sequence[Middleware], state: Any, access: StoreClient
    ) -> None:
        super().__init__(duty, around, state, access, HOLDER, lambda: None)
        self._chance = lambda: 0.5
        self._raised: dict[Handling, BaseException | None] = {}
        self._handled: list[Handled] = []

    async def head(self) -> Message | None:
        """Look at what goes out next."""
        page = await self._access.once(Page, Scan(self.duty.queue, "next", limit=1))
        return page.messages[0] if page.messages else None

    async def handle_next(self, patience: float) -> Handled | float | None:
        """Do the next delivery, if one is due.

        Args:
            patience: how many real seconds it may take.

        Returns:
            What came of it; or in how many milliseconds something is due, `None` for not at all.

        Raises:
            TimeoutError: the handler does not end.
        """
        command = Claim(self.duty.queue, 1, self.duty.lease, HOLDER)
        reply = await self._access.once(Claimed, command)
        if not reply.messages:
            return reply.next
        self.start(reply)
        settling = asyncio.create_task(self.settle())
        try:
            await self._end_of(settling, patience)
        finally:
            settling.cancel()
        return self._handled.pop()

    async def _end_of(self, settling: "asyncio.Task[None]", patience: float) -> None:
        quiet = asyncio.create_task(self.until_quiet())
        done, _ = await asyncio.wait(
            [quiet, settling], timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        if settling in done:  # it never ends by itself
            quiet.cancel()
            settling.result()
        if done:
            return
        stuck = ", ".join(f"{one.handler.name} with {one!r}" for one in self.running)
        self.hand_back()
        await asyncio.wait([quiet], timeout=1)
        quiet.cancel()
        raise TimeoutError(
            f"{stuck} has not ended within {patience:g} s of real time. Does it wait for something "
            "that the test does not bring about? The clock stands still meanwhile"
        )

    def _ended(self, one: Handling, error: BaseException | None) -> None:
        self._raised[one] = error
        super()._ended(one, error)

    def _tell(self, pairs: Pairs, outcomes: list[Outcome]) -> None:
        super()._tell(pairs, outcomes)
        for (one, verdict), outcome in zip(pairs, outcomes, strict=True):
            error = self._raised.pop(one, None)
            if one.timed_out:
                error = desk.overtime(one.handler)
            self._handled.append(
                Handled(one.message, desk.result(verdict, outcome), error, verdict.reason)
            )
