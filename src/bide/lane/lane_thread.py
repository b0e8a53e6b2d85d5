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
from bide.model.errors import Closed, StoreError
from bide.model.replies import Reply
from bide.threads import Background

_log = logger("bide.lane")

WAITED = "the queue was closed while this claim was waiting"


class LaneThread(Executor):
    """Executes what waits in an inbox, in a thread of its own.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: measures waits. The store's clock decides what is due, except in tests.
    """

    def __init__(self, open_engine: Callable[[], Engine], clock: Clock) -> None:
        self._closing = self._ended = False
        self._released: weakref.WeakSet[object] = weakref.WeakSet()
        super().__init__(open_engine, clock)

    def _fresh(self) -> None:
        """Begin without a thread and without a waiting caller."""
        super()._fresh()
        self._signal = Signal()
        self._inbox = Inbox(self._signal)
        self._waiting = WaitingClaims()
        self._notes: deque[tuple[Callable[[Any], object], Any]] = deque()
        """What the lane's thread is to call, with an argument, before its next batch."""
        self._worker = Background("bide-lane", self._run)
        self._rests = False  # whether the lane's thread waits for its signal
        self._opening = threading.RLock()  # of a second engine or a notifier
        self._notifier: Notifier | None = None
        self._hearing = Background("bide-notifier", self._hear)
        self._listens: bool | None = None  # `False`: the last attempt to listen failed
        self._listeners: tuple[Callable[[str, int], None], ...] = ()

    @property
    def notifications_lost(self) -> bool:
        """Whether other processes cannot wake the claims that wait here: these poll instead."""
        if self._listens is False:
            return True
        notifier = self._notifier if self._listens else None
        return notifier is not None and not notifier.is_listening

    def _submit(self, request: LaneRequest) -> None:
        """Add a command to the inbox."""
        self._worker.ensure()  # first: starting it may fail
        self._inbox.add(request)

    # What only the lane's thread does.

    def _run(self) -> None:
        """Execute what is submitted, and sleep exactly until something is due."""
        OWN_THREADS.add(threading.get_ident())
        try:
            self._resume()
            while True:
                batch, over = self._gather()
                if not batch and not over:
                    self._ended = True
                    return
                for request in over:
                    request.give_up(self.clock.now())
                self._settle(over)
                if batch:
                    self._work(batch)
        finally:
            OWN_THREADS.discard(threading.get_ident())

    def _resume(self) -> None:
        """After the death of a thread, go on with what it had at hand."""
        batch, waiting = self._inbox.batch, self._waiting.entered
        unsettled = [request for request in batch if not request.settled]
        for request in unsettled:
            if request.error is None and request.reply is None:
                request.error = interrupted(RuntimeError("the death of its thread"))
        self._settle(unsettled)
        self._waiting = WaitingClaims()
        for request in list(waiting):
            if not request.settled:  # it was not at hand: it asks again
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
            now = self.clock.monotonic()
            if self._closing:
                self._fail(self._waiting.owned(None, now), Closed(WAITED))
            # A claim whose time ends now asks once more, if it is its turn.
            self._inbox.requests.extend(self._waiting.due(now))  # without regard to the limit
            over = self._waiting.overdue(now)
            taken = self._inbox.take()
            for request in taken:
                if request.deadline is not None and not request.entered:
                    self._waiting.enter(request)
            batch = self._waiting.wanted(taken, now)
            if batch or over or (self._closing and not self._inbox):
                return batch, over
            if not taken:
                self._rests = True
                self.clock.wait(self._signal, self._waiting.next_moment())
                self._rests = False

    def _abandon(self, request: LaneRequest) -> None:
        """Forget a command whose caller was interrupted; return what a claim has got."""
        self._withdraw(request)
        if request.settled:
            self._give_back(request)

    def _withdraw(self, request: LaneRequest) -> None:
        """Stop the wait of a claim whose caller has gone."""
        self._waiting.withdraw(request, self.clock.monotonic())

    def _release(self, owner: object) -> None:
        """Settle the waiting claims of an owner, and those that ask now when they have asked."""
        self._released.add(owner)
        requests = self._waiting.owned(owner, self.clock.monotonic())
        self._fail(requests, Closed(WAITED))

    def _work(self, batch: Sequence[LaneRequest]) -> None:
        """Execute a batch and settle it. Whatever fails, each caller gets a reply or an error."""
        waits = any(request.deadline is not None for request in batch)
        try:
            if waits:
                self._listen()
            self.execute(batch)
            self._hint_all([(request.command, request.reply) for request in batch])
            self._settle(self._keep_waiting(batch) if waits else batch)
        except BaseException as error:  # noqa: BLE001  (it is handed to the callers)
            unsettled = [request for request in batch if not request.settled]
            now = self.clock.monotonic()
            for request in unsettled:
                if request.entered and not self._waiting.withdraw(request, now):
                    self._waiting.leave(request, now, asked=True)
                if request.reply is None and request.error is None:
                    request.error = StoreError(f"the lane failed with {error!r}; report it")
                    request.error.__cause__ = error
            self._settle(unsettled)

    def _keep_waiting(self, batch: Sequence[LaneRequest]) -> list[LaneRequest]:
        """Let claims without messages continue to wait; return the requests to settle."""
        now, settled = self.clock.monotonic(), []
        for request in batch:
            closed = self._closing or request.owner in self._released
            waits = request.deadline is not None
            if not waits or not self._waiting.has_asked(request, now, closed=closed):
                settled.append(request)
                if waits and request.empty and closed:
                    request.error = Closed(WAITED)
        return settled

    def _settle(self, requests: Sequence[LaneRequest]) -> None:
        """Wake callers: threads one by one, tasks with one wake-up of their loop."""
        loops: defaultdict[asyncio.AbstractEventLoop, list[AsyncRequest]] = defaultdict(list)
        for request in requests:
            request.settled = True
            if isinstance(request.command, Claim) and request.gone:
                self._give_back(request)  # at once: the lane may end before a loop looks
            elif isinstance(request, AsyncRequest):
                loops[request.loop].append(request)
            else:
                request.settle()
        for loop, group in loops.items():
            if not call_on(loop, self._deliver, group):
                for request in group:
                    self._give_back(request)

    def _fail(self, requests: Sequence[LaneRequest], error: Exception) -> None:
        for request in requests:
            request.error = copied(error)
        self._settle(requests)

    # What any thread does.

    def _deliver(self, requests: Sequence[AsyncRequest]) -> None:
        for request in requests:
            if not request.settle():
                self._give_back(request)

    def _give_back(self, request: LaneRequest) -> None:
        """Return at once the messages of a claim whose caller has gone."""
        if back := request.release():
            request.reply = None
            if not self._ended:  # else their leases expire
                self._submit(back)

    def _hint_all(self, done: Sequence[tuple[Command, Reply | None]]) -> None:
        """Note which messages can be claimed, and have ended, now that commands are executed."""
        for queue, wake in wakes(done, ends=self._waiting.watchers > 0).items():
            self.hint(queue, wake)

    def hint(self, queue: str, wake: int) -> None:
        """Note the time (Unix milliseconds) from which a queue can be claimed."""
        for listener in self._listeners:
            listener(queue, wake)
        if queue not in self._waiting.queues:
            return
        moment = self.clock.monotonic() + max(0.0, self.clock.until(wake))
        if not self._waiting.asks_by(queue, moment):
            self._notes.append((self._hinted, (queue, moment)))
            self._signal.set()

    def _hinted(self, hint: tuple[str, float]) -> None:
        self._waiting.hint(*hint)

    def _listen(self) -> None:
        """Listen to other processes, before a claim that may wait asks; if not already done."""
        if self._listens and (self._notifier is None or self._hearing.was_started):
            return
        with self._opening:
            if self._listens and (self._notifier is None or self._hearing.was_started):
                return
            try:
                with self._lock:
                    self._notifier = self._opened().notifier()
                self._listens = True  # before the thread starts, which may end at once
                if self._notifier is not None:
                    self._hearing.ensure()
            except Exception as error:  # noqa: BLE001  (claims work without hints)
                _log.log(
                    logging.WARNING if self._listens is None else logging.DEBUG,
                    "cannot listen for changes by other processes (%s); waiting claims look every "
                    "%g s instead, and each tries again to listen",
                    error,
                    LOOK_AGAIN,
                )
                self._listens, self._notifier = False, None

    def _hear(self) -> None:
        """Pass on the hints of other processes, until the notifier is closed."""
        while (notifier := self._notifier) is not None and not self._closing:
            self._listens = True
            try:
                while hints := notifier.listen():
                    for queue, wake in hints:
                        self.hint(queue, wake)
            finally:
                self._listens = None  # the next claim that waits listens again
            if self._closing or not self._listeners:
                return
            self._listen()
