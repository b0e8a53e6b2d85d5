"""A request: one command of one caller, and the caller who waits for its reply."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Self

import msgspec

from bide.model.commands import Claim, Command, Lease, Retry
from bide.model.replies import Claimed, Reply

__all__ = [
    "FOREVER", "AsyncRequest", "BlockingRequest", "Request", "Unattended", "deliver", "giving_back",
    "wakes_of",
]  # fmt: skip


FOREVER = float("inf")
"""The wait of a claim that ends only with messages."""

HEAR_INTERRUPTS = 1.0
"""How often, in seconds, a thread that blocks looks whether it was interrupted."""


class Request(msgspec.Struct, eq=False):
    """A command of one caller.

    Args:
        command: what is to be done.
        owner: on whose behalf; closing a queue settles the requests that wait for it.
        deadline: for a claim that waits: until when, by the lane's monotonic clock.
    """

    command: Command
    owner: object = None
    deadline: float | None = None
    reply: Reply | None = None
    error: BaseException | None = None
    abandoned: bool = False
    """Whether its caller was interrupted."""
    entered: bool = False
    settled: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the task that waits for it."""

    @property
    def waits(self) -> bool:
        """Whether it is a claim that may wait for messages to fall due."""
        return self.deadline is not None

    @property
    def empty(self) -> bool:
        """Whether its claim got nothing; one that waits for ever also ends when messages died."""
        reply = self.reply
        if not isinstance(reply, Claimed) or reply.messages:
            return False
        return not (reply.died and self.deadline == FOREVER)

    @property
    def gone(self) -> bool:
        """Whether nobody will look at the reply."""
        return self.abandoned

    def settle(self) -> None:
        """Let the caller go on."""


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class BlockingRequest(Request, eq=False):
    """A command of a thread that blocks until it is settled."""

    # A bare lock: a third of what an event costs, and a put waits on one.
    done: threading.Lock = msgspec.field(default_factory=_taken)

    def settle(self) -> None:
        """Let the caller go on."""
        self.done.release()

    def wait(self) -> None:
        """Block until the request is settled."""
        # Not for ever at once: an interrupt in the moment of falling asleep would go unheard.
        while not self.done.acquire(timeout=HEAR_INTERRUPTS):
            pass


class Unattended(Request, eq=False):
    """A command that nobody waits for: messages that are given back."""


class AsyncRequest(Request, eq=False, kw_only=True):
    """A command of a task on an event loop."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Reply]

    @classmethod
    def of(cls, command: Command, owner: object = None, deadline: float | None = None) -> Self:
        """Return a request of the task that is running."""
        loop = asyncio.get_running_loop()
        return cls(command, owner, deadline, loop=loop, future=loop.create_future())

    @property
    def gone(self) -> bool:
        """Whether the task was cancelled, or its event loop was closed under it."""
        return self.future.done() or self.loop.is_closed()


def deliver(requests: Sequence[AsyncRequest]) -> list[AsyncRequest]:
    """On their loop: let tasks go on; return the requests for which nobody waits any more."""
    left: list[AsyncRequest] = []
    for request in requests:
        future = request.future
        if future.done():
            left.append(request)
        elif request.error is not None:
            future.set_exception(request.error)
        elif request.reply is not None:
            future.set_result(request.reply)
    return left


def giving_back(request: Request) -> Unattended | None:
    """Return what gives back the messages that a request's claim brought, if it brought any."""
    reply = request.reply
    if not isinstance(request.command, Claim) or not isinstance(reply, Claimed):
        return None
    leases = [Lease(message.id, reply.token, message.secret) for message in reply.messages]
    back = Unattended(Retry(request.command.queue, leases, release=True))
    return back if leases else None


def wakes_of(requests: Sequence[Request]) -> dict[str, int]:
    """Return from when on something can be claimed that could not before, by queue."""
    wakes: dict[str, int] = {}
    for request in requests:
        wake = getattr(request.reply, "wake", None)
        if wake is not None:
            queue = request.command.queue
            if queue not in wakes or wake < wakes[queue]:
                wakes[queue] = wake
    return wakes
