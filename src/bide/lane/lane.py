"""The lane: many callers, one engine, one batch at a time.

Threads and tasks submit commands. One thread takes all that are there (it never waits for more),
has the engine execute them as one batch, and settles all callers together. So a hundred callers
share one commit, and an event loop is woken once per batch. A caller that is alone executes in its
own thread. (Group commit: DeWitt et al., "Implementation Techniques for Main Memory Database
Systems", 1984.)
"""

import asyncio
import logging
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Engine, Notifier
from bide.lane.executor import CLOSED, Executor, as_repeated, copied, log_died
from bide.lane.inbox import AsyncRequest, BlockingRequest, Inbox, Request, call_on, is_empty, wakes
from bide.lane.waiting_claims import LOOK_AGAIN, WaitingClaims
from bide.model import forks
from bide.model.command_identity import Identity
from bide.model.commands import Claim, Command, Retry
from bide.model.errors import BideError, Closed, OutcomeUnknown, StoreError
from bide.model.replies import Claimed, Reply

_log = logging.getLogger("bide.lane")

WAITED = "the queue was closed while this claim was waiting"


class Lane(Executor):
    """Lets threads and tasks share one engine.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: measures waits. The store's clock decides what is due, except in tests.
    """

    def __init__(self, open_engine: Callable[[], Engine], clock: Clock = SYSTEM_CLOCK) -> None:
        self.users = 0  # see `bide.lane.shared`
        self._reads: Lane | None = None
        self._closing = self._ended = False
        self._released: weakref.WeakSet[object] = weakref.WeakSet()
        super().__init__(open_engine, clock)

    def _fresh(self) -> None:
        """Begin without a thread and without a waiting caller."""
        super()._fresh()
        self._guard = guard = threading.RLock()
        self._reads_lock = threading.Lock()
        # Entered by `guard`, and all notified: an interrupt breaks its `__enter__` and `notify`.
        self._changed = threading.Condition(guard)
        self._inbox = Inbox(guard, self._changed.notify_all)
        self._waiting = WaitingClaims()
        self._thread: threading.Thread | None = None
        self._notifier: Notifier | None = None
        self._hearing: threading.Thread | None = None
        self._listens: bool | None = None  # `False`: the last attempt to listen failed
        self._reads = self if self._reads is self else None
        self._listeners: tuple[Callable[[str, int], None], ...] = ()

    def call(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        *,
        identity: Identity | None = None,
    ) -> Reply:
        """Execute a command, and block until its reply is there.

        Args:
            command: the command.
            owner: the queue object that calls; see `release`.
            wait: for a claim: how many seconds it waits; `FOREVER` ends when messages died, too.
            identity: of the command, if another process sent it and may send it again.

        Raises:
            StoreError: it was not executed.
            Closed: the lane was closed.
        """
        if os.getpid() != forks.process:
            forks.notice_fork()
        if command.only_reads and (reads := self._reader()) is not self:
            return reads.call(command, owner)
        reply = None
        if not self._inbox.requests:
            try:
                reply = self._execute_now(command, identity)
            except BaseException as error:
                if type(command) is Claim and not isinstance(error, Exception):
                    self._recover(command.queue)
                raise
        if reply is not None:
            if self._listeners or self._waiting.queues:
                self._hint_all([(command, reply)])
            if not wait or not is_empty(reply):
                return reply
        deadline = None if wait is None else self._clock.monotonic() + wait
        request = BlockingRequest(command, owner, deadline, identity)
        try:
            with self._guard:
                while self._inbox.full and not self._closing:
                    self._inbox.space.wait()
                if self._closing:
                    raise Closed(CLOSED)
                self._submit(request)
            request.wait()
        except BaseException:  # an interrupt: no caller takes what the claim brings
            request.abandoned = True
            self._withdraw(request)
            self._give_back(request)
            raise
        if request.error is not None:
            raise request.error
        assert request.reply is not None
        return request.reply

    def _execute_now(self, command: Command, identity: Identity | None) -> Reply | None:
        """Execute a command in the caller's thread, if the engine is free; else return `None`.

        A waiting batch goes first, else a thread with many commands gets the lock each time.
        A claim runs in the main thread only if the engine recovers it after an interrupt.
        """
        engine = self._engine
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self.refuse_reentry()
        in_main = type(command) is Claim and threading.current_thread() is threading.main_thread()
        if in_main and (engine is None or not engine.capabilities.recovers):
            return None
        try:  # an interrupt may come as soon as the lock is taken
            if self._batch_waits or not self._lock.acquire(blocking=False):
                return None
            engine = self._engine or self._opened()  # closing the lane takes it away
            reply = self._execute_alone(engine, command, identity)
            if isinstance(reply, Claimed):
                log_died(command, reply)
            return reply
        finally:
            try:  # not `suppress`: an interrupt at its call would leave the lock taken
                self._lock.release()
            except RuntimeError:  # it was not taken
                pass

    def _execute_alone(self, engine: Engine, command: Command, identity: Identity | None) -> Reply:
        """Execute one command; once more if its reply was lost and its answer can still be told."""
        can = engine.capabilities
        if can.remembers and can.loses_replies and identity is None:
            self._last_number += 1
            identity = self._identity(command, 0)
        try:
            return self._ask(engine, (command,), (identity,))[0]
        except OutcomeUnknown:
            if not self.may_repeat(engine, command, identity):
                raise
        try:
            return self._ask(engine, (command,), (as_repeated(identity),))[0]
        except BideError as error:
            final = self._final(error, command, repeated=True)
            raise final from final.__cause__

    async def acall(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        *,
        identity: Identity | None = None,
        in_order: bool = False,
    ) -> Reply:
        """Execute a command; the async form of `call`.

        With `in_order` a read waits for the commands that were submitted before it. If the caller
        is cancelled, its command still runs; but a claim is left out, or returns its messages.
        """
        if os.getpid() != forks.process:
            forks.notice_fork()
        if command.only_reads and not in_order:
            if (reads := self._reads) is None:
                reads = await asyncio.to_thread(self._reader)  # it opens a file
            if reads is not self:
                return await reads.acall(command, owner)
        deadline = None if wait is None else self._clock.monotonic() + wait
        loop = asyncio.get_running_loop()
        request = AsyncRequest(
            command, owner, deadline, identity, loop=loop, future=loop.create_future()
        )
        while True:
            with self._guard:
                if self._closing:
                    raise Closed(CLOSED)
                if not self._inbox.full:
                    self._submit(request)
                    break
            await self._inbox.wait_on(loop)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._withdraw(request)
            # The reply may have come together with the cancellation.
            if not request.future.cancelled() and request.future.exception() is None:
                self._give_back(request)
            raise

    def release(self, owner: object) -> None:
        """Settle the waiting claims of an owner: its queue object is closed."""
        with self._guard:
            self._released.add(owner)
            requests = self._waiting.owned(owner, self._clock.monotonic())
        self._fail(requests, Closed(WAITED))

    def listen(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener` with every hint, of this process and of others, in any thread."""
        self._listeners = (*self._listeners, listener)
        self._listen()

    def close(self) -> None:
        """Refuse new commands, execute those submitted, settle waiting claims, close the store."""
        with self._guard:
            self._closing = True
            self._changed.notify_all()
            self._inbox.wake_callers(all_of_them=True)
            thread = self._thread
            self._ended = self._ended or thread is None
            requests = self._waiting.owned(None, self._clock.monotonic())
        self._fail(requests, Closed(WAITED))
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._notifier is not None and self._hearing is not None:
            self._notifier.close()
            if self._hearing is not threading.current_thread():  # a listener may close it
                self._hearing.join()
        with self._reads_lock:
            reads = self._reads
        if reads is not None and reads is not self:
            reads.close()
        super().close()

    def _submit(self, request: Request) -> None:
        """Add a command to the inbox. The caller holds the lock."""
        if self._thread is None:  # first: starting it may fail
            thread = threading.Thread(target=self._run, name="bide-lane", daemon=True)
            thread.start()
            self._thread = thread
        self._inbox.add(request)
        if request.deadline is not None:  # last: an interrupt must leave no claim that never asks
            self._waiting.enter(request)

    def _recover(self, queue: str) -> None:
        """After an interrupt, let the engine execute a command: it releases what was claimed."""
        with self._guard:
            if not self._ended:
                self._submit(Request(Retry(queue, [], release=True)))

    def _withdraw(self, request: Request) -> None:
        """Stop the wait of a claim whose caller has gone."""
        with self._guard:
            self._waiting.withdraw(request, self._clock.monotonic())

    def _reader(self) -> "Lane":
        """Return the lane on which reads do not wait for writers; itself if there is none."""
        if self._reads is None:
            with self._reads_lock:
                if self._reads is None:
                    self._reads = self.reading_lane() or self
        return self._reads

    def reading_lane(self) -> "Lane | None":
        """Return a new lane for reads that make no others wait, if this kind of store has such."""
        engine = self.open()
        if (reader := engine.reader()) is None:
            return None
        reads = Lane(lambda: engine.reader() or engine, self._clock)
        reads._engine, reads._reads = reader, reads  # closing the lane closes the reader
        return reads

    def _run(self) -> None:
        """Execute what is submitted, and sleep exactly until something is due."""
        while True:
            with self._guard:
                batch, over = self._gather()
                if not batch and not over:
                    self._ended = True
                    return
            for request in over:
                request.give_up(self._clock.now())
            self._settle(over)
            if batch:
                self._work(batch)

    def _gather(self) -> tuple[list[Request], list[Request]]:
        """Wait for work; return the commands to execute, and the claims whose time is over.

        Both are empty when the lane is closing and nothing is left to do.
        """
        while True:
            now = self._clock.monotonic()
            # A claim whose time ends now asks once more, if it is its turn.
            self._inbox.requests.extend(self._waiting.due(now))  # without regard to the limit
            over = self._waiting.overdue(now)
            batch = self._waiting.wanted(taken := self._inbox.take(overlaps=self._overlaps), now)
            if batch or over or (self._closing and not self._inbox):
                return batch, over
            moment = now if taken else self._waiting.next_moment()
            self._clock.wait_until(self._changed, moment)

    def _work(self, batch: Sequence[Request]) -> None:
        """Execute a batch and settle it. Whatever fails, each caller gets a reply or an error."""
        waits = any(request.deadline is not None for request in batch)
        try:
            if waits and not self._listens:
                self._listen()
            self.execute(batch)
            self._hint_all([(request.command, request.reply) for request in batch])
            self._settle(self._keep_waiting(batch) if waits else batch)
        except BaseException as error:  # noqa: BLE001  (it is handed to the callers)
            unsettled = [request for request in batch if not request.settled]
            with self._guard:
                now = self._clock.monotonic()
                for request in unsettled:
                    if request.entered and not self._waiting.withdraw(request, now):
                        self._waiting.leave(request, now, asked=True)
                    if request.reply is None and request.error is None:
                        request.error = StoreError(f"the lane failed with {error!r}; report it")
                        request.error.__cause__ = error
            self._settle(unsettled)

    def _listen(self) -> None:
        """Start to listen to other processes, before a claim that may wait asks."""
        with self._reads_lock:
            if self._listens:
                return
            try:
                with self._lock:
                    self._notifier = self._opened().notifier()
                self._listens = True  # before the thread starts, which may end at once
                if self._notifier is not None:
                    self._hearing = threading.Thread(
                        target=self._hear, args=(self._notifier,), name="bide-notifier", daemon=True
                    )
                    self._hearing.start()
            except Exception as error:  # noqa: BLE001  (claims work without hints)
                _log.log(
                    logging.WARNING if self._listens is None else logging.DEBUG,
                    "cannot listen for changes by other processes (%s); waiting claims look every "
                    "%g s instead, and each tries again to listen", error, LOOK_AGAIN,
                )  # fmt: skip
                self._listens, self._notifier = False, None

    def _hear(self, notifier: Notifier) -> None:
        while hints := notifier.listen():
            for queue, wake in hints:
                self.hint(queue, wake)
        self._listens = None  # the next claim that waits listens again
        if self._listeners and not self._closing:
            self._listen()

    def _keep_waiting(self, batch: Sequence[Request]) -> list[Request]:
        """Let claims without messages continue to wait; return the requests to settle."""
        with self._guard:
            now, settled = self._clock.monotonic(), []
            for request in batch:
                closed = self._closing or request.owner in self._released
                waits = request.deadline is not None
                if not waits or not self._waiting.has_asked(request, now, closed=closed):
                    settled.append(request)
                    if waits and request.empty and closed:
                        request.error = Closed(WAITED)
            return settled

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
        with self._guard:
            seconds = max(0.0, self._clock.until(wake))
            if self._waiting.hint(queue, self._clock.monotonic() + seconds):
                self._changed.notify_all()

    def _settle(self, requests: Sequence[Request]) -> None:
        """Wake callers: threads one by one, tasks with one wake-up of their loop."""
        loops: defaultdict[asyncio.AbstractEventLoop, list[AsyncRequest]] = defaultdict(list)
        with self._guard:
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

    def _deliver(self, requests: Sequence[AsyncRequest]) -> None:
        for request in requests:
            if not request.settle():
                self._give_back(request)

    def _give_back(self, request: Request) -> None:
        """Return at once the messages of a claim whose caller has gone."""
        if back := request.release():
            request.reply = None
            with self._guard:
                if not self._ended:  # else their leases expire
                    self._submit(back)

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        for request in requests:
            request.error = copied(error)
        self._settle(requests)
