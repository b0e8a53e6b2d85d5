"""A request: the command of a caller, and how to wake the caller."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Self

import msgspec

from bide.model.commands import Claim, Command, Lease, Retry
from bide.model.replies import Claimed, Reply

__all__ = ["FOREVER", "AsyncRequest", "BlockingRequest", "ReleaseRequest", "Request", "wakes_of"]


FOREVER = float("inf")
"""The wait of a claim that ends only with messages."""

HEAR_INTERRUPTS = 1.0
"""How often, in seconds, a blocked thread checks for an interrupt."""


class Request(msgspec.Struct, eq=False):
    """A command of one caller.

    Args:
        command: the command.
        owner: the queue object of the caller; closing it ends its waiting claims.
        deadline: for a claim that waits: the end of the wait, by the lane's monotonic clock.
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
        """Whether it is a claim that may wait for due messages."""
        return self.deadline is not None

    @property
    def empty(self) -> bool:
        """Whether its claim got nothing; with `FOREVER`, also dead messages are something."""
        reply = self.reply
        if not isinstance(reply, Claimed) or reply.messages:
            return False
        return not (reply.died and self.deadline == FOREVER)

    @property
    def gone(self) -> bool:
        """Whether the caller no longer waits for the reply."""
        return self.abandoned

    def settle(self) -> bool:
        """Wake the caller; return whether it still waits."""
        return True

    def release(self) -> "ReleaseRequest | None":
        """Return the request that releases the messages of the claim, if it got any."""
        reply = self.reply
        if not isinstance(self.command, Claim) or not isinstance(reply, Claimed):
            return None
        leases = [Lease(message.id, reply.token, message.secret) for message in reply.messages]
        back = ReleaseRequest(Retry(self.command.queue, leases, release=True))
        return back if leases else None


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class BlockingRequest(Request, eq=False):
    """A command of a thread that blocks until it is settled."""

    # A lock costs a third of an event, and each put waits for one.
    done: threading.Lock = msgspec.field(default_factory=_taken)

    def settle(self) -> bool:
        """Wake the thread."""
        self.done.release()
        return True

    def wait(self) -> None:
        """Block until the request is settled."""
        # With a timeout: an interrupt just before the wait would else be noticed only after it.
        while not self.done.acquire(timeout=HEAR_INTERRUPTS):
            pass


class ReleaseRequest(Request, eq=False):
    """A command without a caller: it returns messages to the queue."""


class AsyncRequest(Request, eq=False, kw_only=True):
    """A command of a task on an event loop."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Reply]

    @classmethod
    def of(cls, command: Command, owner: object = None, deadline: float | None = None) -> Self:
        """Return a request of the current task."""
        loop = asyncio.get_running_loop()
        return cls(command, owner, deadline, loop=loop, future=loop.create_future())

    def settle(self) -> bool:
        """Wake the task, on its loop; return whether it still waits."""
        if self.future.done():
            return False
        if self.error is not None:
            self.future.set_exception(self.error)
        elif self.reply is not None:
            self.future.set_result(self.reply)
        return True

    @property
    def gone(self) -> bool:
        """Whether the task was cancelled, or its event loop was closed under it."""
        return self.future.done() or self.loop.is_closed()


def wakes_of(requests: Sequence[Request]) -> dict[str, int]:
    """Return when messages can be claimed that could not before, by queue."""
    wakes: dict[str, int] = {}
    for request in requests:
        wake = getattr(request.reply, "wake", None)
        if wake is not None:
            queue = request.command.queue
            if queue not in wakes or wake < wakes[queue]:
                wakes[queue] = wake
    return wakes
