"""What the thread of a lane does: it executes what was submitted, and settles the callers.

Only this thread changes what waits. All others note for it what is to be done, in one step of the
interpreter: a signal handler or finalizer that comes between two steps finds nothing half done.
"""

import asyncio
import logging
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from bide.clock import Clock, Signal
from bide.engines.port import Engine, Notifier
from bide.lane.executor import OWN_THREADS, Executor, copied, interrupted
from bide.lane.inbox import AsyncRequest, Inbox, LaneRequest, call_on, wakes
from bide.lane.waiting_claims import LOOK_AGAIN, WaitingClaims
from bide.logs import logger
from bide.model.commands import Claim, Command
from bide.model.errors import Closed
from bide.model.replies import Reply
from bide.threads import Background

_log = logger("bide.lane")

CLOSED_WAITING = "the queue was closed while this claim was waiting"


class LaneThread(Executor):
    """Executes what waits in an inbox, in a thread of its own.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: measures waits. The store's clock decides what is due, except in tests.
    """

    def __init__(self, open_engine: Callable[[], Engine], clock: Clock) -> None:
        self._closing = False
        """Whether it refuses new commands: it is being closed."""
        self._ended = False
        """Whether its thread has executed its last command, or will never start."""
        self._released: weakref.WeakSet[object] = weakref.WeakSet()
        """Owners whose claims no longer wait: they were closed."""
        super().__init__(open_engine, clock)

    def _reset(self) -> None:
        """Begin without a thread and without a waiting caller: also in a child, after a fork."""
        super()._reset()
        self._signal = Signal()  # wakes the lane's thread
        self._worker = Background("bide-lane", self._run)
        self._inbox = Inbox(self._signal, self._worker)
        self._waiting = WaitingClaims()
        self._notes: deque[tuple[Callable[[Any], object], Any]] = deque()
        """What the lane's thread is to call, with an argument, before its next batch."""
        self._rests = False  # whether the lane's thread waits for its signal
        self._opening = threading.RLock()  # held while a second engine or a notifier is opened
        self._notifier: Notifier | None = None
        self._hint_thread = Background("bide-notifier", self._hear)
        self._hears: bool | None = None
        """Whether the lane hears hints of other processes. `None`: it has not tried, or has
        stopped; `False`: the last attempt failed."""
        self._listeners: tuple[Callable[[str, int], None], ...] = ()
        """Called with each hint: see `hint`."""

    @property
    def notifications_lost(self) -> bool:
        """Whether other processes cannot wake the claims that wait here: these poll instead."""
        if self._hears is False:
            return True
        notifier = self._notifier if self._hears else None
        # Without a notifier, no other process can use this store.
        return notifier is not None and not notifier.is_listening

    # What only the lane's thread does.

    def _run(self) -> None:
        """Execute what is submitted, and sleep exactly until something is due."""
        OWN_THREADS.add(threading.get_ident())
        try:
            self._resume()
            while True:
                batch, overdue = self._gather()
                if not batch and not overdue:
                    self._ended = True
                    return
                if overdue:
                    for request in overdue:
                        request.give_up(self.clock.now())
                    self._settle(overdue)
                if batch:
                    self._work(batch)
        finally:
            OWN_THREADS.discard(threading.get_ident())

    def _resume(self) -> None:
        """After the death of a thread, settle its last batch; the other waiting claims ask again.

        The thread may have died between any two steps: nothing it has noted of claims is trusted.
        """
        unsettled = [request for request in self._inbox.batch if not request.settled]
        for request in unsettled:
            if request.error is None and request.reply is None:
                request.error = interrupted(RuntimeError("the death of its thread"))
        self._settle(unsettled)
        earlier_claims = list(self._waiting.entered)
        self._waiting = WaitingClaims()
        for request in earlier_claims:
            if not request.settled:
                request.entered, request.last = False, None
                self._inbox.requests.append(request)

    def _gather(self) -> tuple[list[LaneRequest], list[LaneRequest]]:
        """Wait for work; return the commands to execute, and the claims whose time is over.

        Both are empty when the lane is closing and nothing is left to do.
        """
        while True:
            while self._notes:
                step, argument = self._notes.popleft()
                step(argument)
            now, waiting = self.clock.monotonic(), self._waiting
            overdue: list[LaneRequest] = []
            if waiting.entered:
                if self._closing:
                    self._fail(waiting.owned(None, now), Closed(CLOSED_WAITING))
                # Before `overdue`: a claim whose time ends now asks once more, if it is its turn.
                self._inbox.requests.extend(waiting.due(now))  # without regard to the limit
                overdue = waiting.overdue(now)
            taken = self._inbox.take()
            if not (taken or overdue or self._closing):
                self._rests = True
                self.clock.wait(self._signal, waiting.next_moment() if waiting.entered else None)
                self._rests = False
                continue
            batch = waiting.wanted(taken, now)
            if batch or overdue or (self._closing and not self._inbox):
                return batch, overdue

    def _abandon(self, request: LaneRequest) -> None:
        """Forget a command whose caller was interrupted; release what a claim has got."""
        self._withdraw(request)
        if request.settled:  # else `_settle` releases it
            self._give_back(request)

    def _withdraw(self, request: LaneRequest) -> None:
        """Stop the wait of a claim whose caller has gone."""
        self._waiting.withdraw(request, self.clock.monotonic())

    def _release(self, owner: object) -> None:
        """Settle the waiting claims of an owner, and those that ask now when they have asked."""
        self._released.add(owner)
        requests = self._waiting.owned(owner, self.clock.monotonic())
        self._fail(requests, Closed(CLOSED_WAITING))

    def _work(self, batch: Sequence[LaneRequest]) -> None:
        """Execute a batch and settle it. Whatever fails, each caller gets a reply or an error."""
        some_wait = False
        for request in batch:
            some_wait = some_wait or request.deadline is not None
        try:
            if some_wait:  # before they ask: no change after their answer is missed
                self._listen()
            self.execute(batch)
            if self._listeners or self._waiting.queues:
                self._hint_all([(request.command, request.reply) for request in batch])
            self._settle(self._keep_waiting(batch) if some_wait else batch)
        except BaseException as error:  # noqa: BLE001  (it is handed to the callers)
            unsettled = [request for request in batch if not request.settled]
            now = self.clock.monotonic()
            for request in unsettled:
                # It may wait already, or count as one that asks.
                if request.entered and not self._waiting.withdraw(request, now):
                    self._waiting.leave(request, now, asked=True)
                if request.reply is None and request.error is None:
                    request.error = interrupted(error)
            self._settle(unsettled)

    def _keep_waiting(self, batch: Sequence[LaneRequest]) -> list[LaneRequest]:
        """Let claims without messages continue to wait; return the requests to settle."""
        now, to_settle = self.clock.monotonic(), []
        for request in batch:
            closed = self._closing or request.owner in self._released
            may_wait = request.deadline is not None
            if not may_wait or not self._waiting.continues(request, now, closed=closed):
                to_settle.append(request)
                if may_wait and request.empty and closed:
                    request.error = Closed(CLOSED_WAITING)
        return to_settle

    def _settle(self, requests: Sequence[LaneRequest]) -> None:
        """Wake callers: threads one by one, tasks with one wake-up of their loop."""
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[AsyncRequest]] = defaultdict(list)
        for request in requests:
            request.settled = True
            if isinstance(request.command, Claim) and request.gone:
                self._give_back(request)  # at once: the lane may end before a loop looks
            elif isinstance(request, AsyncRequest):
                by_loop[request.loop].append(request)
            else:
                request.settle()
        for loop, requests_of_loop in by_loop.items():
            if not call_on(loop, self._deliver, requests_of_loop):  # the loop was closed
                for request in requests_of_loop:
                    self._give_back(request)

    def _fail(self, requests: Sequence[LaneRequest], error: Exception) -> None:
        """Settle requests with an error, of which each gets a copy."""
        for request in requests:
            request.error = copied(error)
        self._settle(requests)

    # What any thread does.

    def _deliver(self, requests: Sequence[AsyncRequest]) -> None:
        """Wake the tasks of one event loop, on that loop."""
        for request in requests:
            if not request.settle():
                self._give_back(request)

    def _give_back(self, request: LaneRequest) -> None:
        """Release at once the messages of a claim whose caller has gone."""
        if release := request.release():
            request.reply = None  # so that they are released once
            if not self._ended:  # else their leases expire
                self._inbox.add(release)

    def _hint_all(self, executed: Sequence[tuple[Command, Reply | None]]) -> None:
        """Note which messages can be claimed, and have ended, now that commands are executed."""
        for name, wake in wakes(executed, ends=self._waiting.watchers > 0).items():
            self.hint(name, wake)

    def hint(self, name: str, wake: int) -> None:
        """Note the time (Unix milliseconds) from which a claim can get something.

        Args:
            name: of a queue, or of a message whose end is awaited (see `LaneRequest.awaits`).
            wake: the time.
        """
        for listener in self._listeners:
            listener(name, wake)
        if name not in self._waiting.queues:
            return
        moment = self.clock.monotonic() + max(0.0, self.clock.until(wake))
        if not self._waiting.asks_by(name, moment):
            self._notes.append((self._note_hint, (name, moment)))
            self._signal.set()

    def _note_hint(self, hint: tuple[str, float]) -> None:
        """Note a hint, in the lane's thread: a name, and a time by the monotonic clock."""
        self._waiting.hint(*hint)

    def _listen(self) -> None:
        """Listen to other processes, before a claim that may wait asks; if not already done."""
        if self._hears and (self._notifier is None or self._hint_thread.was_started):
            return
        with self._opening:
            if self._hears and (self._notifier is None or self._hint_thread.was_started):
                return
            try:
                with self._lock:
                    self._notifier = self._opened().notifier()
                self._hears = True  # before the thread starts, which may end at once
                if self._notifier is not None:
                    self._hint_thread.ensure()
            except Exception as error:  # noqa: BLE001  (claims work without hints)
                _log.log(
                    logging.WARNING if self._hears is None else logging.DEBUG,
                    "cannot listen for changes by other processes (%s); waiting claims look every "
                    "%g s instead, and each tries again to listen",
                    error,
                    LOOK_AGAIN,
                )
                self._hears, self._notifier = False, None

    def _hear(self) -> None:
        """Pass on the hints of other processes, until the notifier is closed."""
        while (notifier := self._notifier) is not None and not self._closing:
            self._hears = True
            try:
                while hints := notifier.listen():
                    for name, wake in hints:
                        self.hint(name, wake)
            finally:
                self._hears = None  # the next claim that waits listens again
            if self._closing or not self._listeners:
                return
            self._listen()  # listeners need every hint, also while no claim waits
