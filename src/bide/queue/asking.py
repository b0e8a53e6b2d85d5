"""How a queue asks its lane: blocking, and awaiting. What to ask is told in `sync` and `aio`."""

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from bide.model.commands import Cancel, Command, Find, Purge, Put, Scan
from bide.model.errors import WrongContext
from bide.model.message import Message
from bide.model.replies import Affected, Found, Outcome, Outcomes, Page
from bide.observing.spans import sending, tracer
from bide.queue.answers import held
from bide.queue.delivery import AsyncDelivery, Delivery, mark_settled
from bide.queue.face import Face

__all__ = ["Awaiting", "Blocking", "found_all"]

R = TypeVar("R")


class Blocking(Face):
    """A face for threads."""

    def close(self) -> None:
        """Let go of the store. Claims that wait in other threads raise `Closed`."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, kind: type[R], command: Command, wait: float | None = None) -> R:
        """Have a command carried out and return its reply."""
        # Written without calls where it can be: this stands on the way of each single put.
        if not self._users:
            raise self._was_closed()
        if asyncio._get_running_loop() is not None:
            raise WrongContext(
                "bide.Queue blocks, and this thread runs an event loop, which would stop; use "
                "bide.AsyncQueue here (the same methods, with await)"
            )
        if self._keep is not None and not command.only_reads:
            self._lane.call(self._configuration(self._keep), self)
            self._keep = None
        if type(command) is Put and (spans := tracer()) is not None:
            with sending(spans, command) as traced:
                reply = self._lane.call(traced, self)
        else:
            reply = self._lane.call(command, self, wait)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    def _walk(self, command: Scan) -> Iterator[Message]:
        """Yield the messages of a scan, page by page."""
        while True:
            found = self._do(Page, command)
            yield from found.messages
            if found.cursor is None:
                return
            command = msgspec.structs.replace(command, cursor=found.cursor)

    def _repeat(self, command: Cancel | Purge) -> int:
        """Repeat a command by rule until nothing is left that it names; return how many were."""
        count = 0
        while True:
            reply = self._do(Affected, command)
            count += reply.count
            if not reply.more:
                return count

    def _settle(self, deliveries: Sequence[Delivery], command: Command) -> list[Outcome]:
        outcomes = self._do(Outcomes, command).outcomes
        mark_settled(deliveries, outcomes)
        return outcomes

    def _settle_one(
        self, delivery: Delivery, command: Command, verb: str, *, settles: bool = True
    ) -> None:
        held(self._do(Outcomes, command).outcomes[0], verb)
        delivery.settled = delivery.settled or settles


def found_all(queue: Blocking, ids: Sequence[str]) -> list[Message | None]:
    """Look messages up by id, in as many replies as they take."""
    found: list[Message | None] = []
    while len(found) < len(ids):
        found += queue._do(Found, Find(queue.name, list(ids[len(found) :]))).messages
    return found


class Awaiting(Face):
    """A face for tasks."""

    async def close(self) -> None:
        """Async form of `Queue.close`."""
        await asyncio.to_thread(self._close)  # it waits for what is under way

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _do(self, kind: type[R], command: Command, wait: float | None = None) -> R:
        """Have a command carried out and return its reply."""
        if not self._users:
            raise self._was_closed()
        if self._keep is not None and not command.only_reads:
            await self._lane.acall(self._configuration(self._keep), self)
            self._keep = None
        if type(command) is Put and (spans := tracer()) is not None:
            with sending(spans, command) as traced:
                reply = await self._lane.acall(traced, self)
        else:
            lane = self._lane
            reply = await (lane.hand_in(command) or lane.acall(command, self, wait))
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    async def _repeat(self, command: Cancel | Purge) -> int:
        """Repeat a command by rule until nothing is left that it names; return how many were."""
        count = 0
        while True:
            reply = await self._do(Affected, command)
            count += reply.count
            if not reply.more:
                return count

    async def _settle(self, deliveries: Sequence[AsyncDelivery], command: Command) -> list[Outcome]:
        outcomes = (await self._do(Outcomes, command)).outcomes
        mark_settled(deliveries, outcomes)
        return outcomes

    async def _settle_one(
        self, delivery: AsyncDelivery, command: Command, verb: str, *, settles: bool = True
    ) -> None:
        held((await self._do(Outcomes, command)).outcomes[0], verb)
        delivery.settled = delivery.settled or settles
