"""A thread pool whose tasks run later, once or periodically."""

import asyncio
import inspect
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from bide.clock import SYSTEM_CLOCK, Clock
from bide.timing.lifetime import Delay, DueTimes, Moment, period_ns
from bide.timing.worker_pool import Overrun, Repetition, ScheduledFuture, WorkerPool

T = TypeVar("T")
P = ParamSpec("P")
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


class ScheduledExecutor(Executor):
    """A `concurrent.futures.Executor` with `schedule`, fixed rates and fixed delays.

    At most `max_workers` tasks run at a time; threads are started when they are needed. A task that
    raises ends only itself: its future holds the error, and the error of a scheduled task is logged
    too (logger `bide.timing`). Modelled on Java's `ScheduledThreadPoolExecutor`.

    When the interpreter ends, submitted tasks still run, as in the standard library's thread pool;
    tasks that are not due yet, periodic tasks and coroutines are cancelled, so that they do not
    keep the process alive.

    Args:
        max_workers: the most threads; by default the processors + 4, at most 32.
        loop: runs tasks that are `async def`; they occupy no thread. The caller closes it.
        execute_delayed_after_shutdown: whether delayed tasks still run after `shutdown`.
        continue_periodic_after_shutdown: whether periodic tasks go on after `shutdown`, until they
            are cancelled or raise.
        thread_name_prefix: what the threads' names begin with.
        clock: tells the time and waits; tests pass `bide.testing.FakeClock`.

    Raises:
        ValueError: `max_workers` is not above zero.

    Example:
        >>> with ScheduledExecutor() as executor:
        ...     future = executor.schedule(pow, 0.01, args=(2, 10))
        ...     future.result()
        1024
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        execute_delayed_after_shutdown: bool = True,
        continue_periodic_after_shutdown: bool = False,
        thread_name_prefix: str = "bide-timing",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max_workers is None:
            max_workers = min(32, (os.cpu_count() or 1) + 4)
        if max_workers <= 0:
            raise ValueError(f"max_workers is {max_workers}; at least one thread is needed")
        self.execute_delayed_after_shutdown = execute_delayed_after_shutdown
        self.continue_periodic_after_shutdown = continue_periodic_after_shutdown
        self._loop = loop
        self._due_times = DueTimes(clock)
        self._pool = WorkerPool(max_workers, thread_name_prefix, loop, clock)
        # The threads hold the pool, not the executor: so it can be collected, and ends them then.
        # At the interpreter's exit the pool has a way of its own.
        weakref.finalize(self, self._pool.abandon).atexit = False

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduledFuture[T]: ...

    @overload
    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduledFuture[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScheduledFuture[Any]:
        """Run `fn(*args, **kwargs)` as soon as a thread is free: as `Executor.submit`."""
        return self._add(fn, args, kwargs, submitted=True)

    @overload
    def schedule(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        delay: Delay | None = None,
        *,
        at: Moment | None = None,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> ScheduledFuture[T]: ...

    @overload
    def schedule(
        self,
        fn: Callable[..., T],
        delay: Delay | None = None,
        *,
        at: Moment | None = None,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> ScheduledFuture[T]: ...

    def schedule(
        self,
        fn: Callable[..., Any],
        delay: Delay | None = None,
        *,
        at: Moment | None = None,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> ScheduledFuture[Any]:
        """Run a task once, when it is due.

        Args:
            fn: a function, or with `loop=` an `async def`.
            delay: seconds or a `timedelta` from now; with neither `delay` nor `at`, now.
            at: an aware `datetime` or Unix seconds; a time in the past means now. Setting the wall
                clock afterwards moves no task.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            TypeError: `fn` cannot be called, or is `async def` and there is no loop; both `delay`
                and `at`; or a wrong type.
            ValueError: the delay is negative or NaN, or the datetime has no time zone.
            ShutDown: after `shutdown`.
        """
        return self._add(fn, args, kwargs, delay, at)

    def schedule_at_fixed_rate(
        self,
        fn: Callable[..., object],
        period: Delay,
        *,
        initial_delay: Delay | None = None,
        at: Moment | None = None,
        overrun: Overrun = "skip",
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> ScheduledFuture[None]:
        """Run a task at a first time and every `period` after it, without drift.

        A task never overlaps itself. When a run takes longer than the period, or the machine slept,
        runs were missed: `overrun="skip"` leaves them out and goes on with the next one of the
        grid; `overrun="catch_up"` makes each of them, one right after the other, as Java does.

        Args:
            fn: a function, or with `loop=` an `async def`.
            period: from start to start, in seconds or a `timedelta`.
            initial_delay: until the first run; with neither this nor `at`, now.
            at: when the first run is due, as in `schedule`.
            overrun: "skip" or "catch_up".
            args: positional arguments.
            kwargs: keyword arguments.

        Returns:
            A future that is done when it is cancelled or a run raises, which ends the repetition.

        Raises:
            ValueError: the period is zero, negative or NaN; an unknown `overrun`; as `schedule`.
            TypeError, ShutDown: as `schedule`.
        """
        if overrun not in ("skip", "catch_up"):
            raise ValueError(f'overrun is {overrun!r}; it can be "skip" or "catch_up"')
        repeat = Repetition(period_ns(period, "period"), overrun)
        return self._add(fn, args, kwargs, initial_delay, at, repeat)

    def schedule_with_fixed_delay(
        self,
        fn: Callable[..., object],
        delay: Delay,
        *,
        initial_delay: Delay | None = None,
        at: Moment | None = None,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> ScheduledFuture[None]:
        """Run a task repeatedly, with a pause of `delay` from each end to the next start.

        Arguments, result and errors are those of `schedule_at_fixed_rate`.
        """
        repeat = Repetition(period_ns(delay, "delay"), overrun=None)  # a delay after each run
        return self._add(fn, args, kwargs, initial_delay, at, repeat)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further tasks, and finish or cancel the others.

        Submitted tasks run. Delayed and periodic tasks follow the two policies of the constructor
        (which are attributes too). The threads end after the last task that is kept.

        Args:
            wait: return when every task and every thread has ended. A call from one of the
                executor's own tasks, or on its `loop`, does not wait, since tasks could then never
                end.
            cancel_futures: cancel every task that has not started, despite the policies.
        """
        for future in self._pool.close():
            if future.periodic:
                keeps = self.continue_periodic_after_shutdown
            else:
                is_due = future._submitted or future.delay() <= 0
                keeps = is_due or self.execute_delayed_after_shutdown
            if cancel_futures or not keeps:
                future.cancel()
        self._pool.end(wait)

    def _add(
        self,
        fn: Callable[..., Any],
        args: Args,
        kwargs: Kwargs | None,
        delay: Delay | None = None,
        at: Moment | None = None,
        repeat: Repetition | None = None,
        *,
        submitted: bool = False,
    ) -> ScheduledFuture[Any]:
        """Add a task; the arguments are those of `schedule`.

        `repeat` says when it runs again, `None`: it does not. `submitted`: it is from `submit`,
        whose caller gets the error from the future, so it is not logged.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {type(fn).__name__}")
        is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(fn, "__call__", None)  # noqa: B004 - an object may be called asynchronously
        )
        if is_async and self._loop is None:
            raise TypeError(f"{fn!r} is async; make the executor with loop= to run it")
        due = self._due_times.of(delay, at)
        future: ScheduledFuture[Any] = ScheduledFuture(
            self._pool, due, repeat, submitted=submitted, is_async=is_async
        )
        return self._pool.add(future, partial(fn, *args, **(kwargs or {})))
