"""What `Queue` and `AsyncQueue` share: name, lane, closing, and how they execute a command."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Guest
from bide.engines.registry import DEFAULT_URL, absolute, lives_alone, mask
from bide.engines.registry import guest as guest_of
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import Steps, arun_steps, run_steps
from bide.model.commands import Command, Configure, Explain, Put, Scan
from bide.model.errors import Closed, Unsupported, WrongContext
from bide.model.identity import actor_of, check_name
from bide.model.limits import MAX_BODY
from bide.model.message import Message
from bide.model.replies import Explained, Outcome, Outcomes, Page, Settings
from bide.model.times import Duration, Rate
from bide.observing import spans
from bide.observing.explain_facts import afollow, follow, look_further
from bide.observing.explanation import Explanation
from bide.outbox.guest import outbox
from bide.queue.command_builder import CommandBuilder
from bide.queue.delivery import AsyncDelivery, Delivery, mark_settled
from bide.queue.detour import detours, is_detoured, open_queues
from bide.queue.results import find_all, following, held, must_be_new
from bide.queue.values import check_joins
from bide.within import acarry_out, carry_out, dialect_of

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

R = TypeVar("R")
T = TypeVar("T")


class BaseQueue:
    """A queue's name, its store and its clock. `Queue` tells what each argument is."""

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        max_body: int = MAX_BODY,
        holder: str | None = None,
        actor: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._names_store = url is not None
        self._url = url or self._default_url()
        self._holder = None if holder is None else check_name(holder, "holder")
        if actor is None and self._holder is not None:
            actor = actor_of(self._holder)
        self._builder = CommandBuilder(name, max_body, actor)
        settings = self._builder.settings(
            keep=keep, history=history, result_ttl=result_ttl, limit=limit, rate=rate,
            group_limit=group_limit, group_rate=group_rate,
        )  # fmt: skip
        self._to_set = None if settings == self._builder.configure() else settings
        self._own_clock = clock
        if detours and clock is SYSTEM_CLOCK:
            self._go(*detours[-1])
        else:
            self._go(open_lane(self._url, clock), clock)
        self._users = [name]  # one, until it is closed
        open_queues.add(self)

    def _default_url(self) -> str:
        """Return the store of a queue that names none."""
        return os.environ.get("BIDE_URL") or DEFAULT_URL

    def _go(self, lane: Lane, clock: Clock) -> None:
        """Use a store and a clock."""
        self._lane = lane
        self._clock = clock
        self._unset = self._to_set  # not yet sent to this store

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._builder.queue

    @property
    def url(self) -> str:
        """The store's URL, with a password hidden."""
        return mask(self._url)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<{type(self).__name__} {self.name!r} at {self.url}{closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be sent to another process; make one there, with the "
            "same name and URL"
        )

    @property
    def _closed(self) -> bool:
        return not self._users

    def _guest(self, command: Command, within: object) -> Guest | None:
        """Return who carries out a command on the user's connection.

        Nobody where `detour` leads: a store of tests knows no connections, and does it at once.
        """
        if not self._users:
            raise self._was_closed()
        check_joins(command)
        if is_detoured(self._lane):
            return None
        guest = guest_of(absolute(self._url))
        if guest is None and lives_alone(self._url):
            raise Unsupported(
                f"within= needs a store that other processes reach; {self.url} is none"
            )
        return guest or outbox(dialect_of(within))

    @contextmanager
    def _joining(self, command: Command) -> Iterator[list[Command]]:
        """Yield the commands to carry out in the user's transaction; the last is the one given."""
        commands: list[Command] = []
        if self._unset is not None:  # not told yet; and this may be rolled back
            commands.append(self._unset)
        if type(command) is Put and (tracer := _tracer()) is not None:
            with spans.sending(tracer, command) as traced:
                yield [*commands, traced]
        else:
            yield [*commands, command]

    def _now(self) -> int | None:
        """Return the moment to go by: of a test's clock, else the store decides."""
        return None if self._clock is SYSTEM_CLOCK else self._clock.now()

    def _was_closed(self) -> Closed:
        return Closed(f"queue {self.name!r} was closed; make a new one to go on")

    def _close(self) -> None:
        self._lane.refuse_reentry()
        try:
            self._users.pop()  # only one thread succeeds if several close it
        except IndexError:
            return
        self._lane.release(self)
        if not is_detoured(self._lane):
            close_lane(self._lane)


class BlockingBase(BaseQueue):
    """A queue for threads."""

    def close(self) -> None:
        """Close the queue. Claims that wait in other threads raise `Closed`."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _do(
        self, kind: type[R], command: Command, wait: float | None = None, within: object = None
    ) -> R:
        """Execute a command and return its reply."""
        if within is not None and (guest := self._guest(command, within)) is not None:
            with self._joining(command) as commands:
                return cast("R", carry_out(within, guest, commands, self._now())[-1])
        # Each single put passes through here, so calls are avoided.
        if not self._users:
            raise self._was_closed()
        if asyncio._get_running_loop() is not None:
            raise WrongContext(
                "bide.Queue blocks, and this thread runs an event loop, which would stop; use "
                "bide.AsyncQueue here (the same methods, with await)"
            )
        if self._unset is not None and not command.only_reads:
            self._lane.call(self._unset, self)
            self._unset = None
        if type(command) is Put and (tracer := _tracer()) is not None:
            with spans.sending(tracer, command) as traced:
                reply = self._lane.call(traced, self)
        else:
            reply = self._lane.call(command, self, wait)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    def explain(self, id: str) -> Explanation:
        """Tell why a message is where it is: when it is due, what it waits for, or who holds it.

        Args:
            id: of the message.

        Returns:
            The explanation: `sentence` for people, `reasons` and `facts` for programs. Its cost
            does not depend on how many messages are pending.

        Example:
            >>> from bide import Queue
            >>> orders = Queue("unpaid", "memory://")
            >>> outcome = orders.put({"order": 42}, delay="30m", id="order-42")
            >>> orders.explain("order-42").reasons
            ('delayed',)
        """
        facts = self._do(Explained, Explain(self.name, check_name(id)))
        steps = look_further(self.name, id, facts, around=self._lane.capabilities.shared)
        facts = follow(steps, lambda command: self._lane.call(command, self))
        return Explanation(id, self.name, facts)

    def _run(self, steps: Steps[T], within: object = None) -> T:
        """Run the commands of some steps, and return their result."""
        return run_steps(steps, partial(self._do, object, within=within))

    _many = _count = _run

    def _one(self, command: Command, within: object = None, *, new: bool = False) -> Outcome:
        reply = self._do(Outcomes, command, within=within)
        return _first_new(reply) if new else reply.outcomes[0]

    def _configure(self, command: Configure) -> Settings:
        return self._do(Settings, command)

    def _walk(self, command: Scan) -> Iterator[Message]:
        """Yield the messages of a scan, page by page."""
        scan: Scan | None = command
        while scan is not None:
            page = self._do(Page, scan)
            yield from page.messages
            scan = following(scan, page)

    def _find_all(self, ids: Sequence[str]) -> list[Message | None]:
        return self._run(find_all(self.name, ids))

    def _settle(self, deliveries: Sequence[Delivery], command: Command) -> list[Outcome]:
        outcomes = self._do(Outcomes, command).outcomes
        mark_settled(deliveries, outcomes)
        return outcomes

    def _settle_one(
        self, delivery: Delivery, command: Command, verb: str, *, settles: bool = True
    ) -> None:
        held(self._do(Outcomes, command).outcomes[0], verb)
        delivery.settled = delivery.settled or settles


def _first(reply: Outcomes) -> Outcome:
    return reply.outcomes[0]


def _first_new(reply: Outcomes) -> Outcome:
    return must_be_new(reply.outcomes[0])


def _tracer() -> "Tracer | None":
    """Return the tracer of a put. Each single put asks for it, so most do not look for one."""
    if spans.API not in sys.modules or time.monotonic() < spans.none_until:
        return None
    return spans.tracer()


class AsyncBase(BaseQueue):
    """A queue for tasks."""

    async def close(self) -> None:
        """Async form of `Queue.close`."""
        await asyncio.to_thread(self._close)  # it waits for running commands

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _do(
        self, kind: type[R], command: Command, wait: float | None = None, within: object = None,
        of: Callable[[R], object] | None = None,
    ) -> R:  # fmt: skip
        """Execute a command and return its reply, or what `of` makes of it.

        Each single put passes through here: it has no further coroutine around this one.
        """
        if within is not None and (guest := self._guest(command, within)) is not None:
            with self._joining(command) as commands:
                replies = await acarry_out(within, guest, commands, self._now())
                last = cast("R", replies[-1])
                return last if of is None else cast("R", of(last))
        if not self._users:
            raise self._was_closed()
        if self._unset is not None and not command.only_reads:
            await self._lane.acall(self._unset, self)
            self._unset = None
        if type(command) is Put and (tracer := _tracer()) is not None:
            with spans.sending(tracer, command) as traced:
                reply = await self._lane.acall(traced, self)
        else:
            reply = await self._lane.acall(command, self, wait)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply if of is None else cast("R", of(reply))

    async def explain(self, id: str) -> Explanation:
        """Async form of `Queue.explain`."""
        facts = await self._do(Explained, Explain(self.name, check_name(id)))
        steps = look_further(self.name, id, facts, around=self._lane.capabilities.shared)
        facts = await afollow(steps, lambda command: self._lane.acall(command, self))
        return Explanation(id, self.name, facts)

    async def _run(self, steps: Steps[T], within: object = None) -> T:
        """Run the commands of some steps, and return their result."""
        return await arun_steps(steps, partial(self._do, object, within=within))

    _many = _count = _run

    def _one(
        self, command: Command, within: object = None, *, new: bool = False
    ) -> Coroutine[Any, Any, Outcome]:
        done = self._do(Outcomes, command, None, within, _first_new if new else _first)
        return cast("Coroutine[Any, Any, Outcome]", done)

    async def _configure(self, command: Configure) -> Settings:
        return await self._do(Settings, command)

    async def _walk(self, command: Scan) -> AsyncIterator[Message]:
        """Yield the messages of a scan, page by page."""
        scan: Scan | None = command
        while scan is not None:
            page = await self._do(Page, scan)
            for message in page.messages:
                yield message
            scan = following(scan, page)

    async def _settle(self, deliveries: Sequence[AsyncDelivery], command: Command) -> list[Outcome]:
        outcomes = (await self._do(Outcomes, command)).outcomes
        mark_settled(deliveries, outcomes)
        return outcomes

    async def _settle_one(
        self, delivery: AsyncDelivery, command: Command, verb: str, *, settles: bool = True
    ) -> None:
        held((await self._do(Outcomes, command)).outcomes[0], verb)
        delivery.settled = delivery.settled or settles
