"""Execute batches on an engine: open it, survive a fork, and find the command that failed.

If a reply may be lost on its way, each command that changes something has an identity: the number
of its batch, and its place. After a lost connection the commands are repeated with these, once, and
the store executes only what it has not executed before: see `bide.engines.repetition`.
"""

import copy
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Capabilities, Engine, Identity, LeavesBeforeFork, PartlyDone
from bide.lane.inbox import LaneRequest
from bide.logs import logger, wait_while
from bide.model import errors
from bide.model.commands import Command
from bide.model.forks import in_child
from bide.model.replies import Claimed, Died, Reply

E = TypeVar("E", bound=BaseException)

command_of, identity_of = attrgetter("command"), attrgetter("identity")
"""Return the command, and the identity, of a request."""

CLOSED = "the queue is closed; open a new one to go on"

OCCUPIED = (
    "the queue is used by a finalizer, a handler of logging or a signal handler in a thread that "
    "executes a command; set a flag there or raise an exception, and use the queue after it"
)

FORK_WAITS = 5.0
"""How many seconds a fork waits for running batches, so that the child does not inherit half."""

LOGGED_DIED = 10
"""The number of dead messages of one claim that are logged; one more line counts the others."""

_log = logger("bide.lane")

EXECUTORS: "weakref.WeakSet[Executor]" = weakref.WeakSet()
"""All of this process: `before_fork` prepares them, `is_occupied` asks them."""

OWN_THREADS: set[int] = set()
"""The identifiers of the threads that execute the batches of lanes."""

in_child(OWN_THREADS.clear)  # its threads may get the identifiers of those of its parent

_making = threading.RLock()
"""Held while an executor is made, and by a thread that forks: none appears for which the fork has
not waited."""

_inherited: list[Engine] = []
"""Engines of the parent process: a child that closed them would break the parent's."""


class Executor:
    """Executes batches on an engine, one at a time.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: its time is passed to the engine with each batch, unless it is the system's.
    """

    def __init__(self, open_engine: Callable[[], Engine], clock: Clock) -> None:
        self._open_engine = open_engine
        self.clock = clock
        self._store_has_the_time = clock is SYSTEM_CLOCK
        self.bound_runs: Callable[[str, list[Command]], list[Command]] | None = None
        """Bounds what runs leave in a queue whose next ones a claim plans; `None`: nothing does."""
        self._engine: Engine | None = None
        self._closed = False
        self._reset()
        with _making:
            EXECUTORS.add(self)

    def _reset(self) -> None:
        """Begin without a running batch: at first, and again in the child of a fork."""
        # Held while the engine executes. It is an `RLock` because that knows its thread; nothing
        # enters it twice.
        self._lock = threading.RLock()
        self._batch_waits = False
        """Whether a batch waits for the lock: single commands let it go first."""
        self._fork_holder: int | None = None
        """The identifier of the thread whose `before_fork` has taken the lock."""
        self._sender = f"lane:{secrets.token_hex(12)}"  # a child of a fork is another one
        self._last_number = 0
        """The number of the last batch; see `Identity`."""

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do. An event loop may ask: it does not wait for a running batch."""
        return (self._engine or self.open()).capabilities

    def open(self) -> Engine:
        """Open the engine, if that has not been done."""
        if (engine := self._engine) is not None:
            return engine
        refuse_to_wait()
        with self._lock:
            return self._opened()

    def execute(self, batch: Sequence[LaneRequest]) -> None:
        """Open the engine if needed, and execute a batch on it.

        Afterwards each of its requests has a reply or an error.
        """
        self._batch_waits = True
        with self._lock:
            self._batch_waits = False
            try:
                engine = self._engine or self._opened()  # closing the lane takes it away
                identities = self._identities(engine, batch)
            except BaseException as error:  # noqa: BLE001  (it is handed to the callers)
                for request in batch:
                    request.error = _raisable(copied(error))
                return
            self._execute(engine, batch, identities)
            for request in batch:
                if isinstance(request.reply, Claimed):
                    request.reply = self._planned(engine, request.command, request.reply)
        for request in batch:
            if isinstance(request.reply, Claimed) and request.reply.died:
                log_died(request.command, request.reply.died)

    def _planned(self, engine: Engine, command: Command, reply: Claimed) -> Claimed:
        """Return the reply of a claim without messages whose runs are over, and plan their next.

        What cannot be planned now stays leased; after that another claim plans it.
        """
        if all(message.rule is None for message in reply.messages):
            return reply
        from bide.lane.planning import planned  # here: most messages do not repeat

        reply, commands = planned(command.queue, reply)
        if self.bound_runs is not None:
            commands = self.bound_runs(command.queue, commands)
        requests = [LaneRequest(command) for command in commands]
        for request, identity in zip(requests, self._identities(engine, requests), strict=True):
            self._execute(engine, [request], [identity])  # the next ones need those before
            if request.error is not None:
                _log.warning(
                    "%s: messages that repeat or have a local date were not planned: %s",
                    command.queue,
                    request.error,
                )
                break
        return reply

    def _execute(
        self,
        engine: Engine,
        batch: Sequence[LaneRequest],
        identities: Sequence[Identity | None],
        *,
        repeated: bool = False,
    ) -> None:
        """Execute a batch; afterwards each of its requests has a reply or an error.

        Args:
            engine: executes it.
            batch: of one or more requests.
            identities: one for each request.
            repeated: whether the batch was sent before, and perhaps executed.
        """
        try:
            replies = self._ask(engine, list(map(command_of, batch)), identities)
            for request, reply in zip(batch, replies, strict=True):
                request.reply = reply
        except PartlyDone as partly:
            for request, outcome in zip(batch, partly.outcomes, strict=True):
                if isinstance(outcome, errors.BideError):
                    request.error = self._final(outcome, request.command, repeated=repeated)
                else:
                    request.reply = outcome
        except errors.OutcomeUnknown as unknown:
            self._repeat(engine, batch, identities, unknown, repeated=repeated)
        except (errors.StoreUnavailable, errors.Closed) as error:  # each would fail the same way
            for request in batch:
                request.error = self._final(error, request.command, repeated=repeated)
        except BaseException as error:  # noqa: BLE001  (it is handed to its caller)
            if not isinstance(error, Exception):  # nobody knows when it struck
                for request in batch:
                    request.error = interrupted(error)
            elif len(batch) == 1:
                raisable = _raisable(error)
                batch[0].error = self._final(raisable, batch[0].command, repeated=repeated)
            else:  # execute them one by one, so that only the faulty caller gets the error
                for request, identity in zip(batch, identities, strict=True):
                    self._execute(engine, [request], [identity], repeated=repeated)

    def _repeat(
        self,
        engine: Engine,
        batch: Sequence[LaneRequest],
        identities: Sequence[Identity | None],
        unknown: errors.OutcomeUnknown,
        *,
        repeated: bool,
    ) -> None:
        """Send commands once more whose outcome is unknown; give up those that may not be repeated.

        Args:
            engine: the engine.
            batch: the requests of the commands.
            identities: one for each request.
            unknown: the error of the first try, which becomes that of requests that are given up.
            repeated: whether this was a repetition already: then all are given up.
        """
        again: list[LaneRequest] = []
        again_identities: list[Identity | None] = []
        for request, identity in zip(batch, identities, strict=True):
            if repeated or not self.may_repeat(engine, request.command, identity):
                request.error = copied(unknown)
            else:
                again.append(request)
                again_identities.append(as_repeated(identity))
        if again:
            self._execute(engine, again, again_identities, repeated=True)

    @staticmethod
    def may_repeat(engine: Engine, command: Command, identity: Identity | None) -> bool:
        """Tell whether the answer of a command is true if the command is sent once more."""
        if engine.capabilities.resends:  # the engine has repeated it
            return False
        return identity is not None or command.only_reads or command.repeatable

    def _ask(
        self, engine: Engine, commands: Sequence[Command], identities: Sequence[Identity | None]
    ) -> list[Reply]:
        """Have the engine execute commands, at the time of a test's clock if it takes one."""
        now = None
        if not self._store_has_the_time and engine.capabilities.caller_time:
            now = self.clock.now()
        if any(identities):
            return engine.execute(commands, now, identities)
        return engine.execute(commands, now)

    def _identities(self, engine: Engine, batch: Sequence[LaneRequest]) -> list[Identity | None]:
        """Return the identity of each request: its own, or the next number of this sender."""
        capabilities = engine.capabilities
        if not (capabilities.remembers and capabilities.loses_replies):
            return list(map(identity_of, batch))
        self._last_number += 1
        return [
            request.identity or self._identity(request.command, place)
            for place, request in enumerate(batch)
        ]

    def _identity(self, command: Command, place: int) -> Identity | None:
        """Return the identity of a command of the current batch; reads have none."""
        return None if command.only_reads else Identity(self._sender, self._last_number, place)

    @staticmethod
    def _final(error: Exception, command: Command, *, repeated: bool) -> Exception:
        """Return an error for one caller; of a repetition it cannot say that nothing was done."""
        if not repeated or command.only_reads or isinstance(error, errors.OutcomeUnknown):
            return copied(error)
        unknown = errors.OutcomeUnknown(
            f"the connection was lost after the command was sent, and it may have been carried out "
            f"or not; sent again, it failed: {error}"
        )
        unknown.__cause__ = error
        return unknown

    def refuse_reentry(self) -> None:
        """Refuse what comes from a signal handler or a finalizer that interrupts the engine.

        Raises:
            WrongContext: this thread executes a command, so it would wait for itself for ever.
        """
        if self._is_entered():
            raise errors.WrongContext(OCCUPIED)

    def _is_entered(self) -> bool:
        """Return whether this thread executes a batch."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def close(self) -> None:
        """Close the engine. No command can follow."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    def before_fork(self, deadline: float) -> None:
        """Before a fork: wait for the running batch, else the child would inherit half of it.

        Args:
            deadline: when the fork waits no longer, by the monotonic clock.
        """
        timeout = max(0.0, deadline - time.monotonic())
        if self._is_entered() or not self._lock.acquire(timeout=timeout):
            return
        self._fork_holder = threading.get_ident()
        if isinstance(self._engine, LeavesBeforeFork):
            self._engine.leave()

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent: continue, unless another thread that forks has the lock."""
        if self._fork_holder == threading.get_ident():
            self._fork_holder = None
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """In the child of a fork: forget the parent's engine; the next command opens another."""
        if self._engine is not None:
            _inherited.append(self._engine)
        self._engine = None
        self._reset()

    def _opened(self) -> Engine:
        """Return the engine, opened if it was not. The caller holds the lock."""
        if self._closed:
            raise errors.Closed(CLOSED)
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine


def is_occupied() -> bool:
    """Return whether others wait for this thread: it is a lane's own, executes a command or forks.

    Then it runs a signal handler, a finalizer or a handler of `logging`, and may wait for no lane:
    each of two such threads would wait for the other.
    """
    return (
        threading.get_ident() in OWN_THREADS
        or _making._is_owned()  # type: ignore[attr-defined]
        or any(map(Executor._is_entered, executors()))
    )


def executors() -> "list[Executor]":
    """Return all executors of this process, also while other threads make some."""
    while True:
        try:
            return list(EXECUTORS)
        except RuntimeError:  # the set has changed under the loop: look at it again
            continue


wait_while(is_occupied)


def before_fork() -> None:
    """Before a fork: wait for the running batches, and let no other thread make an executor."""
    deadline = time.monotonic() + FORK_WAITS
    _making.acquire(timeout=FORK_WAITS)  # else another fork waits for a long command
    for executor in executors():
        executor.before_fork(deadline)


def after_fork_in_parent() -> None:
    """After a fork, in the parent: continue."""
    for executor in executors():
        executor.after_fork_in_parent()
    try:  # not `suppress`: an interrupt at its call would leave the lock taken
        _making.release()
    except RuntimeError:  # it was not taken
        pass


@in_child
def _after_fork_in_child() -> None:
    global _making
    _making = threading.RLock()
    for executor in executors():
        executor.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=before_fork, after_in_parent=after_fork_in_parent)


def refuse_to_wait() -> None:
    """Refuse what would wait for a lane in a thread for which others wait.

    Raises:
        WrongContext: this thread is occupied.
    """
    if is_occupied():
        raise errors.WrongContext(OCCUPIED)


def as_repeated(identity: Identity | None) -> Identity | None:
    """Return the identity of a command that is sent once more."""
    return None if identity is None else msgspec.structs.replace(identity, repeated=True)


def copied(error: E) -> E:
    """Return a copy of an error: each caller raises its own, with its own traceback."""
    error_copy = copy.copy(error)
    error_copy.__cause__ = error.__cause__
    return error_copy


def interrupted(error: BaseException) -> errors.OutcomeUnknown:
    """Return the error of a command whose thread was interrupted."""
    unknown = errors.OutcomeUnknown(
        f"the thread that executes commands was interrupted by {error!r}, and the command may have "
        "been carried out or not"
    )
    unknown.__cause__ = error
    return unknown


def _raisable(error: BaseException) -> Exception:
    """Return an error as an `Exception`, which every caller can raise and catch."""
    if not isinstance(error, Exception):
        return interrupted(error)
    if not isinstance(error, StopIteration):
        return error
    wrapped = errors.StoreError(
        f"the engine raised {error!r}; this is a bug in the engine: report it"
    )
    wrapped.__cause__ = error
    return wrapped


def log_died(command: Command, died: Sequence[Died]) -> None:
    """Log the messages that a claim made dead letters."""
    queue = command.queue
    for message in died[:LOGGED_DIED]:
        _log.error(
            "%s of %s, attempt %d: it is dead now: its lease expired; %s held it last",
            message.id,
            queue,
            message.attempts,
            message.holder,
            extra={
                "queue": queue,
                "id": message.id,
                "attempt": message.attempts,
                "outcome": "dead",
                "holder": message.holder,
            },
        )
    if (more := len(died) - LOGGED_DIED) > 0:
        _log.error(
            "%s: %d more messages are dead now, because their leases expired",
            queue,
            more,
            extra={"queue": queue, "outcome": "dead", "count": more},
        )
