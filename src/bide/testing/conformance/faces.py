"""The cases of the suite once more, asked by users: through `Queue` and through `AsyncQueue`.

A face stands in for the engine. Each command of a case is turned into the call that a user would
write for it. What the face makes of that call must be the very command of the case, and what the
user gets must be what the store has answered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from bide.clock import SYSTEM_CLOCK
from bide.engines.port import Capabilities
from bide.engines.registry import opener
from bide.model.commands import Command, Queues
from bide.model.errors import LeaseLost
from bide.model.replies import (
    Affected,
    Claimed,
    Counts,
    Forecasted,
    Found,
    Outcome,
    Outcomes,
    Page,
    Reply,
)
from bide.queue.aio import AsyncQueue
from bide.queue.answers import Audit, Forecast
from bide.queue.delivery import AsyncDelivery, Delivery
from bide.queue.sync import Queue
from bide.testing.clock import FakeClock
from bide.testing.conformance.calls import Call, call_for, message_of

__all__ = ["AsyncThrough", "Through"]

R = TypeVar("R")

_asked: ContextVar[list[tuple[Command, Reply]]] = ContextVar("asked")


class _EnoughError(Exception):
    """A method that goes on by itself (page by page, part by part) has had its one answer."""


class _SeenQueue(Queue):
    """A queue that shows what it asks for."""

    def _do(self, kind: type[R], command: Command, wait: float | None = None) -> R:
        if _asked.get():
            raise _EnoughError
        reply = super()._do(kind, command, wait)
        assert isinstance(reply, Reply)
        _asked.get().append((command, reply))
        return reply


class _SeenAsyncQueue(AsyncQueue):
    """An async queue that shows what it asks for."""

    async def _do(self, kind: type[R], command: Command, wait: float | None = None) -> R:
        if _asked.get():
            raise _EnoughError
        reply = await super()._do(kind, command, wait)
        assert isinstance(reply, Reply)
        _asked.get().append((command, reply))
        return reply


class Through:
    """Executes commands by calling the methods of `Queue`, on a store of its own.

    Args:
        url: of the store.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.said = 0
        """How many commands users can say, and said."""
        self._clock = FakeClock()
        self._queues: dict[tuple[str, str | None], Any] = {}
        engine = opener(url)()
        self.capabilities: Capabilities = engine.capabilities
        engine.close()
        self._queue("q", None)  # from now on the store is open, as an engine is

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Ask for one after the other."""
        self._clock.set_wall(SYSTEM_CLOCK.now() if now is None else now)
        return [self._one(command) for command in commands]

    def reader(self) -> None:
        """The face has its own, inside."""

    def doorbell(self) -> None:
        """The face listens by itself."""

    def ring(self, queue: str, wake: int) -> None:
        """The face rings by itself."""

    def close(self) -> None:
        """Close the queues, and with the last one the store."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()

    def _for(self, command: Command) -> Any:
        """Return the queue that a command is about; any, where it is about all of them."""
        name = "q" if isinstance(command, Queues) else command.queue
        return self._queue(name, getattr(command, "holder", None))

    def _queue(self, name: str, holder: str | None) -> Any:
        key = name, holder
        if key not in self._queues:
            self._queues[key] = self._open(name, holder)
        return self._queues[key]

    def _open(self, name: str, holder: str | None) -> Any:
        return _SeenQueue(name, self.url, holder=holder, clock=self._clock)

    def _one(self, command: Command) -> Reply:
        queue = self._for(command)
        call = call_for(command)
        _asked.set([])
        if call is None:
            reply: Reply = queue._do(object, command)
            return reply
        value: Any = None
        try:
            value = _method(call, queue, Delivery)()
            if isinstance(value, Iterator):
                value = list(value)
        except (_EnoughError, LeaseLost) as error:
            value = error
        return self._checked(command, value)

    def _checked(self, command: Command, value: object) -> Reply:
        ((asked, reply),) = _asked.get()
        assert asked == command, f"{command} was said, {asked} was asked for"
        _check_answer(value, reply)
        self.said += 1
        return reply


class AsyncThrough(Through):
    """Executes commands by awaiting the methods of `AsyncQueue`, a batch by as many tasks."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        super().__init__(url)

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Ask for all at once; reads, which take a way of their own, one after the other."""
        self._clock.set_wall(SYSTEM_CLOCK.now() if now is None else now)
        return self._runner.run(self._all(commands))

    async def _all(self, commands: Sequence[Command]) -> list[Reply]:
        if any(command.only_reads for command in commands):
            return [await self._task(command) for command in commands]
        return await asyncio.gather(*(self._task(command) for command in commands))

    def close(self) -> None:
        """Close the queues, and the loop with them."""
        queues, self._queues = self._queues, {}

        async def close() -> None:
            for queue in queues.values():
                await queue.close()

        if queues:
            self._runner.run(close())
            self._runner.close()

    def _open(self, name: str, holder: str | None) -> Any:
        return _SeenAsyncQueue(name, self.url, holder=holder, clock=self._clock)

    async def _task(self, command: Command) -> Reply:
        queue = self._for(command)
        call = call_for(command)
        _asked.set([])
        if call is None:
            reply: Reply = await queue._do(object, command)
            return reply
        value: Any = None
        try:
            value = _method(call, queue, AsyncDelivery)()
            if isinstance(value, AsyncIterator):
                value = [message async for message in value]
            else:
                value = await value
        except (_EnoughError, LeaseLost) as error:
            value = error
        return self._checked(command, value)


def _method(call: Call, queue: Any, kind: type) -> Callable[[], Any]:
    """Return what makes the call."""
    held = [
        kind(queue, message_of(lease, queue.name), lease.token, 0)
        for lease in (call.leases if call.lease is None else (call.lease,))
    ]
    if call.lease is not None:
        return lambda: getattr(held[0], call.method)(*call.args, **call.kwargs)
    first = (held,) if call.leases or call.method in _OF_DELIVERIES else ()
    return lambda: getattr(queue, call.method)(*first, *call.args, **call.kwargs)


_OF_DELIVERIES = ("ack", "retry", "bury", "release", "extend")


def _check_answer(value: object, reply: Reply) -> None:
    """Hold what a user gets against what the store has answered."""
    match value, reply:
        case _EnoughError(), Affected(more=True) | Page():
            pass
        case LeaseLost(), Outcomes(outcomes=[outcome]):
            assert not outcome.done
            assert outcome.id in str(value)
        case None, Outcomes(outcomes=[outcome]):
            assert outcome.done
        case Outcome(), Outcomes():
            assert [value] == reply.outcomes
        case list(), Outcomes():
            assert value == reply.outcomes
        case int(), Affected():
            assert value == reply.count
        case list(), Claimed():
            got = [(delivery.message, delivery.token, delivery.claimed) for delivery in value]
            assert got == [(message, reply.token, reply.now) for message in reply.messages]
        case list(), Page():
            assert value == reply.messages
        case Audit(), Counts():
            assert value.counts == reply
        case Forecast(), Forecasted():
            was = value.overdue, value.counts, value.later
            assert was == (reply.overdue, reply.buckets, reply.later)
        case Counts(), _:
            assert value == reply
        case _, Found():
            assert [value] == reply.messages
        case None, _:
            assert msgspec.structs.asdict(reply)
        case _:
            raise AssertionError(f"a user got {value!r} for {reply!r}")
