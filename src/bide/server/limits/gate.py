"""The way in: each request of each face passes it, and reaches the store only through it.

The API, the dashboard, metrics and event streams get a `Visit` per request. It counts the bytes
that the request transfers, its slow reads, and the memory of its replies. A face has no other
access to the store, so none is outside these limits.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from bide.lane.lane import Lane
from bide.lane.steps import arun_steps
from bide.model.commands import Command
from bide.model.errors import AccessDenied
from bide.model.limits import MAX_BODY, MAX_HEADERS, MAX_REPLIES, MAX_REPLIES_OF_NAMESPACE
from bide.model.past import Past, PastCommand
from bide.model.replies import Reply
from bide.model.undoing import Bulk, Undo
from bide.observing.past import reading_past
from bide.server.access.admission import Admission
from bide.server.access.rights import OPEN, Caller
from bide.server.limits.admitted import Admitted
from bide.server.limits.open_calls import LongCalls
from bide.server.limits.quotas import Quotas
from bide.server.limits.reply_budget import (
    Client,
    Present,
    ReplyBudget,
    room_for,
    size_of_reply,
)
from bide.server.limits.request_bodies import ClientGone
from bide.server.limits.slow_reads import SlowReads, is_slow

CLIENT = "bide.client"
"""The extension in the scope of a request with the `Client`; bide's own server has it."""


@dataclass(eq=False)
class Gate:
    """What the requests of a process share.

    Args:
        lane: the lane to the store.
        slow_reads: carries out slow reads.
        slow_calls: limits them.
        max_body: how many bytes a body may take.
        quotas: limits the bytes that a namespace transfers; `None`: nothing does.
        admission: knows whether requests need tokens: without, slow reads are not limited. `None`:
            they are.
    """

    lane: Lane
    slow_reads: SlowReads
    slow_calls: LongCalls
    max_body: int
    quotas: Quotas | None = None
    admission: Admission | None = None

    def __post_init__(self) -> None:
        self.replies = ReplyBudget(MAX_REPLIES, MAX_REPLIES_OF_NAMESPACE)
        """The memory of the replies that are under way."""
        self.largest = self.max_body + MAX_HEADERS
        """How many bytes a message in a reply may take."""
        self.turns: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()
        """By namespace: held while a reply is read that may take more than it may transfer in a
        second."""

    def visit(self, scope: Mapping[str, Any], network: str, request: str) -> "Visit":
        """Return the visit of a request; it ends with `Visit.close`.

        Args:
            scope: the ASGI scope of the request.
            network: the client's address or network; "" if it is not known.
            request: the id of the request.
        """
        client = (scope.get("extensions") or {}).get(CLIENT)
        return Visit(self, network, client or Present(), request)


@dataclass(eq=False)
class Visit:
    """One request, from its admission to the end of its answer.

    Args:
        gate: the gate that it has passed.
        network: the client's address or network.
        client: tells when the client has gone.
        request: the id of the request.
    """

    gate: Gate
    network: str
    client: Client
    request: str
    caller: Caller = field(default=OPEN, init=False)
    """Who sends the request; it has not been let in yet."""
    _quotas: Quotas | None = field(default=None, init=False)
    """What limits the caller, from `admit` on; `None`: nothing does, and nothing is counted."""
    _room: int = field(default=0, init=False)
    """Bytes of the reply budget that the visit has taken."""
    _room_until_end: int = field(default=0, init=False)
    """Bytes that it keeps until its end, whatever the replies take."""
    _unsent_charge: int = field(default=0, init=False)
    """Bytes of replies that count as transferred, and were not sent yet."""
    _had_turn: bool = field(default=False, init=False)
    """Whether it was admitted to read replies that may take more than a second's bytes."""
    _reads_slowly: bool = field(default=False, init=False)
    """Whether a slow read of it is under way; those within it do not count again."""
    _closed: bool = field(default=False, init=False)
    """Whether `close` was called."""
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held while a reply of any size is read: a visit reads one at a time."""

    def admit(self) -> None:
        """Let the caller in, unless its namespace has transferred too many bytes.

        Raises:
            Problem: the namespace has transferred too many bytes.
        """
        quotas = self.gate.quotas
        if quotas is not None and quotas.any:
            quotas.may_carry(self.caller.namespace)
            self._quotas = quotas

    def carried(self, size: int) -> None:
        """Count bytes of the request or its answer, if the caller was let in."""
        if self._quotas is not None:
            already_counted = min(size, self._unsent_charge)
            self._unsent_charge -= already_counted
            self._quotas.carried(self.caller.namespace, size - already_counted)

    async def admitted(self, commands: Sequence[Command | Bulk | Undo | PastCommand]) -> Admitted:
        """Return the commands as the quotas of the caller admit them; see `Quotas.admit`.

        What is returned is also the context in which they are to be executed.

        Raises:
            Problem: messages are too many, too large, or too far ahead.
        """
        if self._quotas is None:
            return Admitted(commands)
        return await self._quotas.admit(self.caller, commands)

    def check(self) -> None:
        """End the request if its client has gone.

        Raises:
            ClientGone: the client has closed the connection.
        """
        if self.client.disconnected:
            raise ClientGone

    async def execute(self, command: Command) -> Reply:
        """Execute a command in the store, once there is room for its reply.

        Raises:
            Problem: there is no room, or the caller has too many slow reads under way.
            ClientGone: the client has gone, and nothing was executed.
        """
        room = room_for(command, self.gate.largest)
        if not room:
            return await self._execute(command)
        async with self._reading:
            self.check()
            async with self._turn(room):
                await self._take(room)
                reply = await self._execute(command)
                size = size_of_reply(reply)
                if self._waits_for_turn(room):
                    self._charge(size or 0)
            if size is not None:
                self._keep(max(size, self._room_until_end))
            if self._closed:  # others share the result: see `bide.dashboard.reading.RecentResults`
                self._keep(0)
        return reply

    async def past(self, command: PastCommand) -> Past:
        """Read what has happened in queues that the caller may see.

        The record is about the queues of all callers, so it is read for the caller, page by page.

        Args:
            command: which slots, with the name of the queue in the store.

        Raises:
            AccessDenied: the caller may see some queues only, all are asked for, and the store is
                another server.
            Problem: there is no room, or the caller has too many slow reads under way.
            ClientGone: the client has gone, and nothing was executed.
        """
        caller, lane = self.caller, self.gate.lane
        if command.together and lane.capabilities.has_server and not caller.of_all_queues:
            raise AccessDenied(
                f"the token is for the queues {', '.join(caller.queues)}; name one of them"
            )

        def is_wanted(name: str) -> bool:
            if not command.together:
                return name == command.queue
            return name.startswith(command.queue) and caller.own(name) is not None

        steps = reading_past(command, is_wanted, has_server=lambda: lane.capabilities.has_server)
        async with self._reading:
            self.check()
            with self.slowly():
                await self._take(MAX_BODY)  # a page of the record
                try:
                    return await arun_steps(steps, lane.acall)
                finally:
                    self._keep(0 if self._closed else self._room_until_end)

    async def hold(self, size: int) -> None:
        """Hold room for all replies of this request together.

        Raises:
            Problem: there is no room.
            ClientGone: the client has gone.
        """
        async with self._reading:
            self.check()
            await self._take(size)
            self._room_until_end = self._room

    def let_go(self) -> None:
        """Give the room back: what was read is needed no more."""
        self._room_until_end = 0
        self._keep(0)

    @contextmanager
    def slowly(self) -> Iterator[None]:
        """Count a slow read of the caller while the block runs, if requests need tokens.

        Raises:
            Problem: there are too many.
        """
        admission = self.gate.admission
        if self._reads_slowly or (admission is not None and not admission.requires_tokens):
            yield
            return
        with self.gate.slow_calls.counting(self.caller.namespace, self.network):
            self._reads_slowly = True
            try:
                yield
            finally:
                self._reads_slowly = False

    def close(self, received: int = 0) -> None:
        """End the visit; what the client did not wait for counts as transferred.

        A read that is under way gives its room back itself, when it ends.

        Args:
            received: bytes of the request's body that have come and were not counted.
        """
        if self._quotas is not None:
            self.carried(received)
            if self.client.disconnected:
                self.carried(self._room)
        self._closed = True
        if self._room and not self._reading.locked():
            self.let_go()

    def _waits_for_turn(self, room: int) -> bool:
        """Return whether a reply may take more than the namespace may transfer in a second."""
        quotas = self._quotas
        rate = None if quotas is None else quotas.of(self.caller.namespace).byte_rate
        return rate is not None and room > rate

    @asynccontextmanager
    async def _turn(self, room: int) -> AsyncIterator[None]:
        """Read large replies of the namespace one after the other, each charged before the next.

        Else requests that come at once would all pass before the first answer counts.

        Raises:
            Problem: the replies before have used up what the namespace may transfer.
            ClientGone: the client has gone.
        """
        if not self._waits_for_turn(room):
            yield
            return
        turn = self.gate.turns.setdefault(self.caller.namespace, asyncio.Lock())
        async with turn:
            self.check()
            if not self._had_turn:  # its own first reply must not refuse it the others
                self._settle()
                self.admit()
                self._had_turn = True
            yield

    def _charge(self, size: int) -> None:
        """Count a reply before it is sent; `carried` does not count these bytes again."""
        if self._quotas is not None:
            self._unsent_charge += size
            self._quotas.carried(self.caller.namespace, size)
            self._settle()

    def _settle(self) -> None:
        """Tell the other processes what this one has counted, and hear of what they have."""
        if self._quotas is not None:
            self._quotas.settle(self.caller.namespace)

    async def _execute(self, command: Command) -> Reply:
        if not is_slow(command):
            return await self.gate.lane.acall(command, self)
        with self.slowly():
            return await self.gate.slow_reads.read(command, self)

    async def _take(self, size: int) -> None:
        """Take room. The room that the visit has is given back first: two visits that each wait for
        what the other one has would wait for ever."""
        size = min(size, MAX_REPLIES_OF_NAMESPACE)
        if size > self._room:
            self._keep(0)
            self._room = await self.gate.replies.take(self.caller.namespace, size, self.client)

    def _keep(self, size: int) -> None:
        if (spare := self._room - size) > 0:
            self._room = size
            self.gate.replies.give_back(self.caller.namespace, spare)
