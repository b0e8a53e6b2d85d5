"""The lane: many callers, one engine, one batch at a time.

Threads and tasks hand in commands; one thread of the lane's takes what has gathered (it never
lingers to gather more), has the engine execute it as one batch, and settles all callers together.
So a hundred callers share one commit, and an event loop is woken once a batch. A caller who is
alone executes in its own thread, without the hop. (Group commit, as in DeWitt et al.,
"Implementation Techniques for Main Memory Database Systems", 1984.)
"""

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Capabilities, Engine
from bide.lane.executor import Executor, own
from bide.lane.parked import Parked
from bide.lane.ticket import AsyncTicket, Ticket, Unattended, claimed_by
from bide.lane.wakeups import Wakeups
from bide.model.commands import Claim, Command, Lease, Retry
from bide.model.errors import Closed
from bide.model.replies import Claimed, Outcomes, Reply, Settings

__all__ = ["Lane"]

MAX_COMMANDS = 1_000
MAX_WEIGHT = 20_000
"""How many commands, and how many messages, one batch holds at most."""

INBOX = 10_000
"""How many commands wait for their turn at most; whoever brings more waits to hand them in."""

CLOSED = "the queue is closed; open a new one to go on"

_lanes: "weakref.WeakSet[Lane]" = weakref.WeakSet()


class Lane:
    """Lets threads and tasks share one engine.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: what waits are measured by; the store's own clock decides what is due, unless this
            is not the system's clock and the engine goes by its caller's.
        inbox: how many commands may wait for their turn.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        clock: Clock = SYSTEM_CLOCK,
        *,
        inbox: int = INBOX,
        reads: bool = False,
    ) -> None:
        self._executor = Executor(open_engine, clock)
        self._clock = clock
        self._limit = inbox
        self._only_reads = reads
        self._closing = False
        self._fresh()
        _lanes.add(self)

    def _fresh(self) -> None:
        """Begin without a thread and without a waiting caller."""
        guard = threading.RLock()
        self._reads_lock = threading.Lock()
        self._changed = threading.Condition(guard)
        self._space = threading.Condition(guard)
        self._inbox: deque[Ticket] = deque()
        self._tasks_for_space: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]
        self._tasks_for_space = deque()
        self._parked = Parked()
        self._thread: threading.Thread | None = None
        self._wakeups: Wakeups | None = None
        self._reads: Lane | None = None

    @property
    def clock(self) -> Clock:
        """The clock that waits are measured by."""
        return self._clock

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do; opens the store if that has not been done."""
        return self._executor.capabilities

    # What callers do.

    def call(self, command: Command, owner: object = None, wait: float | None = None) -> Reply:
        """Have a command carried out, and block until that is done.

        Args:
            command: what is to be done.
            owner: on whose behalf; see `release`.
            wait: for a claim: for how many seconds to wait for a message; `None`: not at all.

        Raises:
            StoreError: it was not carried out.
            Closed: the lane was closed.
        """
        if command.only_reads and (reads := self._reader()) is not None:
            return reads.call(command, owner)
        if self._closing:
            raise Closed(CLOSED)
        if not self._inbox and (reply := self._executor.alone(command)) is not None:
            self._announce((command,), (reply,))
            if not self._would_wait(reply, wait):
                return reply
        ticket = Ticket(command, owner, self._deadline(wait))
        with self._changed:
            while len(self._inbox) >= self._limit and not self._closing:
                self._space.wait()
            self._submit(ticket)
        return self._await(ticket)

    async def acall(
        self, command: Command, owner: object = None, wait: float | None = None
    ) -> Reply:
        """Have a command carried out; the async form of `call`.

        Cancelling the caller takes no command back that is on its way, but what a claim brings then
        goes back to the queue at once.
        """
        if command.only_reads and self._reads not in (None, self):
            return await self._reads.acall(command, owner)
        ticket = AsyncTicket(command, owner, self._deadline(wait))
        while not self._hand_in(ticket):
            await self._room(ticket.loop)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            # It may have been settled in the very moment in which the caller was cancelled.
            if not ticket.future.cancelled() and ticket.future.exception() is None:
                self._give_back(ticket)
            raise

    def release(self, owner: object) -> None:
        """Settle the claims that wait on behalf of an owner: the queue they wait for is closed."""
        with self._changed:
            tickets = self._parked.owned(owner, self._clock.monotonic())
        self._fail(tickets, Closed("the queue was closed while this claim was waiting"))

    def close(self) -> None:
        """Refuse new commands, carry out those handed in, settle what waits, close the store."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._space.notify_all()
            while self._tasks_for_space:
                _call_on(self._tasks_for_space[0][0], _free, self._tasks_for_space.popleft()[1])
            thread, reads, wakeups = self._thread, self._reads, self._wakeups
            tickets = self._parked.owned(None, self._clock.monotonic())
        self._fail(tickets, Closed("the queue was closed while this claim was waiting"))
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if wakeups is not None:
            wakeups.stop()
        if reads is not None and reads is not self:
            reads.close()
        self._executor.close()

    # Handing in.

    def _submit(self, ticket: Ticket) -> None:
        if self._closing:
            raise Closed(CLOSED)
        if ticket.waits:
            self._parked.enter(ticket)
        self._inbox.append(ticket)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bide-lane", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _hand_in(self, ticket: Ticket) -> bool:
        with self._changed:
            if len(self._inbox) >= self._limit and not self._closing:
                return False
            self._submit(ticket)
            return True

    async def _room(self, loop: asyncio.AbstractEventLoop) -> None:
        room: asyncio.Future[None] = loop.create_future()
        with self._changed:
            self._tasks_for_space.append((loop, room))
        await room

    def _await(self, ticket: Ticket) -> Reply:
        try:
            ticket.wait()
        except BaseException:  # an interrupt: nobody is going to look at what a claim brings
            with self._changed:
                ticket.abandoned = True
            self._give_back(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.reply is not None
        return ticket.reply

    def _deadline(self, wait: float | None) -> float | None:
        return None if wait is None else self._clock.monotonic() + wait

    def _would_wait(self, reply: Reply, wait: float | None) -> bool:
        return wait is not None and wait > 0 and isinstance(reply, Claimed) and not reply.messages

    def _reader(self) -> "Lane | None":
        """Return the lane beside this one on which reads do not wait for writers."""
        if self._only_reads:
            return None
        if self._reads is None:
            with self._reads_lock:
                if self._reads is None:
                    open_engine = self._executor.reader()
                    self._reads = (
                        Lane(open_engine, self._clock, inbox=self._limit, reads=True)
                        if open_engine is not None
                        else self
                    )
        return self._reads if self._reads is not self else None

    # Executing.

    def _run(self) -> None:
        """Execute what gathers, and sleep exactly until something is due."""
        while True:
            with self._changed:
                batch, over = self._gather()
            for ticket in over:
                ticket.reply = Claimed([], 0, self._clock.now())
            self._settle(over)
            if batch:
                self._executor.execute(batch)
                self._after(batch)
                if self._reads is None and any(ticket.command.only_reads for ticket in batch):
                    self._reader()  # here, since opening it would stop an event loop
            elif not over:
                return

    def _gather(self) -> tuple[list[Ticket], list[Ticket]]:
        """Wait for work; return the claims and commands to execute, and the claims to give up."""
        while True:
            now = self._clock.monotonic()
            over = self._parked.overdue(now)
            self._inbox.extend(self._parked.due(now))
            if self._inbox or over or self._closing:
                return self._take(), over
            moment = self._parked.next_moment()
            self._clock.wait(self._changed, None if moment is None else moment - now)

    def _take(self) -> list[Ticket]:
        batch: list[Ticket] = []
        weight = 0
        while self._inbox and len(batch) < MAX_COMMANDS and weight < MAX_WEIGHT:
            ticket = self._inbox.popleft()
            weight += ticket.command.weight
            batch.append(ticket)
        if batch:
            self._space.notify_all()
            for _ in range(min(len(self._tasks_for_space), len(batch))):
                loop, room = self._tasks_for_space.popleft()
                _call_on(loop, _free, room)
        return batch

    # Settling.

    def _after(self, batch: Sequence[Ticket]) -> None:
        """Tell who waits of what has changed, park the claims that got nothing, settle the rest."""
        self._announce([ticket.command for ticket in batch], [ticket.reply for ticket in batch])
        settled: list[Ticket] = []
        with self._changed:
            now = self._clock.monotonic()
            for ticket in batch:
                if not ticket.waits:
                    settled.append(ticket)
                elif self._keeps_waiting(ticket, now):
                    reply = ticket.reply
                    assert isinstance(reply, Claimed)
                    wake = None if reply.next is None else now + reply.next / 1000
                    self._parked.park(ticket, wake, now)
                    ticket.reply = None
                else:
                    if self._closing and claimed_by(ticket) is None and ticket.error is None:
                        ticket.error = Closed(CLOSED)
                    self._parked.leave(ticket, now, asked=True)
                    settled.append(ticket)
            if self._parked and self._wakeups is None:
                self._wakeups = Wakeups(self._executor.doorbell(), self.hint)
        self._settle(settled)

    def _keeps_waiting(self, ticket: Ticket, now: float) -> bool:
        if ticket.error is not None or ticket.abandoned or self._closing:
            return False
        if isinstance(ticket, AsyncTicket) and ticket.future.done():
            return False
        assert ticket.deadline is not None
        return claimed_by(ticket) is None and ticket.deadline > now

    def _announce(self, commands: Sequence[Command], replies: Sequence[Reply | None]) -> None:
        """Let everybody know who waits for what these commands have made claimable."""
        wakes: dict[str, int] = {}
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, (Outcomes, Settings)) and reply.wake is not None:
                wakes[command.queue] = min(reply.wake, wakes.get(command.queue, reply.wake))
        if not wakes:
            return
        for queue, wake in wakes.items():
            self.hint(queue, wake)
            self._executor.ring(queue, wake)

    def hint(self, queue: str, wake: int) -> None:
        """Something in a queue can be claimed from a moment on (Unix milliseconds)."""
        if not self._parked.interested(queue):
            return
        with self._changed:
            seconds = (wake - self._clock.now()) / 1000
            if self._parked.hint(queue, self._clock.monotonic() + max(0.0, seconds)):
                self._changed.notify()

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        """Let callers go on: threads one by one, tasks with one wake-up of their loop."""
        loops: dict[asyncio.AbstractEventLoop, list[AsyncTicket]] = {}
        for ticket in tickets:
            if isinstance(ticket, AsyncTicket):
                loops.setdefault(ticket.loop, []).append(ticket)
                continue
            with self._changed:
                abandoned = ticket.abandoned
                ticket.settle()
            if abandoned:
                self._give_back(ticket)
        for loop, group in loops.items():
            if not _call_on(loop, self._deliver, group):
                for ticket in group:
                    self._give_back(ticket)

    def _deliver(self, tickets: Sequence[AsyncTicket]) -> None:
        for ticket in tickets:
            if not ticket.deliver():
                self._give_back(ticket)

    def _give_back(self, ticket: Ticket) -> None:
        """Hand back at once what a claim brought for somebody who has gone."""
        claimed = claimed_by(ticket)
        if claimed is None or not isinstance(ticket.command, Claim):
            return
        leases = [Lease(message.id, claimed.token) for message in claimed.messages]
        back = Unattended(Retry(ticket.command.queue, leases, release=True))
        ticket.reply = None
        with self._changed:
            if self._closing and self._thread is None:
                return  # they lapse
            self._closing, closing = False, self._closing
            try:
                self._submit(back)
            finally:
                self._closing = closing

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        for ticket in tickets:
            ticket.error = own(error)
        self._settle(tickets)

    def _forked(self) -> None:
        """In the child of a fork: begin anew; the parent's connection and thread stay its own."""
        self._executor.forked()
        self._fresh()


def _call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
) -> bool:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the loop was closed, and whoever ran on it is gone
        return False
    return True


def _free(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _begin_anew() -> None:
    for lane in list(_lanes):
        lane._forked()


os.register_at_fork(after_in_child=_begin_anew)
