"""A request: the command of a caller, and how to wake the caller."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Self

import msgspec

from bide.lane.ends import ended, is_empty
from bide.model.commands import Claim, Command, History, Lease, Retry
from bide.model.ended import end_of
from bide.model.replies import Claimed, Ends, Reply

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
    last: Reply | None = None
    """The reply with which it began to wait."""
    entered: bool = False
    settled: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the task that waits for it."""

    @property
    def waits(self) -> bool:
        """Whether it may wait: a claim for due messages, or a read for the end of a message."""
        return self.deadline is not None

    @property
    def awaits(self) -> str:
        """Return the name of what it waits for: a queue with messages, or the end of a message."""
        command = self.command
        if isinstance(command, History):
            return end_of(command.queue, command.id)
        return command.queue

    @property
    def empty(self) -> bool:
        """Whether what it waits for is not there; with `FOREVER`, dead messages are something."""
        reply = self.reply
        died = isinstance(reply, Claimed) and reply.died and self.deadline == FOREVER
        return reply is not None and is_empty(reply) and not died

    def give_up(self, now: int) -> None:
        """Take what it got last, since its time is over."""
        self.reply = self.last if isinstance(self.last, Ends) else Claimed([], 0, now)

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


def wakes_of(requests: Sequence[Request], *, ends: bool) -> dict[str, int]:
    """Return when messages can be claimed that could not before, by queue.

    With `ends` also the names of those that have ended, with the time 0.
    """
    wakes: dict[str, int] = {}
    for request in requests:
        if ends:
            wakes.update(dict.fromkeys(ended(request.command, request.reply), 0))
        wake = getattr(request.reply, "wake", None)
        if wake is not None:
            queue = request.command.queue
            if queue not in wakes or wake < wakes[queue]:
                wakes[queue] = wake
    return wakes
