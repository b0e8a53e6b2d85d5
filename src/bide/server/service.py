"""The service: one store, and everybody whose requests go there."""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Claim, Command, Queues
from bide.model.errors import BideError
from bide.model.identity import is_listed
from bide.model.replies import Claimed, Names, Reply
from bide.observing.heartbeat import Heartbeat
from bide.observing.tally import Tally
from bide.server.access import Caller, Tokens
from bide.server.admission import Admission
from bide.server.claimers import Claimers
from bide.server.figures import Board, Figures
from bide.server.hub import Hub
from bide.server.long_calls import LongCalls
from bide.server.problem import Problem
from bide.server.pushing import Pushing
from bide.server.quotas import Quotas
from bide.server.reply_budget import within_budget
from bide.server.settings import Settings
from bide.server.uses import Uses

__all__ = ["Service", "SettableClock"]

R = TypeVar("R", bound=Reply)

MOST_UNDER_WAY = 5_000
"""How many commands of batches may be under way. The lane takes twice as many without making any
of them wait, so those of one batch stay in their order."""


class SettableClock(Clock, Protocol):
    """A clock that a test moves through requests of its own."""

    def set_wall(self, now: int) -> None:
        """Set the wall clock, in Unix milliseconds."""


class Service:
    """A store, and what a server knows beside it.

    Args:
        settings: what the server was told.
        test_clock: by which the store goes instead of its own; requests may then set it.
        uses: what namespaces have used, shared with the other processes of the server.
        board: what each of these has done, shared by them as well.
    """

    def __init__(
        self,
        settings: Settings,
        test_clock: SettableClock | None = None,
        uses: Uses | None = None,
        board: Board | None = None,
    ) -> None:
        settings.check()
        self.settings = settings
        self.clock: Clock = test_clock or SYSTEM_CLOCK
        self.test_clock = test_clock
        self.lane = open_lane(settings.store, self.clock)
        self.hub = Hub(self.lane)
        self.tokens = Tokens(self.lane, self.clock)
        self.uses = uses or Uses()
        self.board = board or Board()
        self.quotas = Quotas(settings, self.lane, self.uses, lambda: self.admission.asks)
        self.pushing = Pushing(self.lane, self.clock, settings)
        self.admission = Admission(settings, self.lane, self.tokens, self.clock)
        self.stopping = asyncio.Event()
        self.requests: dict[tuple[str, int], int] = {}
        """How many requests were answered, by operation and status."""
        self.seconds: dict[str, float] = {}
        """How long they took, by operation."""
        self.tallies: dict[str, Tally] = {}
        """What was claimed by way of the route for it, by queue. A `Queue` on an http:// store
        claims in batches; how late its messages are is known to the program that has it."""
        self.waiting = 0
        """How many claims wait."""
        self.claimers = Claimers()
        self.streams = LongCalls("event streams", "max_streams", settings.max_streams)
        self.waits = LongCalls("waiting claims", "max_waiting", settings.max_waiting)
        self._under_way = 0
        self._ended = False

    async def begin(self) -> None:
        """Open the store, and find out whether requests need a token.

        Raises:
            StoreError: the store cannot be opened.
            InvalidArgument: the server can be reached from elsewhere, and there are no tokens.
        """
        await asyncio.to_thread(lambda: self.lane.capabilities)
        await self.admission.begin()

    async def ask(self, kind: type[R], command: Command) -> R:
        """Have a command carried out, and return its reply."""
        reply = await self.lane.acall(command, self)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    async def batch(self, commands: Sequence[Command]) -> list[Reply | BaseException]:
        """Have commands carried out in their order; return a reply or an error for each."""
        if self._under_way + len(commands) > MOST_UNDER_WAY:
            raise Problem("overloaded", "too many commands are under way; try again in a second")
        self._under_way += len(commands)
        in_order = not all(command.only_reads for command in commands)

        async def execute(part: Sequence[Command]) -> list[Reply | BaseException]:
            return await asyncio.gather(
                *[self.lane.acall(command, self, in_order=in_order) for command in part],
                return_exceptions=True,
            )

        try:
            return await within_budget(commands, execute, self.clock.now())
        finally:
            self._under_way -= len(commands)

    async def claim(self, command: Claim, wait: float) -> Claimed:
        """Claim messages, and wait for them; what a caller who goes away has claimed goes back."""
        self.waiting += 1
        self.claimers.came(command.holder, command.queue)
        try:
            longest = 0.0 if self.stopping.is_set() else self.settings.longest_wait
            reply = await self.lane.acall(command, self, min(wait, longest))
        finally:
            self.waiting -= 1
            self.claimers.went(command.holder, command.queue)
        assert isinstance(reply, Claimed)
        return reply

    def handed_out(self, command: Claim, reply: Claimed) -> None:
        """Count what a claim has brought, and remember who it was."""
        self.claimers.seen(command.holder, command.queue)
        if reply.messages:
            tally = self.tallies.setdefault(command.queue, Tally())
            tally.claims += 1
            tally.claimed += len(reply.messages)
            for message in reply.messages:
                tally.lateness.observe(max(0, reply.now - message.due) / 1000)

    async def names(self, caller: Caller, prefix: str = "") -> list[str]:
        """Return the names of a caller's queues, as they are in their namespace.

        Without those that bide keeps for itself, unless the prefix asks for them.
        """
        found = await self.ask(Names, Queues(caller.full(prefix)))
        return [name for name in own_names(caller, found.names) if is_listed(name, prefix)]

    async def ready(self) -> str | None:
        """Return why the service cannot work, `None` if it can."""
        if self.stopping.is_set():
            return "the server is stopping"
        try:
            async with asyncio.timeout(5):
                await self.lane.acall(Queues("-"), self)  # the least there is to ask for
        except TimeoutError:
            return "the store does not answer within 5 s"
        except BideError as error:
            return str(error)
        return self.pushing.failure

    def note(self, operation: str, status: int, began: float) -> float:
        """Count a request; return how many seconds it took."""
        took = time.perf_counter() - began
        key = operation, status
        self.requests[key] = self.requests.get(key, 0) + 1
        self.seconds[operation] = self.seconds.get(operation, 0.0) + took
        return took

    @property
    def figures(self) -> Figures:
        """What this process has done so far."""
        sent = self.pushing.sent
        return Figures(self.requests, self.seconds, self.tallies, sent, self.waiting)

    def attendance(self) -> Heartbeat:
        """Return what tells in the store of those who claim here."""
        process = f"serve:{socket.gethostname()}:{os.getpid()}"
        lister = self.claimers.listed
        return Heartbeat(self.lane, SYSTEM_CLOCK, process, lister, lambda: self.tallies)

    def stop(self, *, hurry: bool = False) -> None:
        """Answer the claims that wait, end what streams, and push nothing more.

        Args:
            hurry: hand back at once what is being pushed.
        """
        self.stopping.set()
        self.lane.release(self)
        self.pushing.stop(hurry=hurry)

    async def end(self) -> None:
        """Let go of the store, once what is being pushed is finished or handed back."""
        if not self._ended:
            self._ended = True
            self.stop()
            await self.pushing.end()
            self.board.leave(self.figures)
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Let go of the store."""
        close_lane(self.lane)
        self.uses.close()
        self.board.close()


def own_names(caller: Caller, names: Sequence[str]) -> list[str]:
    """Return those of the names that are a caller's, as they are in their namespace."""
    return [own for name in names if (own := caller.own(name)) is not None]
