"""The queue for event loops. `Queue` says what each method does."""

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable
from functools import partial
from inspect import getmembers, isfunction
from time import monotonic
from typing import Any, Self, TypeVar, overload

from bide.lane.steps import Steps, arun_steps
from bide.model import replies
from bide.model.commands import Command, Count, Delete, Explain, Put, Scan
from bide.model.ended import End
from bide.model.identity import check_name
from bide.model.message import Message, State
from bide.model.replies import (
    Claimed,
    Counts,
    Ends,
    Explained,
    Found,
    Outcome,
    Outcomes,
    Page,
    Settings,
    expect,
)
from bide.model.times import Duration, Moment
from bide.model.undoing import Bulk, Undo, Undone
from bide.observing import spans
from bide.observing.explanation import Explanation, look_further
from bide.queue.arguments import wait_seconds
from bide.queue.changing import Changes
from bide.queue.delivery import AsyncDelivery, AsyncTake
from bide.queue.put_and_settle import awaited
from bide.queue.results import Audit, Forecast, deleted, following, held, must_be_new, result_in
from bide.queue.transfer import REMEMBERED, Imported, commands_of, commands_of_stream, to_line
from bide.queue.undoing import Undoable, note_of, steps_of, whole, whole_undo
from bide.within import acarry_out

R = TypeVar("R")
T = TypeVar("T")
Async = Coroutine[Any, Any, T]


class AsyncQueue(
    Changes[
        AsyncDelivery, Async[Outcome], Async[list[Outcome]], Async[int], Async[Undoable],
        Async[Settings],
    ],
):  # fmt: skip
    """Async form of `Queue`: the same methods, with `await`, on the same stores.

    Safe to share between tasks, of one event loop or of several. Tasks that put or claim at the
    same time share a commit.

    Example:
        >>> import asyncio, bide
        >>> async def main():
        ...     async with bide.AsyncQueue("orders", "memory://") as orders:
        ...         await orders.put({"order": 42})
        ...         async with orders.take(wait=5) as delivery:
        ...             return delivery.body
        >>> asyncio.run(main())
        {'order': 42}
    """

    async def close(self) -> None:
        """Async form of `Queue.close`."""
        await asyncio.to_thread(self._close)  # it waits for running commands

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def explain(self, id: str) -> Explanation:
        """Async form of `Queue.explain`."""
        facts = await self._do(Explained, Explain(self.name, check_name(id)))
        steps = look_further(self.name, id, facts, around=self._lane.capabilities.shared)
        facts = await arun_steps(steps, lambda command: self._lane.acall(command, self))
        return Explanation(id, self.name, facts)

    async def get(self, id: str) -> Message | None:
        """Async form of `Queue.get`."""
        return (await self._do(Found, self._builder.find(id))).messages[0]

    async def peek(self, count: int = 10) -> list[Message]:
        """Async form of `Queue.peek`."""
        command = self._builder.scan("next", None, None, None, count, told="count")
        found: list[Message] = []
        async for message in self._walk(command):
            found.append(message)
            if len(found) == count:
                break
        return found

    def scan(
        self,
        state: State | None = None,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        page: int = 500,
    ) -> AsyncIterator[Message]:
        """Async form of `Queue.scan`."""
        return self._walk(self._builder.scan(state, group, after, before, page))

    async def claim(
        self, count: int = 1, *, wait: Duration | None = None, lease: Duration = 30
    ) -> list[AsyncDelivery]:
        """Async form of `Queue.claim`."""
        command = self._builder.claim(count, lease, self._holder)
        reply = await self._do(Claimed, command, wait_seconds(wait))
        return [AsyncDelivery(self, m, reply.token, reply.now) for m in reply.messages]

    def take(
        self, *, wait: Duration | None = None, lease: Duration = 30, retry: Duration = 10
    ) -> AsyncTake:
        """Async form of `Queue.take`."""
        seconds = wait_seconds(wait)
        return AsyncTake(self, float("inf") if seconds is None else seconds, lease, retry)

    async def counts(self) -> Counts:
        """Async form of `Queue.counts`."""
        return await self._do(Counts, Count(self.name))

    async def audit(self) -> Audit:
        """Async form of `Queue.audit`."""
        return Audit.of(self.name, await self._do(Counts, Count(self.name, recount=True)))

    async def forecast(self, bucket: Duration = "1m", horizon: Duration = "1h") -> Forecast:
        """Async form of `Queue.forecast`."""
        command = self._builder.forecast(bucket, horizon)
        return Forecast.of(await self._do(replies.Forecasted, command), command.bucket)

    def dead(self) -> AsyncIterator[Message]:
        """Async form of `Queue.dead`."""
        return self.scan("dead")

    async def pause(self) -> None:
        """Async form of `Queue.pause`."""
        await self._do(Settings, self._builder.configure(paused=True))

    async def resume(self) -> None:
        """Async form of `Queue.resume`."""
        await self._do(Settings, self._builder.configure(paused=False))

    async def delete(self) -> bool:
        """Async form of `Queue.delete`."""
        return deleted(self.name, await self._do(replies.Deleted, Delete(self.name)))

    async def export(self) -> AsyncIterator[str]:
        """Async form of `Queue.export`."""
        async for message in self.scan():
            if message.state not in REMEMBERED:
                yield to_line(message)

    async def load(self, lines: Iterable[str | bytes] | AsyncIterable[str | bytes]) -> Imported:
        """Async form of `Queue.load`. Takes what an `AsyncQueue` exports as well."""
        imported = Imported()
        if isinstance(lines, AsyncIterable):
            async for command in commands_of_stream(lines, self._builder):
                imported = imported.plus((await self._do(Outcomes, command)).outcomes)
            return imported
        for command in commands_of(lines, self._builder):
            imported = imported.plus((await self._do(Outcomes, command)).outcomes)
        return imported

    async def history(self, id: str) -> list[End]:
        """Async form of `Queue.history`."""
        return (await self._do(Ends, self._builder.history(id))).ends

    @overload
    async def result(self, id: str, *, wait: Duration | None = None) -> Any: ...
    @overload
    async def result(self, id: str, *, wait: Duration | None = None, type: type[T]) -> T: ...
    async def result(self, id: str, *, wait: Duration | None = None, type: Any = Any) -> Any:
        """Async form of `Queue.result`."""
        seconds = wait_seconds(wait)
        command = self._builder.history(id, watch=bool(seconds))
        return result_in(id, await self._do(Ends, command, seconds), type)

    async def undo(self, undo: str) -> Undone:
        """Async form of `Queue.undo`."""
        steps = whole_undo(self.name, undo, self._builder.actor)
        return await arun_steps(steps, self._composed)

    async def _do(
        self, kind: type[R], command: Command, wait: float | None = None, within: object = None
    ) -> R:
        """Execute a command and return its reply."""
        if within is not None and (guest := self._guest(command, within)) is not None:
            with self._joining(command) as commands:
                answers = await acarry_out(within, guest, commands, self._now())
                return expect(kind, answers[-1])
        if not self._users:
            raise self._was_closed()
        if self._unset is not None and not command.only_reads:
            await self._lane.acall(self._unset, self)
            self._unset = None
        if type(command) is Put and spans.library in sys.modules and monotonic() > spans.none_until:
            with spans.sending(command) as traced:
                return expect(kind, await self._lane.acall(traced, self))
        return expect(kind, await self._lane.acall(command, self, wait))

    async def _one(self, command: Command, within: object = None, *, new: bool = False) -> Outcome:
        (outcome,) = (await self._do(Outcomes, command, None, within)).outcomes
        return must_be_new(outcome) if new else outcome

    async def _settle_one(
        self, delivery: AsyncDelivery, command: Command, verb: str, *, settles: bool
    ) -> None:
        held(await self._one(command), verb)
        delivery.settled = delivery.settled or settles

    def _run(self, steps: Steps[T], within: object = None) -> Async[T]:
        """Run the commands of some steps, and return their result."""
        return arun_steps(steps, partial(self._do, object, within=within))

    async def _walk(self, command: Scan) -> AsyncIterator[Message]:
        """Yield the messages of a scan, page by page."""
        scan: Scan | None = command
        while scan is not None:
            page = await self._do(Page, scan)
            for message in page.messages:
                yield message
            scan = following(scan, page)

    async def _bulk(self, bulk: Bulk) -> Undoable:
        try:
            return Undoable(await arun_steps(whole(bulk), self._composed), bulk.undo)
        except BaseException as error:
            error.add_note(note_of(bulk))
            raise

    async def _composed(self, command: Bulk | Undo) -> Any:
        can = await asyncio.to_thread(lambda: self._lane.capabilities)
        return await self._run(steps_of(command, takes_back=can.takes_back))


for _name, _method in getmembers(Changes, isfunction):
    if not _name.startswith("_"):
        setattr(AsyncQueue, _name, awaited(_method))
