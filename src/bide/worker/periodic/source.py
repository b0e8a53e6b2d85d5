"""A source: a function that returns the messages that should exist, and its windows."""

import inspect
import re
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from bide.consuming.handler import name_of
from bide.consuming.handling import Handling
from bide.consuming.store_client import StoreClient
from bide.model.backoff import Backoff
from bide.model.commands import Put
from bide.model.errors import InvalidArgument
from bide.model.identity import OWN, check_queue
from bide.model.limits import MAX_BODY
from bide.model.message import Message, NewMessage
from bide.model.replies import Outcomes, expect
from bide.model.times import to_datetime
from bide.queue.command_builder import CommandBuilder
from bide.queue.results import in_bytes

PREFIX = f"{OWN}source:"
"""The prefix of queues of windows; a namespace may precede it."""

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
    """When the source was asked last; `None`: never."""
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
    retry: Backoff

    @property
    def home(self) -> str:
        """The queue of its windows."""
        return home_of(self.queue, self.name)

    def run(self, one: Handling) -> Any:
        """Ask for the window that the chain has opened; an async source returns an awaitable."""
        window: Window = one.given
        return window.ask_async(one) if self.is_async else window.ask(one)


class Window:
    """One request to a source. Only one batch of its messages is in memory.

    Args:
        source: the source.
        store_client: runs its commands on the store.
        after: the start of the window, in Unix milliseconds.
        before: its end.
    """

    def __init__(self, source: Source, store_client: StoreClient, after: int, before: int) -> None:
        self.source = source
        self.after = after
        self.before = before
        self.found = 0
        self.put = 0
        self._store_client = store_client
        self._arguments = CommandBuilder(source.queue, MAX_BODY)

    def ask(self, one: Handling) -> None:
        """Ask a plain source; its function and its iterator run in this thread."""
        for batch in _batches(self._call()):
            if one.gone:  # another process asks for this window
                return
            for command in self._commands(batch):
                self._count(expect(Outcomes, self._store_client.lane.call(command)))

    async def ask_async(self, one: Handling) -> None:
        """Ask an async source."""
        messages = self._call()
        if inspect.isawaitable(messages):
            messages = await messages
        if not isinstance(messages, AsyncIterable):
            for batch in _batches(messages):
                await self._store(batch)
            return
        batch = []
        async for message in messages:
            batch.append(message)
            if len(batch) == BATCH:
                await self._store(batch)
                batch = []
        if batch:
            await self._store(batch)

    def _call(self) -> Any:
        return self.source.function(to_datetime(self.after), to_datetime(self.before))

    async def _store(self, batch: list[Any]) -> None:
        for command in self._commands(batch):
            self._count(await self._store_client.once(Outcomes, command))

    def _commands(self, batch: list[Any]) -> list[Put]:
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
        command = self._arguments.put(batch)
        return [msgspec.structs.replace(command, items=part) for part in in_bytes(command.items)]

    def _count(self, reply: Outcomes) -> None:
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


def home_of(queue: str, name: str) -> str:
    """Return the queue of the windows of a source.

    Example:
        >>> home_of("orders", "unpaid"), home_of("acme/orders", "unpaid")
        ('bide:source:orders:unpaid', 'acme/bide:source:orders:unpaid')
    """
    namespace, slash, plain = queue.rpartition("/")
    return f"{namespace}{slash}{PREFIX}{plain}:{name}"


def source_of(home: str) -> tuple[str, str] | None:
    """Return the queue and the source whose windows wait there; `None` for any other queue.

    Example:
        >>> source_of("bide:source:orders:unpaid"), source_of("orders")
        (('orders', 'unpaid'), None)
    """
    namespace, slash, rest = home.rpartition("/")
    queue, colon, name = rest.removeprefix(PREFIX).rpartition(":")
    if not rest.startswith(PREFIX) or not colon:
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
    if not callable(function):
        raise InvalidArgument(f"a source must be a function, not a {type(function).__name__}")
    called = name_of(function)
    try:
        inspect.signature(function).bind(0, 1)
    except TypeError as error:
        raise InvalidArgument(
            f"{called} must take (after, before), the start and end of a window: {error}"
        ) from error
    chosen = getattr(function, "__name__", "") if name is None else name
    if not isinstance(chosen, str) or not _NAME.fullmatch(chosen):
        raise InvalidArgument(
            f"name={chosen!r} cannot be the name of a source: letters, digits and _ . -; give it "
            "one with name="
        )
    try:
        check_queue(home_of(check_queue(queue), chosen))
    except InvalidArgument as error:
        if len(home_of(queue, chosen).rpartition("/")[2]) <= 128:
            raise
        raise InvalidArgument(
            f"the queue {queue!r} and the source {chosen!r} have names too long for each other: "
            f"{PREFIX}{queue}:{chosen} may have 128 letters; give it a short one with name="
        ) from error
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return chosen, is_async
