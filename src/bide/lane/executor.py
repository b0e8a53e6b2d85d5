"""Executing batches on an engine: opening it, and finding out whose fault a failure is."""

import copy
import threading
from collections.abc import Callable, Sequence

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Capabilities, Doorbell, Engine
from bide.lane.ticket import Ticket
from bide.model.commands import Command
from bide.model.errors import OutcomeUnknown, StoreUnavailable
from bide.model.replies import Reply

__all__ = ["Executor", "own"]

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
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        with self._lock:
            return self._opened().capabilities

    def alone(self, command: Command) -> Reply | None:
        """Execute a command in the caller's thread, if nobody else is at it; else return `None`."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            engine = self._opened()
            try:
                return engine.execute((command,), self._now(engine))[0]
            except OutcomeUnknown:
                if not command.repeatable:
                    raise
                return engine.execute((command,), self._now(engine))[0]
        finally:
            self._lock.release()

    def execute(self, batch: Sequence[Ticket]) -> None:
        """Execute a batch: afterwards each of its tickets has a reply or an error."""
        with self._lock:
            self._execute(batch)

    def _execute(self, batch: Sequence[Ticket]) -> None:
        try:
            engine = self._opened()
            replies = engine.execute([ticket.command for ticket in batch], self._now(engine))
        except OutcomeUnknown as error:
            self._repeat(batch, error)
        except StoreUnavailable as error:  # no command's fault: it would be the same for each
            for ticket in batch:
                ticket.error = own(error)
        except Exception as error:  # noqa: BLE001  (it is handed to its caller)
            if len(batch) == 1:
                batch[0].error = error
            else:  # one of them is to blame: let only that one hear of it
                for ticket in batch:
                    self._execute([ticket])
        else:
            for ticket, reply in zip(batch, replies, strict=True):
                ticket.reply = reply

    def _repeat(self, batch: Sequence[Ticket], error: OutcomeUnknown) -> None:
        """Repeat what may be done twice after a connection was lost, and report the rest."""
        for ticket in batch:
            if not ticket.command.repeatable:
                ticket.error = own(error)
                continue
            try:
                engine = self._opened()
                ticket.reply = engine.execute([ticket.command], self._now(engine))[0]
            except Exception as again:  # noqa: BLE001  (it is handed to its caller)
                ticket.error = again

    def reader(self) -> Callable[[], Engine] | None:
        """Return what opens a second engine that only reads, if this kind of store has such."""
        with self._lock:
            engine = self._opened()
            first = engine.reader()
        if first is None:
            return None
        spare = [first]

        def open_engine() -> Engine:
            return spare.pop() if spare else engine.reader() or engine

        return open_engine

    def doorbell(self) -> Doorbell | None:
        """Return the engine's doorbell."""
        with self._lock:
            return self._opened().doorbell()

    def ring(self, queue: str, wake: int) -> None:
        """Tell other processes that something in a queue can be claimed from a moment on."""
        engine = self._engine
        if engine is not None:
            engine.ring(queue, wake)

    def close(self) -> None:
        """Close the engine."""
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    def forked(self) -> None:
        """In the child of a fork: leave the engine to the parent, open another when needed."""
        if self._engine is not None:
            _inherited.append(self._engine)
        self._engine = None
        self._lock = threading.Lock()

    def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine

    def _now(self, engine: Engine) -> int | None:
        if self._clock is SYSTEM_CLOCK or not engine.capabilities.caller_time:
            return None
        return self._clock.now()


def own(error: Exception) -> Exception:
    """Return a copy of an error, for each of several callers to raise on a stack of its own."""
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine
