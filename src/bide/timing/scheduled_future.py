"""The future of a scheduled executor's task."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from bide.timing.delay_heap import Delayed
from bide.timing.times import NS

if TYPE_CHECKING:
    from bide.timing.worker_pool import WorkerPool

T = TypeVar("T")

Overrun = Literal["skip", "catch_up"]
"""What a fixed rate does about missed runs: leave them out, or make them one after the other."""


class Repeat(NamedTuple):
    """When a periodic task runs again."""

    period: int  # ns
    fixed_rate: bool  # period from start to start, else from end to start
    overrun: Overrun

    def next_due(self, due: int, now: int) -> int:
        """Return when to run again after the run that was due at `due` and ended at `now`."""
        if not self.fixed_rate:
            return now + self.period
        due += self.period
        if due < now and self.overrun == "skip":
            due += -(-(now - due) // self.period) * self.period
        return due


class ScheduledFuture(Future[T]):
    """A `concurrent.futures.Future` of a task that runs later, once or periodically.

    A periodic task's future is done when it is cancelled or the task raises; `result()` then raises
    that error. Modelled on Java's `ScheduledFuture`.

    Attributes:
        runs: how often the task has returned.
    """

    def __init__(
        self,
        pool: "WorkerPool",
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        due: int,
        repeat: Repeat | None = None,
        *,
        submitted: bool = False,
        asynchronous: bool = False,
    ) -> None:
        super().__init__()
        self.runs = 0
        self._pool = pool
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._due = due
        self._repeat = repeat
        self._submitted = submitted  # by `submit` or `map`, not by `schedule`
        self._asynchronous = asynchronous
        self._handle: Delayed[ScheduledFuture[Any]] | None = None
        self._on_loop: Future[Any] | None = None  # the coroutine that runs now
        self._busy = False

    @property
    def periodic(self) -> bool:
        """Whether the task runs again and again."""
        return self._repeat is not None

    def delay(self) -> float:
        """Return the seconds until the (next) run; negative when it is late, or has been."""
        return (self._due - self._pool.now()) / NS

    def running(self) -> bool:
        """Whether the task runs right now."""
        return self._busy or super().running()

    def cancel(self) -> bool:
        """Cancel the task; its memory is free at once.

        A periodic task that runs right now finishes this run and has no other. A coroutine that
        runs right now is cancelled as by `asyncio.Task.cancel`.

        Returns:
            True: it will not run (again), also when it was cancelled before. False: it is done, or
            it is a plain function that runs once and has started.
        """
        self._pool._check_process()
        if not super().cancel():
            return False
        self._pool.withdraw(self)
        return True

    def _forget_task(self) -> None:
        """Drop the function and its arguments: the caller may keep the future for long."""
        self._fn = _done
        self._args = ()
        self._kwargs = {}
        self._handle = None
        self._on_loop = None


def _done() -> None:
    """Replace the task of a future that is done."""
