"""What the handler of an operation gets: the request, its visit, and the service."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

from bide.lane.steps import LongSteps, arun_steps
from bide.model.commands import Command, Queues
from bide.model.identity import actor_of
from bide.model.internal_queues import internal_queue, is_listed
from bide.model.message import Message
from bide.model.replies import Found, Names, Page, Reply, expect
from bide.observing.circumstances import Surroundings
from bide.queue.command_builder import CommandBuilder
from bide.server import wire
from bide.server.access.rights import Caller, is_for_admins
from bide.server.http.client_address import network_of
from bide.server.limits.gate import Visit
from bide.server.limits.open_calls import LongCalls
from bide.server.limits.request_bodies import unless_gone
from bide.server.logs import Act
from bide.server.request import ApiRequest
from bide.server.response import Response
from bide.server.service import Service, own_names
from bide.targets.http.records import Records

T = TypeVar("T")

R = TypeVar("R", bound=Reply)


@dataclass(eq=False)
class ApiCall:
    """One call of an operation, on its way from the request to the answer.

    Args:
        service: the service that answers it.
        request: what came.
        visit: who sends it, and its access to the store within the limits.
        response: the answer.
    """

    service: Service
    request: ApiRequest
    visit: Visit
    response: Response
    acts: list[Act] = field(default_factory=list, init=False)
    """The commands of a batch, for the action log."""

    @property
    def caller(self) -> Caller:
        """Who sends the request."""
        return self.visit.caller

    @property
    def actor(self) -> str:
        """The actor of the request's commands: the token's name or id, else the address."""
        caller = self.visit.caller
        return actor_of(caller.name or caller.token or self.request.client or "local")

    @cached_property
    def arguments(self) -> CommandBuilder:
        """The builder of commands for the queue.

        Raises:
            AccessDenied: the rights are not for this queue, or not for an internal one.
        """
        queue = self.visit.caller.full(self.request.queue)
        only_reads = self.request.operation.right in ("read", "bodies")
        if is_for_admins(internal_queue(queue), only_reads=only_reads):
            self.visit.caller.need("admin")
        service = self.service
        return _arguments_of(queue, service.settings.max_body, self.actor, service.clock.now)

    @cached_property
    def surroundings(self) -> Surroundings:
        """What the explanations of a batch share."""
        return Surroundings()

    @property
    def records(self) -> Records:
        """The subscriptions of the store."""
        return self.service.pushing.pusher.records

    def counted_among(self, calls: LongCalls) -> AbstractContextManager[None]:
        """Count this call as an open one while the block runs, if requests need tokens.

        Raises:
            Problem: when the block is entered: there are too many.
        """
        if not self.service.admission.requires_tokens:
            return nullcontext()
        return calls.counting(self.caller.namespace, network_of(self.request.client))

    async def ask(self, kind: type[R], command: Command) -> R:
        """Execute a command and return its reply; a slow read counts as one of the caller.

        Args:
            kind: the type of the reply.
            command: the command, with the full name of its queue.

        Raises:
            Problem: a quota has no room, or the caller has too many slow reads under way.
        """
        return expect(kind, await self._execute(command))

    async def carry_out(self, steps: LongSteps[T]) -> T:
        """Execute steps, each as `ask` does, and return their result."""
        return await arun_steps(steps, self._execute, self.service.large_bodies.pauses())

    async def _execute(self, command: Command) -> Reply:
        with await self.visit.admitted([command]) as admitted:
            (admitted_command,) = admitted.commands
            return await self.visit.execute(admitted_command)

    async def names(self, prefix: str = "") -> list[str]:
        """Return the caller's names of the queues that the caller may see.

        Internal queues of bide are left out, unless the prefix is theirs.
        """
        reply = expect(Names, await self.visit.execute(Queues(self.caller.prefix(prefix))))
        return [name for name in own_names(self.caller, reply.names) if is_listed(name, prefix)]

    async def registers(self) -> list[str]:
        """Return the registers of workers that may serve the caller's queues."""
        return self.caller.registers(expect(Names, await self.visit.execute(Queues(""))).names)

    async def wait(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Return the result of work that waits, unless the client goes or loses its access.

        Args:
            work: begins the work.
            undo: called with a result that the client does not get.

        Raises:
            Closed: the server stops.
            Problem: too many calls wait, or the token was revoked or expired meanwhile.
        """
        admission, token = self.service.admission, self.request.token
        with self.counted_among(self.service.waits):
            return await unless_gone(
                receive=self.request.body.receive,
                work=work(),
                refusal=admission.until_refused(token),
                # The token may have been revoked since `until_refused` has looked last.
                last_check=partial(admission.caller, token),
                undo=undo,
            )

    async def find(self) -> Message | None:
        """Return the message in the path, `None` if it does not exist."""
        reply = await self.ask(Found, self.arguments.find(self.request.part("id")))
        (message,) = reply.messages
        return message

    def message_out(self, message: Message) -> wire.MessageOut:
        """Return a message as the caller may see it."""
        return wire.message_out(message, self.request.queue, bodies=self.caller.may("bodies"))

    async def page(self, scan: Command) -> wire.Messages:
        """Return a page of messages as the caller may see them."""
        page = await self.ask(Page, scan)
        return wire.Messages(await self.convert(self.message_out, page.messages), page.cursor)

    async def convert(
        self, out: Callable[..., wire.MessageOut], *columns: Sequence[Any]
    ) -> list[wire.MessageOut]:
        """Return messages as an answer has them. Others go on meanwhile: a rule may be long.

        Args:
            out: converts one.
            columns: its arguments, one of each column.
        """
        pause, converted = self.service.large_bodies.pauses(), []
        for arguments in zip(*columns, strict=True):
            converted.append(out(*arguments))
            await pause()
        return converted


_arguments_of = lru_cache(maxsize=1_000)(CommandBuilder)
"""Builders by queue and actor, so that a name is checked once."""
