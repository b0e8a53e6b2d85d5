"""The lane: many callers, one engine, one batch at a time.

Threads and tasks submit commands. One thread takes all that are there (it never waits for more),
has the engine execute them as one batch, and settles all callers together. So a hundred callers
share one commit, and an event loop is woken once per batch. A caller that is alone executes in its
own thread. (Group commit: DeWitt et al., "Implementation Techniques for Main Memory Database
Systems", 1984.)

A signal handler, a finalizer or a handler of `logging` may use the lane anywhere. In a thread that
executes a command, and in the lane's own, no call waits: it is executed at once or refused.
"""

import _thread
import asyncio
import os
import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, overload

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Engine, Identity
from bide.lane.executor import (
    CLOSED,
    as_repeated,
    is_occupied,
    log_died,
    refuse_to_wait,
)
from bide.lane.inbox import (
    AsyncRequest,
    BlockingRequest,
    LaneRequest,
    is_empty,
    is_to_ask_again,
    last_of,
)
from bide.lane.lane_thread import LaneThread
from bide.logs import waiting_lines, write_lines
from bide.model import forks
from bide.model.commands import Claim, Command, RetryCommand
from bide.model.errors import BideError, Closed, OutcomeUnknown
from bide.model.replies import Claimed, Reply
from bide.threads import in_thread

GREENLETS = not isinstance(_thread.start_new_thread, BuiltinFunctionType)
"""Whether gevent or eventlet makes greenlets of threads."""


def is_interruptible() -> bool:
    """Whether exceptions of others may end a call of this thread.

    Those of signal handlers come in the main thread, time-outs in each greenlet that waits.
    """
    return GREENLETS or threading.current_thread() is threading.main_thread()


class Lane(LaneThread):
    """Lets threads and tasks share one engine.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: measures waits. The store's clock decides what is due, except in tests.
    """

    def __init__(self, open_engine: Callable[[], Engine], clock: Clock = SYSTEM_CLOCK) -> None:
        self.users: list[None] = []
        """One element for each user: see `bide.lane.shared`. A list changes in one step."""
        self.stands_in = False
        """Whether a test uses it instead of the lanes to all stores."""
        self._reads: Lane | None = None
        """The lane for reads: itself if there is no other; `None`: not opened yet."""
        super().__init__(open_engine, clock)

    def _reset(self) -> None:
        """Begin without a thread and without a waiting caller."""
        super()._reset()
        self._reads = self if self._reads is self else None

    @overload
    def call(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        *,
        identity: Identity | None = None,
    ) -> Reply: ...
    @overload
    def call(
        self,
        command: Command,
        owner: object,
        wait: float | None,
        result_of: Callable[[Any], Any] | None,
    ) -> Any: ...
    def call(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        result_of: Callable[[Any], Any] | None = None,
        *,
        identity: Identity | None = None,
    ) -> Any:
        """Execute a command, and block until its reply is there; return that.

        A claim that does not wait asks again while all that it finds goes back, unless it has an
        `identity`: then the other process does, with another one. If an exception strikes before
        this returns, what a claim has brought is released.

        Args:
            command: the command.
            owner: the queue object that calls; see `release`.
            wait: for a claim: how many seconds it waits; `FOREVER` ends when messages died, too.
            result_of: makes of the reply what this returns.
            identity: of the command, if another process sent it and may send it again.

        Raises:
            StoreError: the command was not executed.
            Closed: the lane was closed.
            WrongContext: it would have to wait, in a thread for which others wait.
        """
        if os.getpid() != forks.process:
            forks.notice_fork()
        if command.only_reads and (reads := self._reader()) is not self:
            return reads.call(command, owner, None, result_of)
        reply: Reply | None = None
        replies: list[Claimed] = []
        try:
            try:
                while True:
                    reply = self._execute_now(command, identity)
                    if reply is None or (wait and is_empty(command, reply)):
                        deadline = None if wait is None else self.clock.monotonic() + wait
                        request = BlockingRequest(command, owner, deadline, identity)
                        reply = self._submit_and_wait(request)
                    if type(reply) is not Claimed:
                        break
                    replies.append(reply)
                    if wait or identity is not None or not is_to_ask_again(command, replies):
                        reply = last_of(replies)
                        break
                return reply if result_of is None else result_of(reply)
            finally:
                if waiting_lines:
                    write_lines()
        except BaseException:
            self._take_back(command, reply)
            raise

    def _execute_now(self, command: Command, identity: Identity | None) -> Reply | None:
        """Execute a command in the caller's thread, if the engine is free; else return `None`.

        What waits in the inbox goes first, and so does a waiting batch, else a thread with many
        commands gets the lock each time. A claim runs where it may be interrupted only if the
        engine recovers it after an interrupt.
        """
        if self._inbox.requests and not is_occupied():
            return None
        engine = self._engine
        # Asked here too, because a call would cost each command time.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self.refuse_reentry()
        is_claim = type(command) is Claim
        recovers = engine is not None and engine.capabilities.recovers
        if is_claim and not recovers and is_interruptible():
            return None
        reply = None  # until the engine has answered
        try:
            try:  # an interrupt may come as soon as the lock is taken
                if self._batch_waits or not self._lock.acquire(blocking=False):
                    return None
                engine = self._engine or self._opened()  # closing the lane takes it away
                reply = self._execute_alone(engine, command, identity)
                if is_claim and isinstance(reply, Claimed):
                    reply = self._planned(engine, command, reply)
            finally:
                try:  # not `suppress`: an interrupt at its call would leave the lock taken
                    self._lock.release()
                except RuntimeError:  # it was not taken
                    pass
            if isinstance(reply, Claimed) and reply.died:
                log_died(command, reply.died)
            if self._listeners or self._waiting.queues:
                self._hint_all([(command, reply)])
            return reply
        except BaseException as error:
            if is_claim and not isinstance(error, BideError):
                self._recover(command, reply)
            raise

    def _execute_alone(self, engine: Engine, command: Command, identity: Identity | None) -> Reply:
        """Execute one command; once more if its reply was lost and its answer can still be told."""
        capabilities = engine.capabilities
        if capabilities.remembers and capabilities.loses_replies and identity is None:
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

    def _submit_and_wait(self, request: BlockingRequest) -> Reply:
        """Let the lane's thread execute a command, and block until its reply is there."""
        refuse_to_wait()
        try:
            while self._inbox.full and not self._closing:
                self._inbox.wait_for_space()
            if self._closing:
                raise Closed(CLOSED)
            self._inbox.add(request)
            request.wait(self._worker)
        except BaseException:  # an interrupt: no caller takes what the claim brings
            request.abandoned = True
            self._notes.append((self._abandon, request))
            self._signal.set()
            raise
        if request.error is not None:
            raise request.error
        assert request.reply is not None
        return request.reply

    @overload
    async def acall(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        *,
        identity: Identity | None = None,
        in_order: bool = False,
    ) -> Reply: ...
    @overload
    async def acall(
        self,
        command: Command,
        owner: object,
        wait: float | None,
        result_of: Callable[[Any], Any] | None,
    ) -> Any: ...
    async def acall(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        result_of: Callable[[Any], Any] | None = None,
        *,
        identity: Identity | None = None,
        in_order: bool = False,
    ) -> Any:
        """Execute a command; the async form of `call`.

        With `in_order` a read waits for the commands that were submitted before it, and a claim is
        executed once: both are of a batch, whose sender asks again itself. If the caller is
        cancelled, its command still runs; but a claim is left out, or returns its messages.
        """
        if os.getpid() != forks.process:
            forks.notice_fork()
        if command.only_reads and not in_order:
            if (reads := self._reads) is None:
                # In a thread: opening a file or a connection would block the event loop.
                reads = await in_thread(self._reader)
            if reads is not self:
                return await reads.acall(command, owner, None, result_of)
        deadline = None if wait is None else self.clock.monotonic() + wait
        reply: Reply | None = None
        replies: list[Claimed] = []
        try:
            try:
                while True:
                    reply = await self._acall_once(command, owner, deadline, identity)
                    if type(reply) is not Claimed:
                        break
                    replies.append(reply)
                    is_of_batch = in_order or identity is not None
                    if wait or is_of_batch or not is_to_ask_again(command, replies):
                        reply = last_of(replies)
                        break
                return reply if result_of is None else result_of(reply)
            finally:
                if waiting_lines:
                    write_lines()
        except BaseException:
            self._take_back(command, reply)
            raise

    async def _acall_once(
        self,
        command: Command,
        owner: object,
        deadline: float | None,
        identity: Identity | None,
    ) -> Reply:
        """Let the lane's thread execute a command, and return its reply."""
        loop = asyncio.get_running_loop()
        request = AsyncRequest(
            command, owner, deadline, identity, loop=loop, future=loop.create_future()
        )
        try:
            while self._inbox.full and not self._closing:
                await self._inbox.wait_on(loop)
            if self._closing:
                raise Closed(CLOSED)
            self._inbox.add(request)
            return await request.future
        except BaseException:
            request.abandoned = True
            future = request.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give_back(request)  # the reply has come together with the cancellation
            self._notes.append((self._withdraw, request))
            self._signal.set()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done before something is due."""
        has_work = self._inbox or self._notes or self._signal.is_set()
        return not has_work and (self._rests or not self._worker.was_started)

    def release(self, owner: object) -> None:
        """Settle the waiting claims of an owner: its queue object is closed."""
        self._notes.append((self._release, owner))
        self._signal.set()

    def listen(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener` with every hint, of this process and of others, in any thread.

        Its arguments are those of `hint`: a queue, and a time in Unix milliseconds.
        """
        self._listeners = (*self._listeners, listener)
        self._listen()

    def overhear(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener` with every hint, in any thread; the lane's thread begins to listen."""
        self._listeners = (*self._listeners, listener)
        self._worker.ensure()
        self._notes.append((self._listen_for, listener))
        self._signal.set()

    def _listen_for(self, listener: Callable[[str, int], None]) -> None:
        """Begin to listen for a listener, in the lane's thread, unless it was removed meanwhile."""
        if listener in self._listeners and not self._closing:
            self._listen()

    def stop_listening(self, listener: Callable[[str, int], None]) -> None:
        """Call a listener no more."""
        self._listeners = tuple(other for other in self._listeners if other != listener)

    def close(self) -> None:
        """Refuse new commands, execute those submitted, settle waiting claims, close the store.

        Raises:
            WrongContext: it would have to wait, in a thread for which others wait.
        """
        refuse_to_wait()
        self._closing = True
        self._signal.set()
        self._inbox.wake_callers(all_of_them=True)
        self._worker.join()
        self._ended = True
        if (notifier := self._notifier) is not None:
            notifier.close()
            self._hint_thread.join()  # unless a listener closes the lane
        with self._opening:
            reads = self._reads
        if reads is not None and reads is not self:
            reads.close()
        super().close()

    def _recover(self, claim: Command, reply: Reply | None) -> None:
        """After an interrupt, release what a claim has leased.

        Without its reply the engine does that, as soon as it executes another command.
        """
        any_command = LaneRequest(RetryCommand(claim.queue, [], release=True))
        if not self._ended:
            self._inbox.add(LaneRequest(claim, reply=reply).release() or any_command)

    def _take_back(self, command: Command, reply: Reply | None) -> None:
        """Release what a claim has brought, since its caller does not get it."""
        if isinstance(reply, Claimed) and reply.messages:
            self._recover(command, reply)

    def _reader(self) -> "Lane":
        """Return the lane on which reads do not wait for writers; itself if there is none."""
        if self._reads is None:
            refuse_to_wait()
            with self._opening:
                if self._reads is None:
                    self._reads = self.reading_lane() or self
        return self._reads

    def reading_lane(self) -> "Lane | None":
        """Return a new lane for reads that make no others wait, if this kind of store has such."""
        engine = self.open()
        reads = Lane(lambda: engine.reader() or engine, self.clock)
        reads._reads = reads
        with reads._lock:  # a fork waits for it
            reads._engine = engine.reader()  # closing the lane closes the reader
        return reads if reads._engine is not None else None
