"""The lane: many callers, one engine, one batch at a time.

Threads and tasks hand in commands; one thread of the lane's takes what has gathered (it never
lingers to gather more), has the engine execute it as one batch, and settles all callers together.
A hundred callers share one commit, and an event loop is woken once a batch. A caller who is alone
executes in its own thread. (Group commit, as in DeWitt et al., "Implementation Techniques for Main
Memory Database Systems", 1984.)
"""

import asyncio
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Capabilities, Engine
from bide.lane.executor import CLOSED, Executor, own
from bide.lane.forks import follow
from bide.lane.inbox import LIMIT, Inbox, call_on
from bide.lane.parked import Parked
from bide.lane.ticket import AsyncTicket, BlockingTicket, Ticket, deliver, giving_back, wakes_of
from bide.lane.wakeups import Wakeups, listen
from bide.model.commands import Claim, Command
from bide.model.errors import Closed, StoreError
from bide.model.replies import Claimed, Outcomes, Reply, Settings

__all__ = ["Lane"]

WAITED = "the queue was closed while this claim was waiting"


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
        inbox: int = LIMIT,
        reads: bool = False,
    ) -> None:
        self._executor = Executor(open_engine, clock)
        self._clock = clock
        self._limit = inbox
        self._only_reads = reads
        self._closing = self._ended = False
        self._released: weakref.WeakSet[object] = weakref.WeakSet()
        self._fresh()
        follow(self)

    def _fresh(self) -> None:
        """Begin without a thread and without a waiting caller."""
        self._guard = guard = threading.RLock()
        self._reads_lock = threading.Lock()
        self._changed = threading.Condition(guard)
        self._inbox = Inbox(guard, self._limit, self._changed.notify)
        self._parked = Parked()
        self._thread: threading.Thread | None = None
        self._wakeups: Wakeups | None = None
        self._deaf = False  # whether the last attempt to listen failed
        self._reads: Lane | None = None
        self._listeners: tuple[Callable[[str, int], None], ...] = ()

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
        if self._closing:
            raise Closed(CLOSED)
        if command.only_reads and (reads := self._reader()) is not None:
            return reads.call(command, owner)
        if not self._inbox and (reply := self._executor.alone(command)) is not None:
            if isinstance(reply, (Outcomes, Settings)) and reply.wake is not None:
                self._tell(command.queue, reply.wake)
            if not wait or not isinstance(reply, Claimed) or reply.messages:
                return reply
        deadline = None if wait is None else self._clock.monotonic() + wait
        ticket = BlockingTicket(command, owner, deadline)
        with self._changed:
            while self._inbox.full and not self._closing:
                self._inbox.wait()
            if self._closing:
                raise Closed(CLOSED)
            self._submit(ticket)
        return self._await(ticket)

    def hand_in(self, command: Command) -> "asyncio.Future[Reply] | None":
        """Hand in a task's command, and return what brings its reply: `acall` at less cost.

        `None` where it takes more: for a claim, for what only reads, and while the inbox is full.
        """
        if type(command) is Claim or command.only_reads:
            return None
        ticket = AsyncTicket.of(command)
        return ticket.future if self._hand_in(ticket) else None

    async def acall(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        *,
        in_order: bool = False,
    ) -> Reply:
        """Have a command carried out; the async form of `call`.

        With `in_order` even a command that only reads takes its turn behind those handed in before.
        Cancelling the caller takes no command back that is on its way, but what a claim brings then
        goes back to the queue at once.
        """
        if self._closing:
            raise Closed(CLOSED)
        if command.only_reads and not self._only_reads and not in_order:
            if self._reads is None:
                await asyncio.to_thread(self._reader)  # it opens a file
            if self._reads not in (None, self):
                return await self._reads.acall(command, owner)
        deadline = None if wait is None else self._clock.monotonic() + wait
        ticket = AsyncTicket.of(command, owner, deadline)
        while not self._hand_in(ticket):
            await self._inbox.wait_on(ticket.loop)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            self._withdraw(ticket)
            # It may have been settled in the very moment in which the caller was cancelled.
            if not ticket.future.cancelled() and ticket.future.exception() is None:
                self._give_back(ticket)
            raise

    def release(self, owner: object) -> None:
        """Settle the claims that wait on behalf of an owner: the queue they wait for is closed."""
        with self._changed:
            self._released.add(owner)
            tickets = self._parked.owned(owner, self._clock.monotonic())
        self._fail(tickets, Closed(WAITED))

    def listen(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener` with every hint, of this process and of others, in whatever thread."""
        self._listeners = (*self._listeners, listener)
        self._listen()

    def close(self) -> None:
        """Refuse new commands, carry out those handed in, settle what waits, close the store."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._inbox.let_all_in()
            thread = self._thread
            self._ended = self._ended or thread is None
            tickets = self._parked.owned(None, self._clock.monotonic())
        self._fail(tickets, Closed(WAITED))
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._wakeups is not None:
            self._wakeups.stop()
        with self._reads_lock:
            reads = self._reads
        if reads is not None and reads is not self:
            reads.close()
        self._executor.close()

    def _hand_in(self, ticket: AsyncTicket) -> bool:
        """Add a task's command, if there is room for it."""
        with self._guard:
            if self._closing:
                raise Closed(CLOSED)
            if has_room := not self._inbox.full:
                self._submit(ticket)
            return has_room

    def _submit(self, ticket: Ticket) -> None:
        """Add a command; the caller of this holds the lock."""
        if self._thread is None:  # first, so that no ticket waits for a thread that cannot be
            thread = threading.Thread(target=self._run, name="bide-lane", daemon=True)
            thread.start()
            self._thread = thread
        if ticket.deadline is not None:
            self._parked.enter(ticket)
        self._inbox.add(ticket)

    def _await(self, ticket: BlockingTicket) -> Reply:
        try:
            ticket.wait()
        except BaseException:  # an interrupt: nobody is going to look at what a claim brings
            with self._changed:
                ticket.abandoned = True
            self._withdraw(ticket)
            self._give_back(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.reply is not None
        return ticket.reply

    def _withdraw(self, ticket: Ticket) -> None:
        """Let a claim wait no longer, since its caller does not."""
        with self._changed:
            self._parked.withdraw(ticket, self._clock.monotonic())

    def _reader(self) -> "Lane | None":
        """Return the lane beside this one on which reads do not wait for writers."""
        if self._only_reads:
            return None
        if self._reads is None:
            with self._reads_lock:
                if self._reads is None:
                    self._reads = self._beside() or self
        return self._reads if self._reads is not self else None

    def _beside(self) -> "Lane | None":
        open_engine = self._executor.reader()
        if open_engine is None:
            return None
        reads = Lane(open_engine, self._clock, inbox=self._limit, reads=True)
        reads._executor.open()  # now, so that closing it closes what was opened to find out
        return reads

    # Executing.

    def _run(self) -> None:
        """Execute what gathers, and sleep exactly until something is due."""
        while True:
            with self._changed:
                batch, over = self._gather()
                if not batch and not over:
                    self._ended = True
                    return
            for ticket in over:
                ticket.reply = Claimed([], 0, self._clock.now())
            self._settle(over)
            if batch:
                self._work(batch)

    def _gather(self) -> tuple[list[Ticket], list[Ticket]]:
        """Wait for work; return the claims and commands to execute, and the claims to give up.

        Both are empty when the lane is closing and nothing is left to do.
        """
        while True:
            now = self._clock.monotonic()
            # Who is to ask in the very moment its time is over asks once more.
            self._inbox.extend(self._parked.due(now))
            over = self._parked.overdue(now)
            if self._inbox or over or self._closing:
                return self._inbox.take(halves=self._executor.overlaps), over
            moment = self._parked.next_moment()
            if moment is None:
                self._clock.wait(self._changed, None)
            else:
                self._clock.wait_until(self._changed, moment)

    def _work(self, batch: Sequence[Ticket]) -> None:
        """Execute a batch and settle it. Whatever happens here, nobody is left waiting."""
        waits = any(ticket.deadline is not None for ticket in batch)
        try:
            if waits and self._wakeups is None:
                self._listen()
            self._executor.execute(batch)
            for queue, moment in wakes_of(batch).items():
                self._tell(queue, moment)
            self._settle(self._park(batch) if waits else batch)
        except BaseException as error:  # noqa: BLE001  (it is handed to the callers)
            unsettled = [ticket for ticket in batch if not ticket.settled]
            with self._changed:
                now = self._clock.monotonic()
                for ticket in unsettled:
                    if ticket.parkable and not self._parked.withdraw(ticket, now):
                        self._parked.leave(ticket, now, asked=True)
                    if ticket.reply is None and ticket.error is None:
                        ticket.error = StoreError(f"the lane failed with {error!r}; report it")
                        ticket.error.__cause__ = error
            self._settle(unsettled)

    def _listen(self) -> None:
        """Begin to hear of other processes, before the claim that is going to wait looks."""
        # A store that cannot be opened is reported by the command itself; hints can be missed.
        with self._reads_lock:
            if self._wakeups is None:
                self._wakeups = listen(self._executor.doorbell, self.hint, self._deaf)
                self._deaf = self._wakeups is None

    # Settling.

    def _park(self, batch: Sequence[Ticket]) -> list[Ticket]:
        """Park the claims that got nothing and may wait; return what is to be settled."""
        settled: list[Ticket] = []
        with self._changed:
            now = self._clock.monotonic()
            for ticket in batch:
                if not ticket.waits:
                    settled.append(ticket)
                    continue
                reply, closed = ticket.reply, self._closing or ticket.owner in self._released
                empty = isinstance(reply, Claimed) and not reply.messages
                if empty and not closed and not ticket.gone and now < (ticket.deadline or 0):
                    assert isinstance(reply, Claimed)
                    wake = None if reply.next is None else now + reply.next / 1000
                    ticket.reply = None
                    self._parked.park(ticket, wake, now)
                    continue
                if empty and closed:
                    ticket.error = Closed(WAITED)
                self._parked.leave(ticket, now, asked=True)
                settled.append(ticket)
        return settled

    def _tell(self, queue: str, wake: int) -> None:
        if self._listeners or self._parked.interested(queue):
            self.hint(queue, wake)
        self._executor.ring(queue, wake)

    def hint(self, queue: str, wake: int) -> bool:
        """Hear that a queue can be claimed from (Unix ms); return whether anybody here waits."""
        for listener in self._listeners:
            listener(queue, wake)
        if not self._parked.interested(queue):
            return False
        with self._changed:
            seconds = max(0.0, self._clock.until(wake))
            if self._parked.hint(queue, self._clock.monotonic() + seconds):
                self._changed.notify()
        return True

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        """Let callers go on: threads one by one, tasks with one wake-up of their loop."""
        loops: defaultdict[asyncio.AbstractEventLoop, list[AsyncTicket]] = defaultdict(list)
        with self._guard:
            for ticket in tickets:
                ticket.settled = True
                if isinstance(ticket, AsyncTicket):  # its loop knows whether anybody waits for it
                    loops[ticket.loop].append(ticket)
                elif ticket.gone:
                    self._give_back(ticket)
                else:
                    ticket.settle()
        for loop, group in loops.items():
            if not call_on(loop, self._deliver, group):
                for ticket in group:
                    self._give_back(ticket)

    def _deliver(self, tickets: Sequence[AsyncTicket]) -> None:
        for ticket in deliver(tickets):
            self._give_back(ticket)

    def _give_back(self, ticket: Ticket) -> None:
        """Hand back at once what a claim brought for somebody who has gone."""
        if (back := giving_back(ticket)) is None:
            return
        ticket.reply = None
        with self._changed:
            if not self._ended:  # else nobody is left to do it, and they lapse
                self._submit(back)

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        for ticket in tickets:
            ticket.error = own(error)
        self._settle(tickets)

    def before_fork(self) -> None:
        """Let no batch be under way, or the child would inherit half of it."""
        self._executor.hold()

    def after_fork(self) -> None:
        """Go on."""
        self._executor.let_go()

    def in_child(self) -> None:
        """Begin anew; the parent's connection and thread stay its own."""
        self._executor.forked()
        self._fresh()
