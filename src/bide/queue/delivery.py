"""A delivery: a message that one worker holds until its lease ends. `take`: a block with one."""

import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from traceback import format_exception_only
from typing import Any, Generic, Protocol, TypeVar

from bide.lane.inbox import FOREVER
from bide.lane.steps import Steps, arun_steps, run_steps
from bide.model.commands import Command, Lease, NextRun
from bide.model.errors import BideError, Empty, InvalidArgument, WrongContext
from bide.model.message import Message
from bide.model.replies import Claimed, Outcome, Outcomes
from bide.model.times import Duration, milliseconds
from bide.queue.command_builder import CommandBuilder
from bide.queue.results import all_outcomes, check_held

REPORT_EVERY = 1.0
"""The shortest time between two reports that are stored of a delivery, in seconds."""

HeldT = TypeVar("HeldT", bound="Held[Any]")
Done = TypeVar("Done")
"""What a method returns: nothing, or a coroutine that returns nothing."""


class MayBeStopped(Protocol):
    """Work that can be asked to stop."""

    def raise_if_stopping(self) -> None:
        """Raise `StopRequested`, once, if it was asked to."""


CURRENT: ContextVar[MayBeStopped | None] = ContextVar("bide-current-work", default=None)
"""The plain handler that runs in this context. A thread cannot be interrupted, so the next call of
a queue in it asks whether it is to stop."""


def wanted_at(message: Message) -> int:
    """Return the time from which the lateness of a message counts, in Unix milliseconds.

    That is its due time, which a retry has set; of a message that was put off before it was tried,
    as `Queue.recover` does, the time for which it was planned.
    """
    return message.due if message.planned is None or message.failures else message.planned


class Held(Generic[Done]):
    """What both kinds of delivery share.

    Each method raises `LeaseLost` if the lease is over; nothing was changed then.
    """

    __slots__ = ("_began", "_queue", "_reported", "claimed", "message", "settled", "token")

    def __init__(self, queue: Any, message: Message, token: int, claimed: int) -> None:
        self._queue = queue
        self.message = message
        """The message as it was claimed."""
        self.token = token
        """The fencing token: the number of the claim, which only grows within a queue."""
        self.claimed = claimed
        """When it was claimed, in Unix milliseconds of the store's clock."""
        self.settled = False
        """Whether it was acked, retried, buried or released through this object."""
        self._began = 0.0
        """If the message repeats: when it was claimed, by the monotonic clock."""
        if message.repeats:
            self._began = queue._lane.clock.monotonic()
        self._reported = -REPORT_EVERY
        """When the last report was stored, by the monotonic clock; at first long enough ago."""

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @property
    def body(self) -> Any:
        """The message's body, decoded at each access."""
        return self.message.body

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self.message.attempt

    @property
    def lateness(self) -> float:
        """How long after its due time it was claimed, in seconds; see `wanted_at`."""
        return (self.claimed - wanted_at(self.message)) / 1000

    @property
    def lease(self) -> Lease:
        """The lease, as the store knows it."""
        return Lease(self.message.id, self.token, self.message.secret)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.id!r} of {self.message.queue!r}, attempt {self.attempt}>"
        )

    def ack(self, result: Any = None, *, within: object = None) -> Done:
        """Acknowledge the message: it is done and leaves the queue.

        Args:
            result: any JSON value, for `Queue.result`; of use in a queue with `result_ttl`.
            within: your connection or session to the database that the store is in: the ack and
                your changes are committed together, or neither is. If you roll back, the lease goes
                on, and ends by itself.
        """
        command = ack_command(self._queue._builder, [self], [result])
        return self._settle(command, "acked", within=within)

    def next_run(self) -> NextRun | None:
        """Return the run that is to follow if the message is acked now; `None`: there is none.

        Raises:
            InvalidArgument: its rule cannot be read here.
        """
        if not self.message.repeats:
            return None
        from bide.model.runs import after_ack  # here: most messages do not repeat

        # By the store's clock: that of this machine may be wrong.
        now = self.claimed + round(self._elapsed() * 1000)
        return after_ack(self.message, self.claimed, now)

    def _elapsed(self) -> float:
        """Return how many seconds ago the message was claimed."""
        elapsed: float = self._queue._lane.clock.monotonic() - self._began
        return elapsed

    def retry(self, delay: Duration = 0, reason: str = "", *, within: object = None) -> Done:
        """Return the message for another attempt; after the last one it is a dead letter.

        Args:
            delay: how long from now until it is due.
            reason: what went wrong; stored with the message.
            within: your connection or session to the database that the store is in; the retry joins
                its transaction.
        """
        command = self._queue._builder.retry([self.lease], delay, reason)
        return self._settle(command, "retried", within=within)

    def bury(self, reason: str = "", *, within: object = None) -> Done:
        """Make the message a dead letter.

        Args:
            reason: why; stored with the message.
            within: your connection or session to the database that the store is in; the call joins
                its transaction.
        """
        command = self._queue._builder.bury([self.lease], reason)
        return self._settle(command, "buried", within=within)

    def release(self) -> Done:
        """Return the message: it is ready at once, and no attempt is counted."""
        return self._settle(self._queue._builder.release([self.lease]), "released")

    def extend(self, lease: Duration = 30) -> Done:
        """Extend the lease: it ends `lease` from now.

        Raises:
            StopRequested: the message was cancelled; the lease was extended.
        """
        command = self._queue._builder.extend([self.lease], lease)
        return self._settle(command, "extended", settles=False)

    def report(self, done: float, of: float | None = None, text: str = "") -> Done:
        """Say how far the work has come, for those who look at the message.

        It is stored at most once a second: a report that comes sooner is left out, unless it says
        that all is done.

        Args:
            done: how much is done, in units of your own.
            of: how much there is to do, if that is known.
            text: what is counted, or what is done now; at most 200 characters are kept.

        Raises:
            StopRequested: the message was cancelled.

        Example:
            >>> delivery.report(40, of=100, text="rows")  # doctest: +SKIP
        """
        reported: Done = self._queue._run(self._reporting(done, of, text))
        return reported

    def _reporting(self, done: float, of: float | None, text: str) -> Steps[None]:
        """Store a report, unless the last one was stored just before."""
        command = self._queue._builder.report([self.lease], done, of, text)
        now = self._queue._lane.clock.monotonic()
        if now - self._reported < REPORT_EVERY and done != of:
            return
        self._reported = now
        reply: Outcomes = yield command
        check_held(reply.outcomes[0], "reported")

    def _settle(
        self, command: Command, verb: str, *, settles: bool = True, within: object = None
    ) -> Done:
        """Execute a command that needs the lease.

        Args:
            command: for this message.
            verb: says what was to be done to it, for errors: "acked".
            settles: whether the lease ends with it.
            within: the user's connection, if it is to be part of a transaction.
        """

        def note_reply(reply: Outcomes) -> None:
            check_held(reply.outcomes[0], verb)
            self.settled = self.settled or settles

        returned: Done = self._queue._execute(command, note_reply, within=within)
        return returned


class Delivery(Held[None]):
    """A claimed message. Settle it (ack, retry, bury or release) before its lease is over.

    Each method raises `LeaseLost` if the lease is over; nothing was changed then.
    """

    __slots__ = ()


class AsyncDelivery(Held[Coroutine[Any, Any, None]]):
    """Async form of `Delivery`: await what its methods return."""

    __slots__ = ()


def note_settled(
    command: Command, deliveries: Sequence[Held[Any]], reply: Outcomes
) -> list[Outcome]:
    """Note which deliveries a command has settled; return the outcomes."""
    for delivery, outcome in zip(deliveries, reply.outcomes, strict=True):
        delivery.settled = delivery.settled or outcome.done
    return all_outcomes(command, reply)


def ack_command(
    builder: CommandBuilder, deliveries: Sequence[Held[Any]], results: Sequence[Any] | None = None
) -> Command:
    """Return the command that acks deliveries: with the next runs of those that repeat."""
    held_leases = leases(deliveries)
    planned_runs = next_runs(deliveries)
    if planned_runs is None:
        return builder.ack(held_leases, results)
    return builder.renew(held_leases, planned_runs, results)


def next_runs(deliveries: Sequence[Held[Any]]) -> list[NextRun | None] | None:
    """Return the next runs of deliveries that are acked now; `None`: an ack does without them.

    That is so if none repeats, or a rule cannot be read here: who claims the message plans it then.
    """
    if not any(delivery.message.repeats for delivery in deliveries):
        return None
    try:
        return [delivery.next_run() for delivery in deliveries]
    except InvalidArgument:
        return None


def leases(deliveries: Sequence[Held[Any]]) -> list[Lease]:
    """Return the leases of deliveries.

    Raises:
        InvalidArgument: they are not deliveries.
    """
    if not isinstance(deliveries, Iterator):  # which can be read once only
        with suppress(AttributeError, TypeError):
            return [delivery.lease for delivery in deliveries]
    misfit: object = deliveries
    if isinstance(deliveries, (list, tuple)):
        misfit = next((element for element in deliveries if not isinstance(element, Held)), misfit)
    raise InvalidArgument(  # its type alone: what it says may be the body of a message
        f"this takes a list of deliveries, as claim returns them, not {type(misfit).__name__}; "
        "one delivery has methods of its own, such as delivery.ack(), and an id is enough to get "
        "or cancel a message, not to settle it"
    )


class _Take(Generic[HeldT]):
    """What `Take` and `AsyncTake` share."""

    _held: type[HeldT]
    """The kind of delivery that the block gets."""

    def __init__(self, queue: Any, wait: Duration | None, lease: Duration, retry: Duration) -> None:
        self._queue = queue
        self._wait = FOREVER if wait is None else milliseconds(wait, "wait") / 1000
        self._claim = queue._builder.claim(1, lease, queue._holder)
        self._delay = milliseconds(retry, "retry") / 1000  # in seconds
        self._delivery: HeldT | None = None
        self._in_use = threading.Lock()  # held from the beginning of a block to its end

    def _begin(self) -> None:
        """Let no other block begin: its end would settle the message of this one."""
        if not self._in_use.acquire(blocking=False):
            raise WrongContext(
                "this take() is in use by another block, of this thread or of another; call "
                "queue.take() for each block"
            )
        self._delivery = None

    def _take(self, reply: Claimed) -> HeldT | None:
        """Take the message of a claim; return `None` if it only says that other messages died."""
        if reply.messages:
            self._delivery = self._held(self._queue, reply.messages[0], reply.token, reply.now)
        elif self._wait != FOREVER:
            raise Empty(
                f"no message of queue {self._queue.name!r} fell due within {self._wait:g} s"
            )
        return self._delivery

    def _leave(self, error: BaseException | None) -> Steps[None]:
        """Settle the message as the block ended, unless the user did.

        If the block has raised, what settling raises is only a note of that error.

        Args:
            error: what the block has raised; `None`: it ended well.
        """
        delivery = self._delivery
        try:
            if delivery is not None and not delivery.settled:
                command, verb = self._settling(delivery, error)
                check_held((yield command).outcomes[0], verb)
                delivery.settled = True
        except BideError as failure:
            if error is None or delivery is None:
                raise
            error.add_note(f"The message {delivery.id} was not given back: {failure}")
        finally:
            self._in_use.release()

    def _settling(self, delivery: HeldT, error: BaseException | None) -> tuple[Command, str]:
        """Return the command that settles the message, and the verb for errors."""
        builder, leases = self._queue._builder, [delivery.lease]
        if error is None:
            return ack_command(builder, [delivery]), "acked"
        if isinstance(error, Exception):
            return builder.retry(leases, self._delay, reason_of(error)), "retried"
        return builder.release(leases), "released"  # an exit says nothing about the message


class Take(_Take[Delivery]):
    """One message, claimed on entering the block and settled on leaving it."""

    _held = Delivery

    def __enter__(self) -> Delivery:
        self._begin()
        try:
            delivery: Delivery | None = None
            while delivery is None:
                delivery = self._queue._execute(self._claim, self._take, wait=self._wait)
            return delivery
        except BaseException:
            self._in_use.release()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Not by `_run`: of a queue that was closed within the block it would not begin.
        run_steps(self._leave(error), self._queue._execute)


class AsyncTake(_Take[AsyncDelivery]):
    """Async form of `Take`."""

    _held = AsyncDelivery

    async def __aenter__(self) -> AsyncDelivery:
        self._begin()
        try:
            delivery: AsyncDelivery | None = None
            while delivery is None:
                delivery = await self._queue._execute(self._claim, self._take, wait=self._wait)
            return delivery
        except BaseException:
            self._in_use.release()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await arun_steps(self._leave(error), self._queue._execute)


def reason_of(error: BaseException) -> str:
    """Return an error as the reason of a failed attempt: its type and what it says."""
    cause, note = innermost(error)
    return "".join(format_exception_only(cause)).strip() + note


def innermost(error: BaseException) -> tuple[BaseException, str]:
    """Return the error to name, the first one of a group, and a note about the others."""
    if not isinstance(error, BaseExceptionGroup):
        return error, ""
    cause, count = error.exceptions[0], len(error.exceptions)
    while isinstance(cause, BaseExceptionGroup):
        count += len(cause.exceptions) - 1  # its errors are counted instead of the group
        cause = cause.exceptions[0]
    return cause, f" (in an {type(error).__name__} of {count})"
