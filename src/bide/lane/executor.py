"""Executing batches on an engine: opening it, and finding out whose fault a failure is."""

import copy
import logging
import threading
from collections.abc import Callable, Sequence

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Capabilities, Engine, Notifier, PartlyDone
from bide.lane.request import Request
from bide.model.commands import Claim, Command
from bide.model.errors import Closed, OutcomeUnknown, StoreError, StoreUnavailable
from bide.model.replies import Claimed, Reply

__all__ = ["CLOSED", "Executor", "own"]

CLOSED = "the queue is closed; open a new one to go on"

FORK_WAITS = 5.0
"""For how many seconds a fork waits for the batch under way, so as not to split it in two."""

LOGGED_DIED = 10
"""How many messages of one claim get a log line each when they die; one line counts the others."""

_log = logging.getLogger("bide.lane")

_inherited: list[Engine] = []
"""Engines of a parent process: closing them in a fork would pull them from under the parent."""


class Executor:
    """The one who touches an engine, one batch at a time.

    Args:
        open_engine: opens the store; called at the first command, and again after a fork.
        clock: given to the engine with each batch, unless it is the system's.
    """

    def __init__(self, open_engine: Callable[[], Engine], clock: Clock) -> None:
        self._open_engine = open_engine
        self._clock = clock
        self._by_store = clock is SYSTEM_CLOCK
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._waiting = False
        self._closed = False
        self._holds = False

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        with self._lock:
            return self._opened().capabilities

    @property
    def overlaps(self) -> bool:
        """Whether many commands are better executed in halves; no, before any was executed."""
        return self._engine is not None and self._engine.capabilities.overlaps

    def open(self) -> None:
        """Open the engine, if that has not been done."""
        with self._lock:
            self._opened()

    def alone(self, command: Command) -> Reply | None:
        """Execute a command in the caller's thread, if nobody else is at it; else return `None`.

        A batch that waits goes first: a thread that comes back at once would get the lock each
        time, and those who share the batch would wait for as long as that goes on. Nor does a claim
        go alone in the main thread, unless the engine recovers it: an interrupt strikes there right
        after the commit, while nobody knows yet what was claimed, and nobody would hold it until
        the lease lapses.
        """
        if (
            type(command) is Claim
            and threading.current_thread() is threading.main_thread()
            and (self._engine is None or not self._engine.capabilities.recovers)
        ):
            return None
        if self._waiting or not self._lock.acquire(blocking=False):
            return None
        try:
            engine = self._engine or self._opened()
            now = None if self._by_store else self._now(engine)
            try:
                reply = engine.execute((command,), now)[0]
            except OutcomeUnknown:
                if not command.repeatable or engine.capabilities.resends:
                    raise
                reply = engine.execute((command,), now)[0]
            if isinstance(reply, Claimed) and reply.died:
                _log_died(command, reply)
            return reply
        finally:
            self._lock.release()

    def execute(self, batch: Sequence[Request]) -> None:
        """Execute a batch: afterwards each of its requests has a reply or an error."""
        self._waiting = True
        with self._lock:
            self._waiting = False
            self._execute(batch)
        for request in batch:
            _log_died(request.command, request.reply)

    def _execute(self, batch: Sequence[Request]) -> None:
        try:
            engine = self._opened()
            replies = engine.execute([request.command for request in batch], self._now(engine))
            for request, reply in zip(batch, replies, strict=True):
                request.reply = reply
        except PartlyDone as partly:
            for request, outcome in zip(batch, partly.outcomes, strict=True):
                if isinstance(outcome, StoreError):
                    request.error = own(outcome)
                else:
                    request.reply = outcome
        except OutcomeUnknown as error:
            self._repeat(batch, error)
        except (StoreUnavailable, Closed) as error:  # it would be the same for each command
            for request in batch:
                request.error = own(error)
        except BaseException as error:  # noqa: BLE001  (it is handed to its caller)
            if len(batch) == 1:
                batch[0].error = _raisable(error)
            else:  # one of them is to blame: let only that one hear of it
                for request in batch:
                    self._execute([request])

    def _repeat(self, batch: Sequence[Request], error: OutcomeUnknown) -> None:
        """Repeat what may be done twice after a connection was lost, and report the rest."""
        for request in batch:
            if not request.command.repeatable or self._resends():
                request.error = own(error)
                continue
            try:
                engine = self._opened()
                request.reply = engine.execute([request.command], self._now(engine))[0]
            except BaseException as again:  # noqa: BLE001  (it is handed to its caller)
                request.error = _raisable(again)

    def reader(self) -> Callable[[], Engine] | None:
        """Return what opens a second engine that only reads, if this kind of store has such.

        Whoever asks is not to wait for the batch under way: they want to look meanwhile.
        """
        engine = self._engine
        if engine is None:
            with self._lock:
                engine = self._opened()
        first = engine.reader()
        if first is None:
            return None
        spare = [first]

        def open_engine() -> Engine:
            return spare.pop() if spare else engine.reader() or engine

        return open_engine

    def notifier(self) -> Notifier | None:
        """Return the engine's notifier."""
        with self._lock:
            return self._opened().notifier()

    def close(self) -> None:
        """Close the engine, for good."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    def hold(self) -> None:
        """Before a fork: let no batch be under way, or the child would inherit half of it."""
        self._holds = self._lock.acquire(timeout=FORK_WAITS)

    def let_go(self) -> None:
        """After a fork, in the parent: go on."""
        if self._holds:
            self._holds = False
            self._lock.release()

    def forked(self) -> None:
        """In the child of a fork: leave the engine to the parent, open another when needed."""
        if self._engine is not None:
            _inherited.append(self._engine)
        self._engine = None
        self._lock = threading.Lock()
        self._waiting = self._holds = False

    def _opened(self) -> Engine:
        if self._closed:
            raise Closed(CLOSED)
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine

    def _resends(self) -> bool:
        return self._engine is not None and self._engine.capabilities.resends

    def _now(self, engine: Engine) -> int | None:
        if self._by_store or not engine.capabilities.caller_time:
            return None
        return self._clock.now()


def own(error: Exception) -> Exception:
    """Return a copy of an error, for each of several callers to raise on a stack of its own."""
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine


def _raisable(error: BaseException) -> Exception:
    """Return an error as one that every caller can raise and catch."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = StoreError(f"the engine broke off with {error!r}; this is a bug in it")
    wrapped.__cause__ = error
    return wrapped


def _log_died(command: Command, reply: Reply | None) -> None:
    """Log what a claim made dead letters; other replies are ignored."""
    if not isinstance(reply, Claimed) or not reply.died:
        return
    queue = command.queue
    for one in reply.died[:LOGGED_DIED]:
        _log.error(
            "%s of %s, attempt %d: it is dead now: its lease expired; %s held it last",
            one.id, queue, one.attempts, one.holder,
            extra={
                "queue": queue, "id": one.id, "attempt": one.attempts, "outcome": "dead",
                "holder": one.holder,
            },
        )  # fmt: skip
    if (more := len(reply.died) - LOGGED_DIED) > 0:
        _log.error(
            "%s: %d more messages are dead now, because their leases expired", queue, more,
            extra={"queue": queue, "outcome": "dead", "count": more},
        )  # fmt: skip
