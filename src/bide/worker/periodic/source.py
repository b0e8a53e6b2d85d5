"""A source: a function that returns the messages that should exist, asked window after window."""

import inspect
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from bide.consuming.handler import check_takes
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
    """The body of a waiting window: the progress of its source."""

    after: int | None = None
    """When the source was asked last, or how far back it is asked first; `None`: unreadable."""
    every: int = 0
    window: int = 0
    last: Asked | None = None
    put: int = 0
    """How many messages the source has put so far."""


@dataclass(frozen=True, eq=False)
class Source:
    """One source of an app. Times are in milliseconds."""

    queue: str
    name: str
    function: Callable[..., Any]
    is_async: bool
    every: int
    window: int
    back: int
    keep: int

    @property
    def home(self) -> str:
        """The queue of its windows."""
        return home_of(self.queue, self.name)

    def after(self, moment: int) -> int:
        """Return the next time to ask."""
        return (moment // self.every + 1) * self.every

    def run(self, handling: Handling) -> Any:
        """Ask for the window that the chain has opened; an async source returns an awaitable."""
        window: Window = handling.given
        return window.ask_async(handling) if self.is_async else window.ask(handling)


@dataclass(eq=False)
class Window:
    """One request to a source. Only one batch of its messages is in memory."""

    source: Source
    store_client: StoreClient
    after: int
    """The start of the window, in Unix milliseconds."""
    before: int
    """Its end."""
    found: int = 0
    """How many messages the source has returned."""
    put: int = 0
    """How many of them were new."""

    def ask(self, handling: Handling) -> None:
        """Ask a plain source; its function and its iterator run in this thread."""
        for batch in _batches(self._call()):
            if handling.gone:  # another process asks for this window
                return
            run_steps(self._put(batch), self.store_client.lane.call)

    async def ask_async(self, handling: Handling) -> None:
        """Ask an async source."""
        messages = self._call()
        if inspect.isawaitable(messages):
            messages = await messages
        async for batch in _async_batches(messages):
            await arun_steps(self._put(batch), partial(self.store_client.once, Outcomes))

    def _call(self) -> Any:
        return self.source.function(to_datetime(self.after), to_datetime(self.before))

    def _put(self, batch: list[Any]) -> Steps[None]:
        for message in batch:
            if not isinstance(message, NewMessage):
                raise TypeError(
                    f"a source returns bide.NewMessage objects, and this one a "
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
            self.found += len(reply.outcomes)
            self.put += sum(outcome.done for outcome in reply.outcomes)


def _batches(messages: Any) -> Iterator[list[Any]]:
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        kind = "None" if messages is None else f"a {type(messages).__name__}"
        raise TypeError(
            f"a source returns an iterable of bide.NewMessage objects, or yields them; this one "
            f"returned {kind}"
        )
    iterator = iter(messages)
    while batch := list(islice(iterator, BATCH)):
        yield batch


async def _async_batches(messages: Any) -> AsyncIterator[list[Any]]:
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
    namespace, slash, rest = home.rpartition("/")
    queue, colon, name = rest.removeprefix(InternalQueue.SOURCE.value).rpartition(":")
    if not InternalQueue.SOURCE.matches(home) or not colon:
        return None
    return f"{namespace}{slash}{queue}", name


def read_window(message: Message) -> WindowBody:
    """Return the progress of a source; none if the window was put by hand."""
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
    chosen = getattr(function, "__name__", "") if name is None else name
    if not isinstance(chosen, str) or not _NAME.fullmatch(chosen):
        raise InvalidArgument(
            f"name={chosen!r} cannot be the name of a source: letters, digits and _ . -; give it "
            "one with name="
        )
    check_queue(home_of(check_queue(queue), chosen))
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return chosen, is_async


DEADLY = 3
"""The attempt from which a window whose process died is asked for with a delay."""

SLACK = 1_000

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
        source, now = self._source, await self.now()
        latest = now + source.every
        alive = await self.alive()
        for link in alive:
            if refill and link.state != "leased":
                due, body = now, self._first(now, read_window(link).put)
            elif link.state == "delayed" and not link.attempt and link.due > latest + SLACK:
                due, body = latest, link.data  # a set clock or a new period left it too far away
            else:
                continue
            item = Item(link.id, body, at=due, attempts=MAX_ATTEMPTS)
            await self.store_client.patiently(Outcomes, Put(self.queue, [item], "replace"))
        if alive:
            return
        page = await self.store_client.patiently(Page, Scan(self.queue, "dead"))
        if page.messages:  # a source never ends: a window that a user has buried is revived
            last = page.messages[-1].id
            await self.store_client.patiently(Outcomes, Revive(self.queue, [last]))
            return
        # Processes that begin together put the same one. If that is acked, the queue was emptied.
        first, body = now - now % FIRST, self._first(now, 0)
        await self.put(first, lambda moment: max(moment + 1, now), lambda _: body, earliest=now)

    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Open a window, ask for it, and put the next one."""
        source, store_client = self._source, self.store_client
        moment = moment_of(handling.id) or 0
        if await self.later(moment):
            raise Discard("this window has been asked for")
        failures = handling.message.failures
        if failures and failures[-1].lapsed and handling.attempt >= DEADLY:
            raise Retry("the process died again while it asked")
        progress = read_window(handling.message)
        asked = handling.claimed
        after = asked - source.back if progress.after is None else min(progress.after, asked)
        await self.remember(source.queue, source.keep)
        window = Window(source, store_client, max(0, after), asked + source.window)
        handling.given = window
        began = store_client.clock.monotonic()
        try:
            await go_on()
        except (Discard, Bury) as signal:  # these would end the chain
            what = type(signal).__name__
            raise Retry(
                reason=f"it raised {what}, but a source is asked until it answers"
            ) from None
        if handling.gone:  # another process has it
            return
        ended = asked + round((store_client.clock.monotonic() - began) * 1000)
        _log.info(
            "source %s of %s: found %d, put %d, for %s to %s",
            source.name,
            source.queue,
            window.found,
            window.put,
            id_of(window.after),
            id_of(window.before),
        )
        done = Asked(window.after, window.before, ended, window.found, window.put)
        body = self._body(asked, done, progress.put + window.put)
        await self.put(source.after(max(moment, ended)), source.after, lambda _: body)

    def _first(self, now: int, put: int) -> bytes:
        """Return the body of a window for all messages due since `back` ago, as in a new store."""
        return self._body(now - self._source.back, None, put)

    def _body(self, after: int, last: Asked | None, put: int) -> bytes:
        source = self._source
        return msgspec.json.encode(WindowBody(after, source.every, source.window, last, put))
