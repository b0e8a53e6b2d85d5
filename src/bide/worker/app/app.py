"""The app: handlers, jobs, and the state that they share."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, ParamSpec, TypeVar, overload

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.consuming.batching import LINGER, make_batch_handler
from bide.consuming.handler import (
    Middleware,
    check_is_no_generator,
    check_takes,
    checked_retry,
    make_handler,
    name_of,
)
from bide.consuming.handling import Handler
from bide.consuming.parameters import Parameters
from bide.consuming.queue_handlers import check_decorator
from bide.consuming.transactions import Within, in_transaction
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.message import JOB, NewMessage
from bide.model.recovery import Recovery
from bide.model.times import Duration, Rate, milliseconds
from bide.model.window import Window
from bide.queue.aio import AsyncQueue
from bide.queue.arguments import settings_of
from bide.queue.sync import Queue
from bide.worker.app.lifespan import Lifespan
from bide.worker.app.periodic import F, Periodic
from bide.worker.app.task import Task
from bide.worker.process.in_process import InProcessWorker


class Job(msgspec.Struct):
    """A kind of work: the fields are the body, `due` returns the due time, `run` does the work.

    Register it with `App.job`. Several jobs may share a queue: a header of each message names its
    job. It is a `msgspec.Struct`, so it needs no `__init__`.

    Example:
        >>> import bide
        >>> from datetime import UTC, datetime, timedelta
        >>> app = bide.App("memory://")
        >>> @app.job("meetings")
        ... class Remind(bide.Job):
        ...     meeting: int
        ...     starts: datetime
        ...     def due(self):
        ...         return self.starts - timedelta(minutes=10)
        ...     def key(self):
        ...         return f"remind-{self.meeting}"
        ...     async def run(self):
        ...         print("meeting", self.meeting)
        >>> Remind(7, datetime(2030, 1, 1, 9, tzinfo=UTC)).message().at
        datetime.datetime(2030, 1, 1, 8, 50, tzinfo=datetime.timezone.utc)
    """

    _name: ClassVar[str] = ""

    def due(self) -> Duration | datetime | None:
        """Return when it is due: a `datetime`, or a delay from now. By default at once."""
        return None

    def key(self) -> str | None:
        """Return the message's id, so that the same work is put once; random by default."""
        return None

    def options(self) -> Mapping[str, Any]:
        """Return more options: `priority`, `expires`, `attempts`, `group`, `headers`, `spread`,
        `repeat`, `window`."""
        return {}

    def still_wanted(self, *_: Any, **__: Any) -> Any:
        """Return, before each `run`, whether the work is still wanted; if not, it is discarded.

        It is async if `run` is, and may take the delivery. True by default.
        """
        return True

    def run(self, *_: Any, **__: Any) -> Any:
        """Do the work. A plain or an async method, which may take the delivery as its parameter."""
        raise NotImplementedError(f"{type(self).__name__} has no method run")

    def message(self) -> NewMessage:
        """Return what `queue.put(job)` puts.

        Raises:
            InvalidArgument: its class itself was not registered with `App.job`, or `options`
                returns an option that messages do not have.
        """
        name = _job_name(type(self))
        if not name:
            raise InvalidArgument(
                f"{type(self).__name__} belongs to no queue yet; register it with @app.job(queue)"
            )
        due = self.due()
        at = due if isinstance(due, datetime) else None
        delay = None if isinstance(due, datetime) else due
        options = dict(self.options())
        headers = {**(options.pop("headers", None) or {}), JOB: name}
        try:
            return NewMessage(self, delay=delay, at=at, id=self.key(), headers=headers, **options)
        except TypeError as error:  # an unexpected keyword argument
            raise InvalidArgument(f"options of {type(self).__name__}: {error}") from error


def _job_name(job_class: type[Job]) -> str:
    """Return the name that a class itself was registered under, not its parent; or ""."""
    return str(vars(job_class).get("_name", ""))


def _name_of_task(function: Callable[..., Any]) -> str:
    """Return the name that a function was defined with.

    Raises:
        InvalidArgument: it has none that messages could have.
    """
    name = getattr(function, "__name__", None)  # a functools.partial has none
    if name is None or name == "<lambda>":
        raise InvalidArgument(
            f"{function!r} has no name that messages could carry; give it one: @app.task(name=...)"
        )
    return str(name)


J = TypeVar("J", bound=type[Job])
P = ParamSpec("P")
R = TypeVar("R")


class App(Periodic):
    """The handlers, sources and schedules of a program, for `bide worker module:app`.

    Args:
        url: of the store; by default the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        lifespan: opens and closes what handlers need, such as a connection pool: a function that
            takes the app and returns a context manager, plain or async. A process enters it before
            the first claim and leaves it after the last handler.
        clock: for tests; see `bide.testing.FakeClock`.

    Raises:
        InvalidArgument: `url` names no store, or `lifespan` does not take the app.

    Example:
        >>> import bide
        >>> app = App("memory://")
        >>> @app.handler("orders", retry=bide.Backoff(attempts=5, first="10s"))
        ... async def expire(order: dict) -> None:
        ...     print("order", order["id"], "timed out")
        >>> list(app.queue_handlers)
        ['orders']
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(url, lifespan, clock)
        self.tasks: dict[str, Task[..., Any]] = {}
        """The tasks by name."""

    def handler(
        self,
        queue: str,
        *,
        lease: Duration = "1m",
        concurrency: int | None = None,
        timeout: Duration | None = None,
        warn_after: Duration | None = None,
        retry: Backoff | None = None,
        still_wanted: Callable[..., Any] | None = None,
        batch: int | None = None,
        linger: Duration | None = None,
        within: Within | None = None,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        overdue: Recovery | str | None = None,
        window: Window | None = None,
    ) -> Callable[[F], F]:
        """Register a function that handles the messages of a queue. The function is not changed.

        It takes the body, the delivery, or both: `(body)`, `(body, delivery: bide.Handling)`,
        `(delivery: bide.Handling)`. The body is decoded into the type it is annotated with; one
        that does not fit becomes a dead letter. Async functions run as tasks, plain ones in
        threads. If the function returns, the message is acked. If it raises, the message is retried
        as `retry` says, or becomes a dead letter; `bide.Retry`, `bide.Discard` and `bide.Bury`
        choose the outcome.

        Args:
            queue: its name.
            lease: how long after the death of this process another one gets its messages. A living
                process extends the leases of messages whose handlers run.
            concurrency: how many deliveries a process runs at a time; by default 64 for async
                handlers, 16 for plain ones, and two batches if these are more.
            timeout: how long one delivery may take; by default there is no limit. After it the
                attempt fails with a `TimeoutError`. An async handler is cancelled. A plain one
                keeps its thread until it returns, while the next attempt may run beside it; it can
                check `delivery.lost`.
            warn_after: how long a delivery may take before a warning is logged, once for each
                delivery; by default there is none.
            retry: the delays and the number of attempts; `Backoff()` by default.
            still_wanted: called before each delivery with the body, or the body and the delivery.
                If it returns false, the message is discarded: it is acked, and the handler is not
                called. Async if the handler is.
            batch: let the function take so many messages at a time, at most 1,000: `(bodies)` or
                `(bodies, deliveries)`, each a list. If it returns nothing, all are acked; or it
                returns a list with an outcome for each: a result, `None`, or an exception such as
                `bide.Retry("busy")`. If it raises, all are released, which counts no attempt, and
                each is delivered again alone, as is whatever has failed before. `timeout` is that
                of a call, and only async functions have one.
            linger: how long a batch waits for more messages, in real time; 50 ms by default.
            within: opens a transaction for each delivery, in which the message is acked, so that
                it takes effect exactly once (PostgreSQL, SQLite): a function that returns a context
                manager which yields a connection or session, commits at its end and rolls back if
                the handler raises, such as SQLAlchemy's `engine.begin`. Async if the handler is. A
                parameter named `within` takes what it yields.
            keep: how long the queue remembers acked messages, so that their ids are refused. This
                and the next seven are settings of the queue. A worker applies them when it
                starts and they have changed since they were last applied; what is not declared
                stays as it is, 0 switches it off.
            history: how long it remembers how messages ended, by whom, and their attempts.
            result_ttl: how long it remembers what the handler returned.
            limit: how many messages of the queue may be leased at a time, over all workers.
            rate: how many may be delivered: per second, or a string such as "100/m".
            group_limit: `limit` for each group.
            group_rate: `rate` for each group.
            overdue: what becomes of what is overdue after a gap without claims, such as
                "spread 10m"; see `bide.model.recovery`.
            window: the hours in which workers take messages for this, a `bide.Window`. What they
                hold when it closes goes on.

        Raises:
            InvalidArgument: the function takes other parameters, a setting is not valid, or the
                queue has a handler.

        Example:
            >>> app = App("memory://")
            >>> @app.handler("calls", limit=5, rate="100/m", history="7d")
            ... def call(number: str) -> None: ...
        """

        check_decorator(queue, 'app.handler("orders")')
        settings = settings_of(
            keep=keep,
            history=history,
            result_ttl=result_ttl,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_rate=group_rate,
            overdue=overdue,
        )

        def register(function: F) -> F:
            self._check_free(queue, "for several kinds of work in one queue use @app.job")
            if batch is None and linger is not None:
                raise InvalidArgument(
                    f"{name_of(function)} has linger= without batch=; only batches wait for more "
                    "messages"
                )
            if batch is None:
                handler = make_handler(
                    function,
                    timeout,
                    retry,
                    still_wanted,
                    warn_after=warn_after,
                    within=within is not None,
                )
                if within is not None:
                    handler = in_transaction(handler, within)
            elif within is not None:
                raise InvalidArgument(
                    f"{name_of(function)} has batch= and within=; let it open a transaction, and "
                    "ack each of its deliveries with ack(within=)"
                )
            elif still_wanted is not None:
                raise InvalidArgument(
                    f"{name_of(function)} has batch= and still_wanted=; let it return "
                    "bide.Discard() for what is no longer wanted"
                )
            else:
                handler = make_batch_handler(
                    function,
                    batch,
                    LINGER if linger is None else linger,
                    timeout,
                    retry,
                    warn_after,
                    in_thread=self._thread_context,
                    on_loop=self._loop_context,
                )
            self._add(queue, None, handler, lease, concurrency, settings, window)
            return function

        return register

    def job(
        self,
        queue: str,
        name: str | None = None,
        *,
        lease: Duration = "1m",
        concurrency: int | None = None,
        timeout: Duration | None = None,
        warn_after: Duration | None = None,
        retry: Backoff | None = None,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        overdue: Recovery | str | None = None,
        window: Window | None = None,
    ) -> Callable[[J], J]:
        """Register a class whose instances are the work, a subclass of `bide.Job`.

        Args:
            queue: the queue of its messages; several jobs may share one.
            name: marks its messages; the name of the class by default. Pending messages have it, so
                keep it if you rename the class.
            lease: how long after the death of this process another one gets its messages; the same
                for all jobs of a queue.
            concurrency: how many deliveries of the queue a process runs at a time, the same for all
                its jobs; by default 64 for async methods, 16 for plain ones.
            timeout: how long one delivery may take; by default there is no limit. After it the
                attempt fails with a `TimeoutError`. An async method is cancelled. A plain one
                keeps its thread until it returns, while the next attempt may run beside it; it can
                check `delivery.lost`.
            warn_after: how long a delivery may take before a warning is logged, once for each
                delivery; by default there is none.
            retry: the delays and the number of attempts; `Backoff()` by default.
            keep: how long the queue remembers acked messages, so that their ids are refused. This
                and the next seven are settings of the queue, which all its jobs share. A worker
                applies them when it starts and they have changed since they were last applied; what
                is not declared stays as it is, 0 switches it off.
            history: how long it remembers how messages ended, by whom, and their attempts.
            result_ttl: how long it remembers what the job returned.
            limit: how many messages of the queue may be leased at a time, over all workers.
            rate: how many may be delivered: per second, or a string such as "100/m".
            group_limit: `limit` for each group.
            group_rate: `rate` for each group.
            overdue: what becomes of what is overdue after a gap without claims, such as
                "spread 10m"; see `bide.model.recovery`.
            window: the hours in which workers take messages for this, a `bide.Window`. What they
                hold when it closes goes on. The same for all jobs of a queue.

        Raises:
            InvalidArgument: it is not a `Job`, it has no `run`, its `run` or `still_wanted` takes
                other parameters, one of them is plain and the other async, the name is taken, it
                was registered under another name, or the queue has a plain handler.
        """

        check_decorator(queue, 'app.job("orders")')
        settings = settings_of(
            keep=keep,
            history=history,
            result_ttl=result_ttl,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_rate=group_rate,
            overdue=overdue,
        )

        def register(job_class: J) -> J:
            if not isinstance(job_class, type) or not issubclass(job_class, Job):
                raise InvalidArgument(f"{job_class!r} is not a subclass of bide.Job")
            if job_class.run is Job.run:
                raise InvalidArgument(
                    f"{job_class.__name__} has no method run, which does the work; write def "
                    "run(self)"
                )
            job_name = check_name(name or job_class.__name__, "name")
            self._check_is_new_in(queue, job_name)
            former_name = _job_name(job_class)
            if former_name and former_name != job_name:  # its messages have but one
                raise InvalidArgument(
                    f"{job_class.__name__} is registered as {former_name!r} already, and its "
                    "messages carry that name; give it the same name here, or register a subclass"
                )
            overrides = job_class.still_wanted is not Job.still_wanted
            handler = make_handler(
                job_class.run,
                timeout,
                retry,
                job_class.still_wanted if overrides else None,
                body=job_class,
                warn_after=warn_after,
            )
            # For lists: what a message carries is what the class takes, not what `run` does.
            handler = replace(handler, takes=str(inspect.signature(job_class)))
            self._add(queue, job_name, handler, lease, concurrency, settings, window)
            job_class._name = job_name
            return job_class

        return register

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        queue: str | None = None,
        name: str | None = None,
        lease: Duration = "1m",
        concurrency: int | None = None,
        timeout: Duration | None = None,
        warn_after: Duration | None = None,
        retry: Backoff | None = None,
        within: Within | None = None,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        overdue: Recovery | str | None = None,
        window: Window | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        queue: str | None = None,
        name: str | None = None,
        lease: Duration = "1m",
        concurrency: int | None = None,
        timeout: Duration | None = None,
        warn_after: Duration | None = None,
        retry: Backoff | None = None,
        within: Within | None = None,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        overdue: Recovery | str | None = None,
        window: Window | None = None,
    ) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
        """Register a function that messages call: `@app.task`, or `@app.task(queue="orders")`.

        Its name becomes a `Task`: `put` calls the function soon in a worker, `later` when you say,
        and calling it calls the function here and now. Plain or async. A parameter that is
        annotated with `bide.Handling`, or is called `delivery` without annotation, with the default
        `None`, is given the delivery by the worker. If the function returns, the message is acked.
        If it raises, the message is retried as `retry` says, or becomes a dead letter;
        `bide.Retry`, `bide.Discard` and `bide.Bury` choose the outcome.

        Args:
            function: takes its arguments by name: no `*args`, and none by position only.
            queue: of its messages; several tasks may share one. By default one of the task's name.
            name: marks its messages; the name of the function by default. Pending messages have
                it, so keep it if you rename the function.
            lease: how long after the death of this process another one gets its messages; the same
                for all tasks of a queue.
            concurrency: how many deliveries of the queue a process runs at a time, the same for all
                its tasks; by default 64 for async functions, 16 for plain ones.
            timeout: how long one delivery may take; by default there is no limit. After it the
                attempt fails with a `TimeoutError`. An async function is cancelled. A plain one
                keeps its thread until it returns, while the next attempt may run beside it; it can
                check `delivery.lost`.
            warn_after: how long a delivery may take before a warning is logged, once for each
                delivery; by default there is none.
            retry: the delays and the number of attempts; `Backoff()` by default.
            within: opens a transaction for each delivery, in which the message is acked, so that
                it takes effect exactly once (PostgreSQL, SQLite): a function that returns a context
                manager which yields a connection or session, commits at its end and rolls back if
                the task raises, such as SQLAlchemy's `engine.begin`. Async if the task is. A
                parameter named `within`, with the default `None`, takes what it yields.
            keep: how long the queue remembers acked messages, so that their ids are refused. This
                and the next seven are settings of the queue, which all its tasks share. A worker
                applies them when it starts and they have changed since they were last applied; what
                is not declared stays as it is, 0 switches it off.
            history: how long it remembers how messages ended, by whom, and their attempts.
            result_ttl: how long it remembers what the task returned.
            limit: how many messages of the queue may be leased at a time, over all workers.
            rate: how many may be delivered: per second, or a string such as "100/m".
            group_limit: `limit` for each group.
            group_rate: `rate` for each group.
            overdue: what becomes of what is overdue after a gap without claims, such as
                "spread 10m"; see `bide.model.recovery`.
            window: the hours in which workers take messages for this, a `bide.Window`. What they
                hold when it closes goes on. The same for all tasks of a queue.

        Raises:
            InvalidArgument: the function takes arguments that a message cannot carry, the name is
                taken, or the queue has a plain handler.

        Example:
            >>> import bide
            >>> app = bide.App("memory://tasks")
            >>> @app.task(queue="orders", retry=bide.Backoff(attempts=5, first="10s"))
            ... def expire(order: int, *, reason: str = "unpaid") -> None:
            ...     print("order", order, "is", reason)
            >>> print(expire.later("30m", id="order-42").put(42).state)
            delayed
        """
        if function is not None and not callable(function):
            raise InvalidArgument(
                f"{function!r} is not a function; a queue is named with @app.task(queue=...)"
            )

        settings = settings_of(
            keep=keep,
            history=history,
            result_ttl=result_ttl,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_rate=group_rate,
            overdue=overdue,
        )

        def register(function: Callable[P, R]) -> Task[P, R]:
            if inspect.isclass(function) or not callable(function):
                raise InvalidArgument(f"{function!r} is not a function; classes are for @app.job")
            check_is_no_generator(function)
            task_name = self._new_task_name(name or _name_of_task(function))
            task = Task(
                self,
                self._open_queues,
                function,
                task_name,
                queue or task_name,
                Parameters(function, joins=within is not None),
                checked_retry(retry) or Backoff(),
            )
            handler = task.handler(timeout, warn_after)
            if within is not None:
                handler = in_transaction(handler, within)
            self._add_task(task.queue_name, task, handler, lease, concurrency, settings, window)
            return task

        return register if function is None else register(function)

    def _new_task_name(self, name: str) -> str:
        """Return the name of a new task after a check.

        Raises:
            InvalidArgument: it is not valid, or a task has it.
        """
        name = check_name(name, "name")
        if name in self.tasks:
            raise InvalidArgument(
                f"there is already a task named {name!r}; give this one another name="
            )
        return name

    def _add_task(
        self,
        queue: str,
        task: Task[..., Any],
        handler: Handler,
        lease: Duration,
        concurrency: int | None,
        settings: Mapping[str, int | str],
        window: Window | None = None,
    ) -> None:
        """Let messages of a queue call a task. The arguments are those of `_add`.

        Raises:
            InvalidArgument: the queue has a plain handler, or work of this name.
        """
        self._check_is_new_in(queue, task.name)
        self._add(queue, task.name, handler, lease, concurrency, settings, window)
        self._queue_handlers[queue].tasks.add(task.name)
        self.tasks[task.name] = task

    def queue(self, name: str, **options: Any) -> Queue:
        """Return a queue in the store of this app. It is opened once, and shared.

        Args:
            name: of the queue.
            options: of `bide.Queue`, such as `keep="1d"`.

        Example:
            >>> app = App("memory://opened")
            >>> app.queue("orders").name
            'orders'
        """
        return self._open_queues.queue(name, **options)

    def async_queue(self, name: str, **options: Any) -> AsyncQueue:
        """Return the same for event loops."""
        return self._open_queues.async_queue(name, **options)

    def close(self) -> None:
        """Close the queues that `queue`, `async_queue` and tasks have opened.

        They are opened again when they are used.
        """
        self._open_queues.close()

    def middleware(self, function: Middleware) -> Middleware:
        """Run an async function around every delivery; the first registered is the outermost.

        It takes the delivery and a function that runs the handler, which it awaits once. What it
        raises counts as raised by the handler. If it does not await the function, the message
        counts as handled.

        Raises:
            InvalidArgument: it is not async, or takes other parameters.

        Example:
            >>> app = App("memory://")
            >>> @app.middleware
            ... async def log(delivery, go_on):
            ...     print("begin", delivery.id)
            ...     await go_on()
        """
        if not inspect.iscoroutinefunction(function):
            raise InvalidArgument(
                f"{name_of(function)} must be an async function (delivery, go_on); it runs on the "
                "event loop, around plain handlers too"
            )
        check_takes(function, 2, "(delivery, go_on)")
        self.around.append(function)
        return function

    def running(self, queues: Iterable[str] = (), *, grace: Duration = "30s") -> InProcessWorker:
        """Run the handlers in this process, for the length of an `async with` block.

        For the lifespan of a web application, or any asyncio program. The block begins at once: a
        store that is away, at the start or later, is waited for. The worker is listed by
        `bide top`. `trouble()` of what it yields says why messages are not handled. At the end of
        the block, handlers get the grace time to finish.

        Args:
            queues: only these, and their sources; by default all that have a handler or a source.
            grace: how long handlers may take to finish at the end of the block; then their
                messages return to the queue.

        Raises:
            InvalidArgument: the app has no handler, or none for one of the queues.

        Example:
            >>> import asyncio, bide
            >>> app = bide.App("memory://")
            >>> @app.handler("mails")
            ... async def send(address: str) -> None:
            ...     print("mail to", address)
            ...     sent.set()
            >>> sent = asyncio.Event()
            >>> async def main() -> None:
            ...     async with app.running(), bide.AsyncQueue("mails", "memory://") as mails:
            ...         await mails.put("ann@example.org")
            ...         await sent.wait()
            >>> asyncio.run(main())
            mail to ann@example.org
        """
        return InProcessWorker(self, queues, grace=milliseconds(grace, "grace") / 1000)
