"""The futures of a scheduled executor, and the threads that run its tasks."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from bide.clock import Clock
from bide.logs import logger as bide_logger
from bide.timing.base import Delayed
from bide.timing.delay_queue import DelayQueue
from bide.timing.lifetime import NS, OwnedByProcess, ShutDown

T = TypeVar("T")

logger = bide_logger("bide.timing")

Overrun = Literal["skip", "catch_up"]
"""What a fixed rate does about missed runs: leave them out, or make them one after the other."""


class Repetition(NamedTuple):
    """When a periodic task runs again."""

    period: int
    """In ns."""
    overrun: Overrun | None
    """Of a fixed rate, from start to start; `None`: a fixed delay, from end to start."""

    def next_due(self, due: int, now: int) -> int:
        """Return when to run again, after a run that was due at `due` and ended at `now`, in ns."""
        if self.overrun is None:
            return now + self.period
        next_due = due + self.period
        if next_due < now and self.overrun == "skip":
            missed_runs = -(-(now - next_due) // self.period)  # rounded up
            next_due += missed_runs * self.period
        return next_due


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
        due: int,
        repeat: Repetition | None,
        *,
        submitted: bool,
        is_async: bool,
    ) -> None:
        super().__init__()
        self.runs = 0
        self._pool = pool
        self._due = due
        """When the next run is due, in ns."""
        self._repeat = repeat
        """When it runs again; `None`: it runs once."""
        self._submitted = submitted
        """Whether it is from `submit` or `map`, not from `schedule`."""
        self._is_async = is_async
        """Whether the task is a coroutine function."""
        self._handle: Delayed[ScheduledFuture[Any]] | None = None
        """What the queue knows it by; `None` before it is queued first, and once it is done."""
        self._on_loop: Future[Any] | None = None
        """The coroutine that runs now."""
        self._busy = False
        """Whether a task that can be cancelled while it runs is running; of others the state of
        the future says it."""

    @property
    def periodic(self) -> bool:
        """Whether the task runs again and again."""
        return self._repeat is not None

    def delay(self) -> float:
        """Return the seconds until the (next) run; negative when it is late, or has been."""
        return (self._due - self._pool.now()) / NS

    def running(self) -> bool:
        """Whether the task runs right now."""
        return (self._busy and not self.done()) or super().running()

    def cancel(self) -> bool:
        """Cancel the task; its memory is free at once.

        A periodic task that runs right now finishes this run and has no other. A coroutine that
        runs right now is cancelled as by `asyncio.Task.cancel`.

        Returns:
            True: it will not run (again), also when it was cancelled before. False: it is done, or
            it is a plain function that runs once and has started.
        """
        self._pool._check_process()
        return super().cancel()  # calls `WorkerPool._done`


class WorkerPool(OwnedByProcess):
    """Threads that take futures from a delay queue and run their tasks.

    A thread that takes a task starts another one for the next task, if none waits and there is room
    for one: so there are never more threads than were needed at once.
    """

    _kind = "ScheduledExecutor"

    def __init__(
        self, max_workers: int, prefix: str, loop: asyncio.AbstractEventLoop | None, clock: Clock
    ) -> None:
        super().__init__()
        self._max_workers = max_workers
        self._prefix = prefix
        """How the names of the threads begin."""
        self._loop = loop
        self._queue: DelayQueue[ScheduledFuture[Any]] = DelayQueue(clock=clock)
        self.now = self._queue._now
        self._live: dict[ScheduledFuture[Any], partial[Any]] = {}
        """What is not done, and what it calls."""
        self._threads: list[threading.Thread] = []
        self._idle = 0
        """How many threads wait for a task, or are about to."""
        self._closed = False

    def add(self, future: ScheduledFuture[T], call: partial[Any]) -> ScheduledFuture[T]:
        """Add a new future and what it calls."""
        with self._lock:
            if self._closed:
                raise ShutDown("the scheduled executor was shut down: it takes no more tasks")
            if self._idle == 0:
                self._start_thread()
            self._live[future] = call
            future._handle = self._queue._put_due(future, future._due)
        future.add_done_callback(self._done)  # type: ignore[arg-type]  # it gets this future
        return future

    def close(self) -> list[ScheduledFuture[Any]]:
        """Refuse further futures; return those that are live."""
        with self._lock:
            self._closed = True
            return list(self._live)

    def end(self, wait: bool) -> None:
        """Let the threads end once nothing is live; `wait` for that, if the caller may."""
        with self._lock:
            self._end_if_over()
        # A task would wait for itself, and the loop for the coroutines that it must run.
        is_on_loop = self._loop is not None and asyncio._get_running_loop() is self._loop
        is_task = threading.current_thread() in self._threads
        if wait and not is_task and not is_on_loop:
            self._join()

    def abandon(self) -> None:
        """Let the threads end after the last task: the executor is gone, no task can come."""
        if not self._forked:
            self.close()
            self.end(wait=False)

    def _join(self) -> None:
        for thread in self._threads:  # also those that start meanwhile
            thread.join()

    def _start_thread(self) -> None:
        """Start a thread, if there is room for one. Holds the lock, for which the thread waits."""
        if len(self._threads) < self._max_workers:
            name = f"{self._prefix}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
            self._idle += 1

    def _work(self) -> None:
        """Run one task after the other, until the queue is shut down."""
        while True:
            try:
                future = self._queue.take()
            except ShutDown:
                return
            with self._lock:
                self._idle -= 1
                if self._idle == 0 and len(self._queue):
                    try:
                        self._start_thread()
                    except RuntimeError:
                        logger.warning("no further thread could be started", exc_info=True)
            self._run(future)
            del future  # or the last task would live until the next
            with self._lock:
                self._idle += 1

    def _run(self, future: ScheduledFuture[Any]) -> None:
        """Run the task of a future once, unless it was cancelled."""
        call = self._live.get(future)
        if future.periodic or future._is_async:
            # These can be cancelled while they run: a future that is set running cannot.
            may_start = future._busy = not future.cancelled()
        else:
            may_start = future.set_running_or_notify_cancel()
        if call is None or not may_start:
            return
        try:
            result = call()
            if asyncio.iscoroutine(result):
                self._run_on_loop(future, call.func, result)
                return
        except BaseException as error:  # noqa: BLE001 - it goes to the future and the log
            self._settle(future, call.func, error, None)
        else:
            self._settle(future, call.func, None, result)
        finally:
            del future, call  # the error's traceback holds this frame, and the future the error

    def _run_on_loop(
        self, future: ScheduledFuture[Any], fn: object, coroutine: Coroutine[Any, Any, Any]
    ) -> None:
        """Run the coroutine that a task has returned on the loop; the thread does not wait for it.

        Raises:
            TypeError: the executor has no loop for coroutines.
            RuntimeError: the loop is closed.
        """
        try:
            if self._loop is None:
                raise TypeError("the task returned a coroutine; make the executor with loop=")
            on_loop = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()  # else Python warns that it was never awaited
            raise
        future._on_loop = on_loop
        on_loop.add_done_callback(partial(self._loop_done, future, fn))
        if future.cancelled():  # before `_done` could know of the coroutine
            on_loop.cancel()

    def _loop_done(self, future: ScheduledFuture[Any], fn: object, on_loop: Future[Any]) -> None:
        """Settle a future whose coroutine has ended; called on the loop."""
        future._on_loop = None
        if not on_loop.cancelled():
            error = on_loop.exception()
            self._settle(future, fn, error, None if error else on_loop.result())
        elif not future.cancel():  # the coroutine cancelled itself, and the future is running
            self._settle(future, fn, asyncio.CancelledError(), None)

    def _settle(
        self, future: ScheduledFuture[Any], fn: object, error: BaseException | None, result: Any
    ) -> None:
        """After a run, repeat the task, or let its future have the result or the error.

        A task that fails is not repeated.

        Args:
            future: of the task.
            fn: its function, for the log.
            error: what it raised; `None`: it returned.
            result: what it returned.
        """
        if error is None:
            future.runs += 1
            if future._repeat is not None and self._put_again(future, future._repeat):
                return
        elif not future._submitted:  # else the caller has the future, and sees the error there
            logger.error("task %r failed", fn, exc_info=error)
        with suppress(InvalidStateError):  # cancelled meanwhile
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _put_again(self, future: ScheduledFuture[Any], repeat: Repetition) -> bool:
        """Queue a periodic task again; return False if it was cancelled meanwhile, and is not."""
        with self._lock:
            if future not in self._live:
                return False
            future._busy = False
            future._due = repeat.next_due(future._due, self.now())
            if self._idle == 0 and threading.current_thread() not in self._threads:
                self._start_thread()
            future._handle = self._queue._put_due(future, future._due)
            if future not in self._live:  # it was cancelled meanwhile
                self._queue.remove(future._handle)
            return True

    def _done(self, future: ScheduledFuture[Any]) -> None:
        """Forget a future that is done. If it was cancelled, take it back and tell its waiters."""
        # Without a lock: a finalizer may cancel in a thread that has any.
        self._live.pop(future, None)
        self._end_if_over()
        if future.cancelled():
            was_waiting = future._handle is not None and self._queue.remove(future._handle)
            if was_waiting or future.periodic or future._is_async:  # else `_run` tells them
                future.set_running_or_notify_cancel()
            on_loop = future._on_loop  # which the loop may forget meanwhile
            if on_loop is not None and self._loop and not self._loop.is_closed():
                on_loop.cancel()
        future._handle = None

    def _end_if_over(self) -> None:
        """End the threads if no task is left and none can come."""
        if self._closed and not self._live:
            self._queue.shutdown()

    def _at_exit(self) -> None:
        for future in self.close():
            # A coroutine may wait for a loop that does not run any more.
            would_keep_process = future.periodic or future._is_async or future.delay() > 0
            if would_keep_process and not future._submitted:
                future.cancel()
        self._queue.shutdown()
        self._join()
