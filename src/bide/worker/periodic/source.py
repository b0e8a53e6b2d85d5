"""A source: a function that returns the messages that should exist, asked window after window."""

import inspect
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from bide.consuming.handler import called_function, check_takes, is_coroutine_function
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Bury, Discard, Retry
from bide.consuming.store_client import StoreClient
from bide.lane.steps import Steps, arun_steps, run_steps
from bide.logs import logger
from bide.model.commands import Put, Revive, Scan
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue, split_name
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_BODY
from bide.model.message import MAX_ATTEMPTS, Item, Message, NewMessage
from bide.model.parts import in_bytes
from bide.model.replies import Outcomes, Page
from bide.model.times import to_datetime
from bide.queue.command_builder import CommandBuilder
from bide.worker.periodic.chain import Links, id_of, moment_of

BATCH = 500
"""How many messages of a source one command puts at most."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Asked(msgspec.Struct, frozen=True):
    """The result of a window. Times are Unix milliseconds."""

    after: int
    before: int
    ended: int
    found: int
    """How many messages the source returned."""
    put: int
    """How many of them were new."""


class WindowBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a waiting window: the progress of its source. Times are in milliseconds."""

    after: int | None = None
    """When the source was asked last, or how far back it is asked first; `None`: unreadable."""
    every: int = 0
    """How often the source is asked: for those that read its progress, as `window` is."""
    window: int = 0
    """How far ahead it is asked."""
    last: Asked | None = None
    """The result of the last window; `None`: there was none."""
    put: int = 0
    """How many messages the source has put so far."""


@dataclass(frozen=True, eq=False)
class Source:
    """One source of an app. Times are in milliseconds."""

    queue: str
    """The queue that it fills."""
    name: str
    function: Callable[..., Any]
    is_async: bool
    every: int
    """How often it is asked."""
    window: int
    """How far ahead it is asked."""
    back: int
    """How far back the first window reaches."""
    keep: int
    """How long the queue remembers acked messages at least."""

    @property
    def home(self) -> str:
        """The queue of its windows."""
        return home_of(self.queue, self.name)

    def after(self, moment: int) -> int:
        """Return the next time to ask after a moment, both in Unix milliseconds."""
        return (moment // self.every + 1) * self.every

    def run(self, handling: Handling) -> Any:
        """Ask for the window that the chain has opened; an async source returns an awaitable."""
        window: AskedWindow = handling.extra_argument
        return window.ask_async() if self.is_async else window.ask(handling)


@dataclass(eq=False)
class AskedWindow:
    """One request to a source. Only one batch of its messages is in memory."""

    source: Source
    store_client: StoreClient
    after: int
    """The start of the window, in Unix milliseconds."""
    before: int
    """Its end."""
    returned_count: int = 0
    """How many messages the source has returned."""
    put: int = 0
    """How many of them were new."""

    def ask(self, handling: Handling) -> None:
        """Ask a plain source; its function and its iterator run in this thread."""
        for batch in _batches(self._call()):
            if handling.outcome_ignored:  # another process asks for this window
                return
            handling.raise_if_stopping()
            # Without patience: if the store is away, the attempt fails, and the thread is free.
            run_steps(self._put(batch), self.store_client.lane.call)

    async def ask_async(self) -> None:
        """Ask an async source. If another process asks for this window, this task is cancelled."""
        messages = self._call()
        if inspect.isawaitable(messages):
            messages = await messages
        # Without patience, as in `ask`.
        execute = partial(self.store_client.once, Outcomes)  # expects this type of reply
        async for batch in _async_batches(messages):
            await arun_steps(self._put(batch), execute)

    def _call(self) -> Any:
        """Call the user's function; return what it returns."""
        return self.source.function(to_datetime(self.after), to_datetime(self.before))

    def _put(self, batch: list[Any]) -> Steps[None]:
        """Put a batch of what the source has returned, and count it.

        Raises:
            TypeError: something in it is no `NewMessage`.
            ValueError: a message has no id.
        """
        for message in batch:
            if not isinstance(message, NewMessage):
                raise TypeError(
                    "a source returns bide.NewMessage objects, and this one "
                    f"{type(message).__name__}"
                )
            if message.id is None:
                raise ValueError(
                    "a message of a source needs an id, made of its subject: without one every "
                    "window would put it again"
                )
        command = CommandBuilder(self.source.queue, MAX_BODY).put(batch)
        for part in in_bytes(command.items):
            reply: Outcomes = yield msgspec.structs.replace(command, items=part)
            self.returned_count += len(reply.outcomes)
            self.put += sum(outcome.done for outcome in reply.outcomes)


def _batches(messages: Any) -> Iterator[list[Any]]:
    """Yield what a source has returned in lists of up to `BATCH`.

    Raises:
        TypeError: it is not iterable.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        result = "None" if messages is None else type(messages).__name__
        raise TypeError(
            f"a source returns an iterable of bide.NewMessage objects, or yields them; this one "
            f"returned {result}"
        )
    iterator = iter(messages)
    while batch := list(islice(iterator, BATCH)):
        yield batch


async def _async_batches(messages: Any) -> AsyncIterator[list[Any]]:
    """Yield the same of an async source, which may return a plain iterable, too."""
    if not isinstance(messages, AsyncIterable):
        for batch in _batches(messages):
            yield batch
        return
    batch = []
    async for message in messages:
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def home_of(queue: str, name: str) -> str:
    """Return the queue of the windows of a source.

    Example:
        >>> home_of("orders", "unpaid"), home_of("acme/orders", "unpaid")
        ('bide:source:orders:unpaid', 'acme/bide:source:orders:unpaid')
    """
    return f"{InternalQueue.SOURCE.beside(queue)}{split_name(queue)[1]}:{name}"


def source_of(home: str) -> tuple[str, str] | None:
    """Return the queue and the source whose windows wait there; `None` for any other queue.

    Example:
        >>> source_of("bide:source:orders:unpaid"), source_of("orders")
        (('orders', 'unpaid'), None)
    """
    if not InternalQueue.SOURCE.matches(home):
        return None
    namespace, slash, queue_of_windows = home.rpartition("/")
    queue_and_name = queue_of_windows.removeprefix(InternalQueue.SOURCE.value)
    queue, colon, name = queue_and_name.rpartition(":")  # the name of a source has no colon
    return (f"{namespace}{slash}{queue}", name) if colon else None


def read_window(message: Message) -> WindowBody:
    """Return the progress of a source; an empty one if a user has put the window."""
    try:
        return msgspec.json.decode(message.data, type=WindowBody)
    except msgspec.MsgspecError:
        return WindowBody()


def inspect_source(function: Callable[..., Any], queue: str, name: str | None) -> tuple[str, bool]:
    """Return the name of a source, and whether it is async.

    Raises:
        InvalidArgument: it does not take (after, before), or its name is not valid.
    """
    check_takes(function, 2, "(after, before), the start and end of a window")
    source_name = getattr(function, "__name__", "") if name is None else name
    if not isinstance(source_name, str) or not _NAME.fullmatch(source_name):
        raise InvalidArgument(
            f"name={source_name!r} cannot be the name of a source: letters, digits and _ . -; give "
            "it one with name="
        )
    check_queue(home_of(check_queue(queue), source_name))
    is_async = is_coroutine_function(function) or inspect.isasyncgenfunction(
        called_function(function)
    )
    return source_name, is_async


DEADLY = 3
"""The attempt from which a window whose process died is asked for with a delay."""

SLACK = 1_000
"""How many milliseconds too late the next window may be: moving it for less does not pay."""

FIRST = 60_000
"""The id of a first window is a multiple of so many milliseconds."""

_log = logger("bide.worker")


class SourceWindows(Links):
    """Asks a source for window after window.

    A window reaches from the time of the last request to `window` from now, so nothing is missed,
    even if no worker ran meanwhile. A finished window puts the next one, and is acked then; so
    windows never overlap, and one whose process dies is asked for again.

    Args:
        source: the source.
        store_client: runs its commands on the store.
    """

    def __init__(self, source: Source, store_client: StoreClient) -> None:
        super().__init__(store_client, source.home)
        self._source = source

    async def ensure(self, *, refill: bool = False) -> None:
        """Put the first window if there is none, and move the next one forward if it must be."""
        now = await self.now()
        windows = await self.alive()
        for window in windows:
            await self._move_forward(window, now, refill=refill)
        if not windows:
            await self._begin_again(now)

    async def _move_forward(self, window: Message, now: int, *, refill: bool) -> None:
        """Let a window be asked for sooner if the store has lost changes, or it is too far away."""
        latest = now + self._source.every
        if refill and window.state != "leased":
            # What was lost may be due long ago, or far from now: ask as in a new store.
            due, body = now, self._first(now, read_window(window).put)
        elif window.state == "delayed" and not window.attempt and window.due > latest + SLACK:
            due, body = latest, window.data  # a set clock or a new period left it too far away
        else:
            return
        item = Item(window.id, body, at=due, attempts=MAX_ATTEMPTS)
        await self.store_client.patiently(Outcomes, Put(self.queue, [item], "replace"))

    async def _begin_again(self, now: int) -> None:
        """Revive the last dead window, or put the first one if there is none."""
        page = await self.store_client.patiently(Page, Scan(self.queue, "dead"))
        if page.messages:  # a source never ends: a window that a user has buried is revived
            last = page.messages[-1].id
            await self.store_client.patiently(Outcomes, Revive(self.queue, [last]))
            return
        body = self._first(now, 0)
        # Processes that begin together put the same one. If that is acked, the queue was emptied:
        # then the next window is the one of this moment.
        await self.put(
            now - now % FIRST, lambda moment: max(moment + 1, now), lambda _: body, earliest=now
        )

    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Open a window, ask for it, and put the next one.

        Args:
            handling: the claimed window.
            go_on: asks the source.

        Raises:
            Discard: the window was asked for before.
            Retry: the source must be asked again.
            StopRequested: the window was cancelled while the source was asked.
        """
        source, clock = self._source, self.store_client.clock
        window_time = moment_of(handling.id) or 0
        if await self.has_later(window_time):
            raise Discard("this window has been asked for")
        failures = handling.message.failures
        # The source itself may have killed the process: it must not kill all of them in a row.
        if failures and failures[-1].lapsed and handling.attempt >= DEADLY:
            raise Retry("the process died again while it asked")
        progress = read_window(handling.message)
        asked_at = handling.claimed
        # A window that cannot be read reaches as far back as the first one. If the store's clock
        # was set back, the last request was later than now.
        after = asked_at - source.back if progress.after is None else progress.after
        after = min(after, asked_at)
        # Before the put: what is acked meanwhile must be remembered.
        await self.remember(source.queue, source.keep)
        window = AskedWindow(source, self.store_client, max(0, after), asked_at + source.window)
        handling.extra_argument = window
        began = clock.monotonic()
        try:
            await go_on()
        except (Discard, Bury) as signal:  # these would end the chain
            what = type(signal).__name__
            raise Retry(
                reason=f"it raised {what}, but a source is asked until it answers"
            ) from None
        self.end_if_cancelled(handling)
        if handling.outcome_ignored:  # the lease is over: another process asks for this window
            return
        # By the store's clock, as all times of the chain.
        ended_at = asked_at + round((clock.monotonic() - began) * 1000)
        _log.info(
            "source %s of %s: found %d, put %d, for %s to %s",
            source.name,
            source.queue,
            window.returned_count,
            window.put,
            id_of(window.after),
            id_of(window.before),
        )
        result = Asked(window.after, window.before, ended_at, window.returned_count, window.put)
        body = self._body(asked_at, result, progress.put + window.put)
        await self.put(source.after(max(window_time, ended_at)), source.after, lambda _: body)

    def _first(self, now: int, put: int) -> bytes:
        """Return the body of a window for all messages due since `back` ago, as in a new store.

        Args:
            now: the store's time.
            put: how many messages the source has put so far.
        """
        return self._body(now - self._source.back, None, put)

    def _body(self, after: int, last: Asked | None, put: int) -> bytes:
        """Return the body of a window; see `WindowBody`."""
        source = self._source
        return msgspec.json.encode(WindowBody(after, source.every, source.window, last, put))
