"""An app whose tasks are written as for Celery, without Celery."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn, overload

from bide.consuming.handler import make_handler
from bide.contrib.celery.arguments import written
from bide.contrib.celery.result import AsyncResult, TaskQueues
from bide.contrib.celery.task import (
    NO_CANVAS,
    Task,
    TaskOptions,
    check_aware,
    delay_of,
    unsupported_option,
)
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument, Unsupported
from bide.model.message import ATTEMPTS, JOB, MAX_ATTEMPTS
from bide.model.times import Duration, to_datetime
from bide.worker.app.app import App
from bide.worker.app.lifespan import Lifespan
from bide.worker.app.registrations import SYNC_CONCURRENCY

_NOT_THERE = {
    "conf": "options are arguments of Celery(...) and @app.task(...)",
    "control": "revoke with app.AsyncResult(id).revoke(), look with bide top and bide scan",
    "signature": NO_CANVAS,
    "add_periodic_task": "use @app.schedule(queue, cron=... or every=...)",
    "config_from_object": "options are arguments of Celery(...) and @app.task(...)",
    "autodiscover_tasks": "import the modules with tasks where the app is made",
}


class Celery(App):
    """An app for `bide worker` with tasks: `@app.task`, `delay`, `apply_async`, `retry`.

    It is a `bide.App`, so `@app.handler`, `@app.schedule` and all else work beside the tasks. For
    what differs from Celery, see "Coming from Celery" in the documentation.

    Args:
        main: the name before those of tasks in the module that is run as a program.
        store: the URL of the store; by default the environment's `BIDE_URL`.
        queue: the queue of tasks that name none.
        result_ttl: how long results are kept, for `AsyncResult.get`; by default not at all.
        lease: how long after the death of a worker another one gets its tasks.
        concurrency: how many tasks of a queue a process runs at a time, in threads.
        lifespan: opens and closes what tasks need; see `bide.App`.
        unknown: Celery's other arguments, which are refused.

    Raises:
        InvalidArgument: an argument is not known or not valid.

    Example:
        >>> app = Celery("shop", store="memory://shim")
        >>> @app.task(autoretry_for=(OSError,), max_retries=5)
        ... def expire(order):
        ...     print("order", order, "timed out")
        >>> result = expire.apply_async((42,), countdown=1800, task_id="expire-42")
        >>> bool(result.revoke())
        True
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        store: str | None = None,
        queue: str = "celery",
        result_ttl: Duration | None = None,
        lease: Duration = "1m",
        concurrency: int = SYNC_CONCURRENCY,
        lifespan: Lifespan | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise InvalidArgument(
                f"Celery({next(iter(unknown))}=...) is not there; the arguments are store, queue, "
                "result_ttl, lease, concurrency and lifespan"
            )
        super().__init__(store, lifespan=lifespan)
        self.main = main
        self.tasks: dict[str, Task] = {}  # type: ignore[assignment]  # as Celery names them
        """The tasks by name."""
        self._default = queue
        self._lease = lease
        self._concurrency = concurrency
        self._queues = TaskQueues(queue, self._url, result_ttl)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _NOT_THERE:
            raise Unsupported(f"app.{name} is not there: {_NOT_THERE[name]}")
        raise AttributeError(f"{type(self).__name__!r} has no {name!r}")

    @overload  # type: ignore[override]  # its tasks and options are those of Celery
    def task(self, function: Callable[..., Any], /) -> Task: ...
    @overload
    def task(self, /, **options: Any) -> Callable[[Callable[..., Any]], Task]: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Any
    ) -> Task | Callable[[Callable[..., Any]], Task]:
        """Register a function as a task: `@app.task`, or with options `@app.task(bind=True)`.

        Args:
            function: a plain function.
            options: `name`, `bind`, `queue`, `max_retries`, `default_retry_delay`, `autoretry_for`,
                `dont_autoretry_for`, `retry_kwargs`, `retry_backoff`, `retry_backoff_max`,
                `retry_jitter`, `time_limit`, `expires`, and `priority` (0 to 255, higher first).

        Returns:
            The `Task`, or a decorator that makes it.

        Raises:
            InvalidArgument: an option is not known, or the name is taken.
        """
        unknown = options.keys() - set(TaskOptions._fields)
        if unknown:
            raise InvalidArgument(
                f"@app.task({min(unknown)}=...) is not there; the options are "
                + ", ".join(TaskOptions._fields)
            )
        settings = TaskOptions(**options)
        if not settings.acks_late:
            raise InvalidArgument(
                "@app.task(acks_late=False) is not there: bide acks after the task"
            )

        def register(function: Callable[..., Any]) -> Task:
            if inspect.iscoroutinefunction(function):
                raise InvalidArgument(
                    f"{function.__qualname__} is async; tasks of Celery are plain functions. "
                    "Register it with @app.handler(queue)"
                )
            module = self.main if function.__module__ == "__main__" else function.__module__
            name = settings.name or f"{module or '__main__'}.{function.__name__}"
            if name in self.tasks:
                raise InvalidArgument(f"a task is named {name} already; give it another name=")
            task = self.tasks[name] = Task(self, function, name, settings)
            self._queues.add(settings.queue or self._default)
            self._register()
            return task

        return register if function is None else register(function)

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        task_id: str | None = None,
        queue: str | None = None,
        expires: float | datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        attempts: int | None = None,
        **unknown: Any,
    ) -> AsyncResult:
        """Put a message that calls a task, here or in a program with another app.

        Args:
            name: of the task.
            args: its positional arguments: JSON, and what Celery's JSON has beside: dates and
                times, `Decimal`, `UUID`, bytes.
            kwargs: its named arguments.
            countdown: seconds until it is due; a negative number counts as 0.
            eta: the time instead; aware.
            task_id: the id of the message; a second one with it stores nothing.
            queue: by default that of the task, or of the app.
            expires: seconds from now, or the time, after which it is not run.
            priority: 0 to 255; among due messages, higher goes first.
            headers: text beside it.
            attempts: how often it is delivered at most; by default as the task says, or 10 times.
            unknown: Celery's other arguments, which are refused.

        Raises:
            Unsupported: a link, a chord or another part of a canvas is given.
            InvalidArgument: an argument is not known or not valid.
            StoreError: the store failed.
        """
        if unknown:
            raise unsupported_option(next(iter(unknown)))
        check_aware(eta=eta)
        if not isinstance(args or (), list | tuple):
            raise InvalidArgument(
                f"args={args!r} of {name} must be a list or a tuple: args=({args!r},)"
            )
        if not isinstance(kwargs or {}, Mapping):
            raise InvalidArgument(f"kwargs={kwargs!r} of {name} must map names to arguments")
        known = self.tasks.get(name)
        name_of_queue = queue or (known and known.options.queue) or self._default
        if known is not None:
            known.check_arguments(args or (), kwargs or {})
        if attempts is None:
            attempts = ATTEMPTS if known is None else known.attempts
        if name_of_queue not in self._queues.names:
            raise InvalidArgument(
                f"queue={name_of_queue!r} belongs to no task, so no worker of this app would look "
                f"there; name it in @app.task(queue={name_of_queue!r})"
            )
        outcome = self._queues.open(name_of_queue).put(
            {"args": written(list(args or ())), "kwargs": written(dict(kwargs or {}))},
            delay=delay_of(countdown) if eta is None else None,
            at=eta,
            id=task_id,
            priority=priority,
            expires=_after_due(expires, countdown, eta, self.now()),
            attempts=min(attempts, MAX_ATTEMPTS),
            headers={**(headers or {}), JOB: name},
        )
        return AsyncResult(outcome.id, self._queues, name_of_queue)

    def now(self) -> datetime:
        """Return the time by the clock of the app's queues, which tests replace."""
        return to_datetime(self._queues.open(self._default)._clock.now())

    def AsyncResult(self, id: str) -> AsyncResult:
        """Return the handle of a task that was sent."""
        return AsyncResult(id, self._queues)

    def _register(self) -> None:
        """Let each queue know each task: any task may be sent to any of them."""
        for queue in self._queues.names:
            known = self._queue_handlers.get(queue)
            for name, task in self.tasks.items():
                if known is None or name not in known.handlers:
                    # The task itself says what is retried, and how often.
                    retry = Backoff(attempts=MAX_ATTEMPTS, on=())
                    made = make_handler(task.handle, task.options.time_limit, retry)
                    handler = replace(made, name=name)
                    self._add(queue, name, handler, self._lease, self._concurrency, {})
                    known = self._queue_handlers[queue]


def _after_due(
    expires: float | datetime | None,
    countdown: float | None,
    eta: datetime | None,
    now: datetime,
) -> timedelta | None:
    """Return how long after its due time a task may run; Celery counts from when it is sent.

    Raises:
        InvalidArgument: it expires before it is due, or a time is naive.
    """
    if expires is None:
        return None
    check_aware(expires=expires, eta=eta)
    end = expires if isinstance(expires, datetime) else now + timedelta(seconds=expires)
    due = eta or now + timedelta(seconds=delay_of(countdown) or 0)
    if end <= due:
        raise InvalidArgument(
            f"expires={expires!r} is before the task is due, so it would never run; like Celery's "
            "it counts from now"
        )
    return end - due
