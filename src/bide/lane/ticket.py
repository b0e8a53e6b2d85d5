"""A ticket: one command of one caller, and the caller who waits for its reply."""

import asyncio
import threading
from collections.abc import Sequence

from bide.model.commands import Claim, Command, Lease, Retry
from bide.model.replies import Claimed, Outcomes, Reply, Settings

__all__ = ["AsyncTicket", "BlockingTicket", "Ticket", "Unattended", "giving_back", "wakes_of"]


HEAR_INTERRUPTS = 1.0
"""How often, in seconds, a thread that blocks looks whether it was interrupted."""


class Ticket:
    """A command of one caller.

    Args:
        command: what is to be done.
        owner: on whose behalf; closing a queue settles the tickets that wait for it.
        deadline: for a claim that waits: until when, by the lane's monotonic clock.
    """

    __slots__ = (
        "abandoned", "command", "deadline", "error", "owner", "parkable", "reply", "settled",
        "waits",
    )  # fmt: skip

    def __init__(
        self, command: Command, owner: object = None, deadline: float | None = None
    ) -> None:
        self.command = command
        self.owner = owner
        self.deadline = deadline
        self.waits = deadline is not None
        """Whether it is a claim that may wait for messages to fall due."""
        self.reply: Reply | None = None
        self.error: BaseException | None = None
        self.abandoned = False
        """Whether its caller was interrupted."""
        self.parkable = False
        self.settled = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the task that waits for it."""
        return None

    @property
    def gone(self) -> bool:
        """Whether nobody will look at the reply."""
        return self.abandoned

    def settle(self) -> None:
        """Let the caller go on."""


class BlockingTicket(Ticket):
    """A command of a thread that blocks until it is settled."""

    __slots__ = ("_done",)

    def __init__(
        self, command: Command, owner: object = None, deadline: float | None = None
    ) -> None:
        super().__init__(command, owner, deadline)
        # A bare lock: a third of what an event costs, and a put waits on one.
        self._done = threading.Lock()
        self._done.acquire()

    def settle(self) -> None:
        """Let the caller go on."""
        self._done.release()

    def wait(self) -> None:
        """Block until the ticket is settled."""
        # Not for ever at once: an interrupt in the moment of falling asleep would go unheard.
        while not self._done.acquire(timeout=HEAR_INTERRUPTS):
            pass


class Unattended(Ticket):
    """A command that nobody waits for: messages that are given back."""

    __slots__ = ()


class AsyncTicket(Ticket):
    """A command of a task on an event loop."""

    __slots__ = ("_loop", "future")

    def __init__(
        self, command: Command, owner: object = None, deadline: float | None = None
    ) -> None:
        super().__init__(command, owner, deadline)
        self._loop = loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Reply] = loop.create_future()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the task that waits for it."""
        return self._loop

    @property
    def gone(self) -> bool:
        """Whether the task was cancelled, or its event loop was closed under it."""
        return self.future.done() or self.loop.is_closed()

    def deliver(self) -> bool:
        """On the loop: settle the future; return whether anybody still waits for it."""
        if self.future.done():
            return False
        if self.error is not None:
            self.future.set_exception(self.error)
        elif self.reply is not None:
            self.future.set_result(self.reply)
        return True


def giving_back(ticket: Ticket) -> Unattended | None:
    """Return what gives back the messages that a ticket's claim brought, if it brought any."""
    reply = ticket.reply
    if not isinstance(ticket.command, Claim) or not isinstance(reply, Claimed):
        return None
    leases = [Lease(message.id, reply.token) for message in reply.messages]
    back = Unattended(Retry(ticket.command.queue, leases, release=True))
    return back if leases else None


def wakes_of(tickets: Sequence[Ticket]) -> dict[str, int]:
    """Return from when on something can be claimed that could not before, by queue."""
    wakes: dict[str, int] = {}
    for ticket in tickets:
        reply, queue = ticket.reply, ticket.command.queue
        if isinstance(reply, (Outcomes, Settings)) and reply.wake is not None:
            wakes[queue] = min(reply.wake, wakes.get(queue, reply.wake))
    return wakes
