"""The queue for event loops. `Queue` says what each method does."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from bide.model import replies
from bide.model.commands import Count, Delete
from bide.model.message import ATTEMPTS, Message, NewMessage, State
from bide.model.replies import Claimed, Counts, Found, Outcome, Outcomes, Settings
from bide.model.times import Duration, Moment
from bide.queue.changing import AsyncChanges, repeated
from bide.queue.delivery import AsyncDelivery, leases
from bide.queue.ending import AsyncEndings
from bide.queue.results import Audit, Forecast, deleted, in_parts, must_be_new
from bide.queue.take import AsyncTake
from bide.queue.transfer import REMEMBERED, Imported, commands_of, commands_of_stream, to_line
from bide.queue.undoing.faces import Undoable, bulk_of, check_undo, reviving
from bide.queue.undoing.looking import look_at_dead, look_at_purge
from bide.queue.values import OnConflict, one_or_several, wait_seconds


class AsyncQueue(AsyncChanges, AsyncEndings):
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

    async def put(
        self,
        body: Any,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        id: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_conflict: OnConflict | Literal["raise"] = "keep",
        if_version: str | None = None,
        latest: Duration | None = None,
        within: object = None,
    ) -> Outcome:
        """Async form of `Queue.put`."""
        message = NewMessage(
            body, delay=delay, at=at, id=id, priority=priority, expires=expires,
            attempts=attempts, group=group, headers=headers, latest=latest,
        )  # fmt: skip
        command = self._builder.put_one(message, on_conflict, if_version)
        outcome = (await self._do(Outcomes, command, within=within)).outcomes[0]
        return must_be_new(outcome) if on_conflict == "raise" else outcome

    async def put_many(
        self,
        messages: Iterable[Any],
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        on_conflict: OnConflict = "keep",
        within: object = None,
    ) -> list[Outcome]:
        """Async form of `Queue.put_many`."""
        shared = NewMessage(
            body=None, delay=delay, at=at, priority=priority, expires=expires, attempts=attempts,
            group=group,
        )  # fmt: skip
        command = self._builder.put_many(messages, shared, on_conflict)
        if not command.items:
            if not self._users:
                raise self._was_closed()
            return []
        return (await self._do(Outcomes, command, within=within)).outcomes

    async def get(self, id: str) -> Message | None:
        """Async form of `Queue.get`."""
        return (await self._do(Found, self._builder.find(id))).messages[0]

    async def peek(self, count: int = 10) -> list[Message]:
        """Async form of `Queue.peek`."""
        command = self._builder.scan("next", None, None, None, count)
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

    async def ack(
        self, deliveries: Sequence[AsyncDelivery], results: Sequence[Any] | None = None
    ) -> list[Outcome]:
        """Async form of `Queue.ack`."""
        return await self._settle(deliveries, self._builder.ack(leases(deliveries), results))

    async def retry(
        self, deliveries: Sequence[AsyncDelivery], delay: Duration = 0, reason: str = ""
    ) -> list[Outcome]:
        """Async form of `Queue.retry`."""
        return await self._settle(
            deliveries, self._builder.retry(leases(deliveries), delay, reason)
        )

    async def bury(self, deliveries: Sequence[AsyncDelivery], reason: str = "") -> list[Outcome]:
        """Async form of `Queue.bury`."""
        return await self._settle(deliveries, self._builder.bury(leases(deliveries), reason))

    @overload
    async def release(self, what: str, *, reason: str | None = None) -> Outcome: ...
    @overload
    async def release(self, what: Sequence[AsyncDelivery]) -> list[Outcome]: ...
    async def release(
        self, what: str | Sequence[AsyncDelivery], *, reason: str | None = None
    ) -> Outcome | list[Outcome]:
        """Async form of `Queue.release`."""
        if isinstance(what, str):
            command = self._builder.end_lease(what, reason)
            return (await self._do(Outcomes, command)).outcomes[0]
        return await self._settle(what, self._builder.release(leases(what)))

    async def extend(
        self, deliveries: Sequence[AsyncDelivery], lease: Duration = 30
    ) -> list[Outcome]:
        """Async form of `Queue.extend`."""
        return (await self._do(Outcomes, self._builder.extend(leases(deliveries), lease))).outcomes

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

    @overload
    async def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0
    ) -> list[Outcome]: ...
    @overload
    async def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, undo: Literal[True]
    ) -> Undoable: ...
    @overload
    async def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, dry_run: Literal[True]
    ) -> int: ...
    async def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, undo: bool = False,
        dry_run: bool = False,
    ) -> list[Outcome] | int:  # fmt: skip
        """Async form of `Queue.revive`."""
        check_undo(undo, True, dry_run, None)
        if undo or dry_run:
            bulk = reviving(self._builder, ids, delay)
            if undo:
                return await self._bulk(bulk)
            return await self._run(look_at_dead(self.name, bulk.ids))
        if ids is None:
            ids = [message.id async for message in self.dead()]
        chosen = one_or_several(ids)
        return [
            outcome
            for part in in_parts(chosen)
            for outcome in (await self._do(Outcomes, self._builder.revive(part, delay))).outcomes
        ]

    async def pause(self) -> None:
        """Async form of `Queue.pause`."""
        await self._do(Settings, self._builder.configure(paused=True))

    async def resume(self) -> None:
        """Async form of `Queue.resume`."""
        await self._do(Settings, self._builder.configure(paused=False))

    @overload
    async def purge(
        self, *, state: State, before: Moment | None = None, dry_run: bool = False
    ) -> int: ...
    @overload
    async def purge(
        self, *, state: State, before: Moment | None = None, undo: Literal[True]
    ) -> Undoable: ...
    async def purge(
        self, *, state: State, before: Moment | None = None, undo: bool = False,
        dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Async form of `Queue.purge`."""
        command = self._builder.purge(state, before)
        check_undo(undo, True, dry_run, None)
        if dry_run:
            return await self._run(look_at_purge(command))
        return await self._bulk(bulk_of(command)) if undo else await self._run(repeated(command))

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
