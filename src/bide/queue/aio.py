"""The queue for event loops: the methods of `Queue`, each awaited."""

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from types import GenericAlias
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast, get_args

from bide.lane.steps import LongSteps, arun_steps, following
from bide.model.commands import (
    Cancel,
    Command,
    ListEnded,
    Purge,
    Put,
    Reschedule,
    Revive,
    Scan,
    Where,
)
from bide.model.errors import StoreBusy, WrongContext
from bide.model.limits import IMPORT_LINES, MAX_BYTES
from bide.model.recovery import Recovered, Recovery
from bide.model.replies import EndedPage, Page
from bide.model.times import Duration
from bide.model.undoing import Undoable, Undone
from bide.queue import spans
from bide.queue.arguments import wait_seconds
from bide.queue.base import BaseQueue
from bide.queue.delivery import AsyncDelivery, AsyncTake
from bide.queue.results import Imported
from bide.queue.steps import loading
from bide.queue.sync import Queue
from bide.threads import in_thread
from bide.undoing.changes import changing, in_store, taking_back
from bide.undoing.recovering import recovering

P = ParamSpec("P")
T = TypeVar("T")
Async = Coroutine[Any, Any, T]
"""What a coroutine function returns when it is called: awaited, it returns a `T`."""


def _told_of(method: Callable[..., Any]) -> str:
    """Return the docstring of a method of `Queue` without its example, which awaits nothing."""
    text, _, _ = (method.__doc__ or "").partition("\n        Example:\n")
    return text.rstrip()


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Async[T]]:
    """Return a method of `Queue` as a coroutine function of `AsyncQueue`.

    There it returns a coroutine anyway. As a coroutine function it is known as such to `inspect`
    and to mocks, and checks its arguments when it is awaited.
    """

    @wraps(method)
    async def call(queue: Any, /, *args: P.args, **options: P.kwargs) -> T:
        returned: Any = method(queue, *args, **options)
        result: T = await returned
        return result

    call.__doc__ = f"Async form of `Queue.{method.__name__}`. {_told_of(method)}"
    return call


def iterated(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return the form for `AsyncQueue` of a method of `Queue` that returns an iterator.

    The method itself is the same one: what it calls on an `AsyncQueue` gives an asynchronous
    iterator. Only its docstring and its annotations differ.
    """

    @wraps(method)
    def call(queue: Any, /, *args: P.args, **options: P.kwargs) -> AsyncIterator[T]:
        return cast("AsyncIterator[T]", method(queue, *args, **options))

    call.__doc__ = f"Async form of `Queue.{method.__name__}`, for `async for`. {_told_of(method)}"
    # `inspect` shows a signature that says what the asynchronous method returns.
    shown = signature(method)
    returned = GenericAlias(AsyncIterator, get_args(shown.return_annotation))
    call.__signature__ = shown.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return call


def no_event_loop(what: str) -> WrongContext:
    """Return the error for async code that does not run on asyncio."""
    return WrongContext(
        f"{what} needs a running event loop of asyncio, and here is none; trio has another kind: "
        "use bide.Queue there, in trio.to_thread.run_sync(...)"
    )


class AsyncQueue(BaseQueue):
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
        await in_thread(self._close)  # it waits for running commands

    async def __aenter__(self) -> Self:
        if asyncio._get_running_loop() is None:
            raise no_event_loop("bide.AsyncQueue")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    put = awaited(Queue.put)
    put_many = awaited(Queue.put_many)
    ack = awaited(Queue.ack)
    retry = awaited(Queue.retry)
    bury = awaited(Queue.bury)
    release = awaited(Queue.release)
    extend = awaited(Queue.extend)
    cancel = awaited(Queue.cancel)
    cancel_many = awaited(Queue.cancel_many)
    close_group = awaited(Queue.close_group)
    reopen_group = awaited(Queue.reopen_group)
    closed_groups = awaited(Queue.closed_groups)
    reschedule = awaited(Queue.reschedule)
    edit = awaited(Queue.edit)
    hold = awaited(Queue.hold)
    run_now = awaited(Queue.run_now)
    backfill = awaited(Queue.backfill)
    revive = awaited(Queue.revive)
    purge = awaited(Queue.purge)
    overdue = awaited(Queue.overdue)
    recover = awaited(Queue.recover)
    configure = awaited(Queue.configure)
    pause = awaited(Queue.pause)
    resume = awaited(Queue.resume)
    delete = awaited(Queue.delete)
    get = awaited(Queue.get)
    peek = awaited(Queue.peek)
    scan = iterated(Queue.scan)
    dead = iterated(Queue.dead)
    export = iterated(Queue.export)
    explain = awaited(Queue.explain)
    history = awaited(Queue.history)
    ended = iterated(Queue.ended)
    result = awaited(Queue.result)
    counts = awaited(Queue.counts)
    audit = awaited(Queue.audit)
    forecast = awaited(Queue.forecast)
    past = awaited(Queue.past)

    async def claim(
        self, count: int = 1, *, wait: Duration | None = None, lease: Duration = 30
    ) -> list[AsyncDelivery]:
        """Async form of `Queue.claim`."""
        command = self._builder.claim(count, lease, self._holder)
        claimed: list[AsyncDelivery] = await self._execute(
            command,
            lambda reply: [AsyncDelivery(self, m, reply.token, reply.now) for m in reply.messages],
            wait=wait_seconds(wait),
        )
        return claimed

    def take(
        self, *, wait: Duration | None = None, lease: Duration = 30, retry: Duration = 10
    ) -> AsyncTake:
        """Async form of `Queue.take`."""
        return AsyncTake(self, wait, lease, retry)

    async def load(self, lines: Iterable[str | bytes] | AsyncIterable[str | bytes]) -> Imported:
        """Async form of `Queue.load`. Takes what an `AsyncQueue` exports as well."""
        if not isinstance(lines, AsyncIterable):
            return await self._run(loading(lines, self.name, self._builder.max_body))
        total = Imported()
        first_line = 1  # the number of the first line of a part
        async for part in _gathered(lines):
            steps = loading(part, self.name, self._builder.max_body, first_line)
            imported = await self._run(steps)
            total = total.with_more(imported)
            first_line += len(part)
        return total

    async def undo(self, undo: str) -> Undone:
        """Async form of `Queue.undo`."""
        await in_thread(self._lane.open)  # its steps ask what the store can do
        return await self._run(taking_back(self.name, undo, self._builder.actor, self._lane))

    async def _undoable(
        self,
        command: Cancel | Purge | Reschedule | Revive,
        *,
        where: Where | None = None,
        by_id: bool = False,
    ) -> Undoable:
        """Make a bulk change that can be taken back; see `Queue._undoable`."""
        await in_thread(self._lane.open)
        return await self._run(changing(command, self._lane, where=where, by_id=by_id))

    async def _recovered(self, plan: Recovery, dry_run: bool) -> Recovered:
        """Carry out a plan; see `Queue.recover`."""
        await in_thread(self._lane.open)  # its steps ask what the store can do
        steps = recovering(
            self.name, plan, in_store(self._lane), actor=self._builder.actor, dry_run=dry_run
        )
        return await self._run(steps)

    async def _execute(
        self,
        command: Command,
        result_of: Callable[[Any], Any] | None = None,
        *,
        wait: float | None = None,
        within: object = None,
    ) -> Any:
        """Execute a command; see `Queue._execute`."""
        if asyncio._get_running_loop() is None:
            raise no_event_loop("bide.AsyncQueue")
        if within is not None and (guest := self._guest(command, within)) is not None:
            from bide.within import acarry_out  # here: most programs join no transaction

            if self._settings_go_apart(guest, command):
                with suppress(StoreBusy):  # the transaction itself has made the queue: it joins
                    await self._send_settings()
            with self._joining(command) as commands:
                reply = (await acarry_out(within, guest, commands, self._now()))[-1]
            return reply if result_of is None else result_of(reply)
        if not self._users:
            raise self._was_closed()
        lane = self._lane
        if self._unsent_settings is not None and not command.only_reads:
            await self._send_settings()
        if type(command) is Put and spans.are_possible():
            with spans.sending(command) as traced_command:
                reply = await lane.acall(traced_command, self)
            # Behind the span: a refusal such as `AlreadyExists` is an answer, and no failed put.
            return reply if result_of is None else result_of(reply)
        return await lane.acall(command, self, wait, result_of)

    async def _send_settings(self) -> None:
        """Async form of `Queue._send_settings`."""
        with self._settings_to_send() as settings:
            if settings is not None:
                await self._lane.acall(settings, self)

    async def _run(
        self, steps: LongSteps[T], *, wait: float | None = None, within: object = None
    ) -> T:
        """Execute the commands of some steps; return their result."""
        if self._closed:  # there may be no command
            raise self._was_closed()
        return await arun_steps(steps, partial(self._execute, wait=wait, within=within))

    async def _walk(
        self,
        scan: Scan | ListEnded | None,
        elements_of: Callable[[list[Any]], Iterable[Any]] = iter,
    ) -> AsyncIterator[Any]:
        """Yield what `elements_of` makes of the messages of a list, page by page."""
        while scan is not None:
            page: Page | EndedPage = await self._execute(scan)
            for element in elements_of(page.messages):
                yield element
            scan = following(scan, page)


async def _gathered(lines: AsyncIterable[Any]) -> AsyncIterator[list[Any]]:
    """Gather lines that come asynchronously into parts: as many as one command has.

    The last part may be empty.
    """
    part, size = list[Any](), 0
    async for line in lines:
        part.append(line)
        size += len(line) if isinstance(line, (str, bytes)) else 0
        if len(part) >= IMPORT_LINES or size >= MAX_BYTES:
            yield part
            part, size = [], 0
    yield part
