"""An engine that fails on demand, to test the layers above it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from bide.engines.port import Capabilities, Engine, Identities, LeavesBeforeFork, Notifier
from bide.model.commands import Command
from bide.model.replies import Reply


class EngineWrapper:
    """Does what another engine does.

    Args:
        engine: the engine that does the work. Closing this one closes it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def capabilities(self) -> Capabilities:
        """What the wrapped engine can do.

        It recovers no claim: an interrupt may come when it has returned its reply to this one.
        """
        return msgspec.structs.replace(self.engine.capabilities, recovers=False)

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute the commands."""
        if identities is None:  # an engine that remembers no commands need not take them
            return self.engine.execute(commands, now)
        return self.engine.execute(commands, now, identities)

    def reader(self) -> Engine | None:
        """Return the reader of the wrapped engine."""
        return self.engine.reader()

    def notifier(self) -> Notifier | None:
        """Return the notifier of the wrapped engine."""
        return self.engine.notifier()

    def leave(self) -> None:
        """Let the wrapped engine leave its store before a fork."""
        if isinstance(self.engine, LeavesBeforeFork):
            self.engine.leave()

    def close(self) -> None:
        """Close the wrapped engine."""
        self.engine.close()


@dataclass
class Fault:
    """One planned failure, and how often it has happened. For its fields see `FlakyEngine.fail`."""

    error: Callable[[], BaseException]
    when: Callable[[Command], bool] | None
    skip: int
    """How many batches succeed before it: counted down."""
    times: int | None
    after: bool
    struck: int = 0
    """How often it has happened."""

    def strike(self, commands: Sequence[Command]) -> BaseException | None:
        """Return the error if this batch must fail, and count that; else `None`."""
        if self.when is not None and not any(map(self.when, commands)):
            return None
        if self.times is not None and self.struck >= self.times:
            return None
        if self.skip > 0:
            self.skip -= 1
            return None
        self.struck += 1
        return self.error()


class FlakyEngine(EngineWrapper):
    """Wraps an engine: raises what `fail` planned, and blocks while it is held.

    Args:
        engine: the engine that does the work. Closing this one closes it.

    Example:
        >>> from bide.engines.memory import MemoryEngine
        >>> from bide.model.errors import OutcomeUnknown
        >>> engine = FlakyEngine(MemoryEngine())
        >>> fault = engine.fail(OutcomeUnknown("the line went dead"), after=True)
        >>> engine.execute([])
        Traceback (most recent call last):
        bide.model.errors.OutcomeUnknown: the line went dead
        >>> engine.execute([]), fault.struck
        ([], 1)
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.batches: list[list[Command]] = []
        """All batches, including the failed ones."""
        self.closed = 0
        """How often `close` was called."""
        self._faults: list[Fault] = []
        self._gate = threading.Condition()
        """Guards both below, and is notified when they change."""
        self._is_shut = False
        """Whether calls of `execute` are blocked."""
        self._blocked = 0
        """How many are."""

    @property
    def capabilities(self) -> Capabilities:
        """What the wrapped engine can do; but replies may be lost."""
        return msgspec.structs.replace(super().capabilities, loses_replies=True)

    def fail(
        self,
        error: BaseException | type[BaseException] | Callable[[], BaseException],
        *,
        when: Callable[[Command], bool] | None = None,
        skip: int = 0,
        times: int | None = 1,
        after: bool = False,
    ) -> Fault:
        """Plan a failure. If several match a batch, the first one planned is raised.

        Args:
            error: what is raised: an exception, its class, or a function that makes one.
            when: only a batch with a command for which this is true fails; any batch by default.
            skip: the number of such batches that succeed first: 2 makes the third one fail.
            times: the number of batches that fail; `None`: all.
            after: execute the batch and lose its replies, instead of not executing it.

        Returns:
            The fault; its `struck` counts the failures.
        """
        make_error = (lambda: error) if isinstance(error, BaseException) else error
        fault = Fault(make_error, when, skip, times, after)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Remove all planned failures."""
        self._faults.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block every `execute` during the block, so that commands gather."""
        with self._gate:
            self._is_shut = True
        try:
            yield
        finally:
            with self._gate:
                self._is_shut = False
                self._gate.notify_all()

    def wait_until_held(self, timeout: float = 10.0) -> None:
        """Block until a call of `execute` is blocked.

        Raises:
            TimeoutError: none is within `timeout` real seconds.
        """
        with self._gate:
            if not self._gate.wait_for(lambda: self._blocked > 0, timeout):
                raise TimeoutError(f"execute was not called within {timeout:g} s")

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute the commands, or fail as planned."""
        with self._gate:
            self._blocked += 1
            self._gate.notify_all()
            self._gate.wait_for(lambda: not self._is_shut)
            self._blocked -= 1
        self.batches.append(list(commands))
        for fault in self._faults:
            error = fault.strike(commands)
            if error is not None:
                if fault.after:
                    super().execute(commands, now, identities)
                raise error
        return super().execute(commands, now, identities)

    def close(self) -> None:
        """Close the wrapped engine."""
        self.closed += 1
        super().close()
