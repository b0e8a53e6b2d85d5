"""Batch handlers: one call of a function for many messages.

Each delivery waits for the batch that it joins, and ends by itself: its lease is extended, its
middleware runs and it is settled as that of any other handler. If the function raises, its batch is
released, which counts no attempt. A message that has failed before, in a batch or not, is delivered
alone: only that delivery counts. So one that always fails costs its neighbours no attempt.
"""

import asyncio
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args, get_origin

from bide.consuming.claiming import CLAIM_MOST
from bide.consuming.handler import (
    check_is_no_generator,
    checked_result,
    checked_retry,
    decoder,
    hints_of,
    is_coroutine_function,
    name_of,
    seconds_of,
    type_name,
)
from bide.consuming.handler_threads import HandlerThreads
from bide.consuming.handling import Handler, Handling
from bide.consuming.outcomes import text_of
from bide.logs import logger
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument
from bide.model.limits import check_whole
from bide.model.times import Duration, format_duration, milliseconds

LINGER = "50ms"
"""How long a batch waits for more messages by default."""

LINGER_MOST = 60_000
"""The longest time, in milliseconds, that a batch waits for more messages."""

THREADS = 64
"""How many calls of a plain function run at the same time at most."""

TAKES = "a batch handler takes (bodies) or (bodies, deliveries: list[bide.Handling])"

PlainCall = Callable[[], tuple[Any, BaseException | None]]
"""Calls a plain function for a batch; returns what it returned, and what it raised."""

_log = logger("bide.worker.delivery")


class BatchFailed(Exception):
    """A call raised for several messages: each of them is delivered again alone."""


@dataclass(eq=False)
class Member:
    """A delivery in a batch."""

    handling: Handling
    body: Any
    outcome: "asyncio.Future[Any]"
    """Gets what the function returned for it, or an exception as its result."""
    is_called: bool = False
    """Whether the call of its batch has its body."""


@dataclass(eq=False)
class Batch:
    """Deliveries that one call handles."""

    members: list[Member] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    call: "asyncio.Task[None] | None" = None
    """The call, once it has begun."""


class Batching:
    """Gathers deliveries into batches, and calls a function for each batch.

    Args:
        function: plain or async; takes a list of bodies, and perhaps one of deliveries.
        size: of a full batch, which is called at once.
        linger: how many seconds a batch waits for more messages, in real time.
        timeout: how many seconds a call may take.
        in_thread: makes the context of a plain function.
        on_loop: makes the context of an async function.
        run: makes the calls of a plain function; by default in threads of its own.

    Raises:
        InvalidArgument: the function takes anything else.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        linger: float,
        timeout: float | None,
        *,
        in_thread: Callable[[], AbstractContextManager[object]],
        on_loop: Callable[[], AbstractAsyncContextManager[object]],
        run: Callable[[PlainCall], Awaitable[tuple[Any, BaseException | None]]] | None = None,
    ) -> None:
        self.name = name_of(function)
        self.body_type, self._takes_deliveries = _inspect(function, self.name)
        self.decode = decoder(self.body_type, self.name)
        self._function = function
        self._is_async = is_coroutine_function(function)
        self._size = size
        self._linger = linger
        self._timeout = timeout
        self._in_thread = in_thread
        self._on_loop = on_loop
        self._run = run or self._in_own_thread
        # Not the threads of the event loop, whose end waits for a call that does not return.
        self._executor = HandlerThreads(THREADS, "bide-batch")
        self._process = os.getpid()
        """The process that has the threads: a fork has none of them."""
        self._gathering: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batch] = (
            weakref.WeakKeyDictionary()
        )
        """By event loop, the batch that deliveries join now."""
        if timeout is not None and not self._is_async:
            raise InvalidArgument(
                f"{self.name} has batch= and timeout=, and is a plain function, which nothing can "
                "interrupt; make it async, or leave out timeout="
            )

    async def handle(self, handling: Handling) -> Any:
        """Handle a delivery in a batch, or alone if its message has failed before."""
        body = self.decode(handling.message)
        if handling.message.failures and self._is_async:
            (outcome,) = await self._called([handling], [body])
        elif handling.message.failures:
            outcome = await self._alone(handling, body)
        else:
            outcome = await self._in_batch(handling, body)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def begin_gathered(self) -> None:
        """Call the function for the batch that gathers, if there is one: it will not fill up."""
        loop = asyncio.get_running_loop()
        if (batch := self._gathering.get(loop)) is not None:
            self._begin(loop, batch)

    async def _in_batch(self, handling: Handling, body: Any) -> Any:
        """Join the batch that gathers, and return the outcome of a delivery."""
        loop = asyncio.get_running_loop()
        batch = self._gathering.get(loop)
        if batch is None:
            batch = self._gathering[loop] = Batch()
            linger = 0 if handling.worker_leaves else self._linger
            batch.timer = loop.call_later(linger, self._begin, loop, batch)
        member = Member(handling, body, loop.create_future())
        batch.members.append(member)
        if len(batch.members) >= self._size:
            self._begin(loop, batch)
        return await self._outcome(batch, member)

    async def _alone(self, handling: Handling, body: Any) -> Any:
        """Return the outcome of a delivery that is a batch by itself."""
        loop = asyncio.get_running_loop()
        member = Member(handling, body, loop.create_future())
        batch = Batch([member])
        self._begin(loop, batch)
        return await self._outcome(batch, member)

    async def _outcome(self, batch: Batch, member: Member) -> Any:
        """Wait for the outcome of a member.

        One that is cancelled runs until its call has ended: else another delivery of its message
        could begin beside that.
        """
        try:
            return await member.outcome
        finally:
            batch.members.remove(member)
            self._cancel_if_unwanted(batch)
            while member.is_called and batch.call is not None and not batch.call.done():
                try:
                    await asyncio.wait([batch.call])
                except asyncio.CancelledError:  # it is cancelled already
                    self._cancel_if_unwanted(batch)

    def _cancel_if_unwanted(self, batch: Batch) -> None:
        """Cancel an async call without members; a plain one cannot be ended."""
        if self._is_async and batch.call is not None and not batch.members:
            batch.call.cancel()

    def _begin(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """Call the function for a batch that is full, or has waited long enough.

        For a full batch this is called twice if its timer is due at the same time.
        """
        if self._gathering.get(loop) is batch:
            del self._gathering[loop]
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.call is not None:
            return
        for member in batch.members:
            if member.handling.stopping and not member.outcome.done():
                member.outcome.set_result(asyncio.CancelledError())
        # Of one whose lease was lost just now, the task has not left yet.
        wanted = [member for member in batch.members if not member.outcome.done()]
        for member in wanted:
            member.is_called = True
        if wanted:
            batch.call = loop.create_task(self._call(wanted), name=self.name)

    async def _call(self, members: Sequence[Member]) -> None:
        """Call the function for a batch, and hand each member its outcome, whatever happens."""
        handlings = [member.handling for member in members]
        try:
            outcomes = await self._called(handlings, [member.body for member in members])
        except BaseException as error:  # noqa: BLE001  (each member raises it)
            if isinstance(error, asyncio.CancelledError) and _all_have_ended(members):
                return  # cancelled, since nobody waits for it any more
            outcomes = self._failures(error, members)
        for member, outcome in zip(members, outcomes, strict=True):
            if not member.outcome.done():  # else its lease was lost meanwhile
                member.outcome.set_result(outcome)

    def _failures(self, error: BaseException, members: Sequence[Member]) -> Sequence[BaseException]:
        """Return what each member of a batch raises, after its call has raised an error."""
        if len(members) == 1:  # it was alone, so the error is its own
            return [error]
        cause = f"{type(error).__name__}: {text_of(error)}"
        _log.warning(
            "%s: a batch of %d failed, and each message is delivered again alone: %s",
            members[0].handling.message.queue,
            len(members),
            cause,
            extra={"handler": self.name},
        )
        return [BatchFailed(f"batch failed: {cause}") for _ in members]

    async def _called(self, handlings: list[Handling], bodies: list[Any]) -> Sequence[Any]:
        """Call the function; return an outcome for each message."""
        arguments = (bodies, handlings) if self._takes_deliveries else (bodies,)
        returned = checked_result(await self._returned(handlings, arguments), self.name)
        if returned is None:
            return [None] * len(bodies)
        if not isinstance(returned, (list, tuple)) or len(returned) != len(bodies):
            raise TypeError(
                f"{self.name} returned {type(returned).__name__} for {len(bodies)} messages; it "
                "returns nothing, or a list with an outcome for each of them"
            )
        return returned

    async def _returned(self, handlings: Sequence[Handling], arguments: tuple[Any, ...]) -> Any:
        """Call the function where it belongs, and return what it returns."""
        if not self._is_async:
            call = partial(copy_context().run, self._call_plainly, arguments)
            returned, error = await self._run(call)
            if error is not None:
                raise error
            return returned
        timer: asyncio.TimerHandle | None = None
        if self._timeout is not None:  # a function that swallows its cancellation is given up
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._timeout, _tell_interrupted, handlings)
        try:
            async with asyncio.timeout(self._timeout) as timeout, self._on_loop():
                return await self._function(*arguments)
        except TimeoutError:
            if not timeout.expired():
                raise
            allowed = format_duration((self._timeout or 0) * 1000)
            text = f"{self.name} took longer than its timeout of {allowed}"
            raise TimeoutError(text) from None
        finally:
            if timer is not None:
                timer.cancel()

    def _in_own_thread(self, call: PlainCall) -> Awaitable[tuple[Any, BaseException | None]]:
        """Make a call in a thread of this process."""
        return asyncio.get_running_loop().run_in_executor(self._threads(), call)

    def _threads(self) -> HandlerThreads:
        """Return the threads of this process."""
        if self._process != os.getpid():
            self._executor = HandlerThreads(THREADS, "bide-batch")
            self._process = os.getpid()
        return self._executor

    def _call_plainly(self, arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
        """Call a plain function; return what it returned, and what it raised.

        A future cannot raise everything: not a `StopIteration`, and a `SystemExit` ends the loop.
        """
        try:
            with self._in_thread():
                return self._function(*arguments), None
        except BaseException as error:  # noqa: BLE001  (its caller raises it)
            return None, error


def make_batch_handler(
    function: Callable[..., Any],
    batch: int,
    linger: Duration,
    timeout: Duration | None,
    retry: Backoff | None,
    warn_after: Duration | None,
    *,
    in_thread: Callable[[], AbstractContextManager[object]],
    on_loop: Callable[[], AbstractAsyncContextManager[object]],
    run: Callable[[PlainCall], Awaitable[tuple[Any, BaseException | None]]] | None = None,
) -> Handler:
    """Return the handler of a function that takes many messages at once.

    Args:
        function, linger, timeout, in_thread, on_loop, run: as `Batching` takes them.
        batch: how many messages one call handles at most.
        retry: when messages are delivered again for which a call raised.
        warn_after: how long a call may run before the log warns.

    Raises:
        InvalidArgument: it has other parameters than a batch handler, or a setting is not valid.
    """
    check_whole(batch, "batch", 2, CLAIM_MOST)
    linger_ms = milliseconds(linger, "linger")
    if not 0 <= linger_ms <= LINGER_MOST:
        raise InvalidArgument(f"linger={linger!r} must be between 0 and 1 minute")
    batching = Batching(
        function,
        batch,
        linger_ms / 1000,
        seconds_of(timeout),
        in_thread=in_thread,
        on_loop=on_loop,
        run=run,
    )
    return Handler(
        batching.name,
        batching.handle,
        is_async=True,
        timeout=seconds_of(timeout),
        is_plain_batch=not is_coroutine_function(function),
        begin_gathered=batching.begin_gathered,
        remade=partial(make_batch_handler, function, batch, linger, timeout, retry, warn_after),
        warn_after=seconds_of(warn_after, "warn_after"),
        retry=checked_retry(retry) or Backoff(),
        check=batching.decode,
        takes=f"list[{type_name(batching.body_type)}]",
        batch=batch,
    )


def _all_have_ended(members: Sequence[Member]) -> bool:
    """Return whether no member waits for its outcome."""
    return all(member.outcome.done() for member in members)


def _tell_interrupted(handlings: Sequence[Handling]) -> None:
    """Tell the worker that a call is interrupted at its timeout."""
    for handling in handlings:
        handling.interrupted()


def _inspect(function: Callable[..., Any], name: str) -> tuple[Any, bool]:
    """Return the type of one body, and whether the function takes the deliveries, too.

    Raises:
        InvalidArgument: the function takes anything but a list of bodies and the deliveries.
    """
    check_is_no_generator(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name}: {TAKES}") from None
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not 1 <= len(positional) <= 2 or not set(required) <= set(positional):
        raise InvalidArgument(f"{name}: {TAKES}")
    annotation = positional[0].annotation
    annotation = hints_of(function, name).get(positional[0].name, annotation)
    bodies_type = list if annotation is inspect.Parameter.empty else annotation
    if bodies_type is not list and get_origin(bodies_type) is not list:
        raise InvalidArgument(
            f"{name} takes many messages at once: annotate {positional[0].name} with a list, such "
            "as list[Mail]"
        )
    body_type = (get_args(bodies_type) or (Any,))[0]
    return body_type, len(positional) == 2
