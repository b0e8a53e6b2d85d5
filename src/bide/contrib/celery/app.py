"""An app whose tasks are written as for Celery, without Celery."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, overload

from bide.consuming.handler import is_coroutine_function
from bide.consuming.handling import Handler
from bide.contrib.celery.arguments import written
from bide.contrib.celery.options import (
    NO_CANVAS,
    check_arguments,
    check_has_tasks,
    message_options,
)
from bide.contrib.celery.result import AsyncResult
from bide.contrib.celery.task import Task, TaskOptions
from bide.model.errors import InvalidArgument, Unsupported
from bide.model.times import Duration
from bide.queue.arguments import settings_of
from bide.worker.app import task as tasks
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
"""What apps of Celery have, and what to do instead."""


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
                f"Celery({next(iter(unknown))}=...) is not supported; known are store, queue, "
                "result_ttl, lease, concurrency and lifespan"
            )
        super().__init__(store, lifespan=lifespan)
        self.main = main
        self._default_queue = queue
        self._lease = lease
        self._concurrency = concurrency
        self._queue_settings = settings_of(result_ttl=result_ttl)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _NOT_THERE:
            raise Unsupported(f"app.{name} is not supported: {_NOT_THERE[name]}")
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
                f"@app.task({min(unknown)}=...) is not supported; the options are "
                + ", ".join(TaskOptions._fields)
            )
        task_options = TaskOptions(**options)
        if not task_options.acks_late:
            raise InvalidArgument(
                "@app.task(acks_late=False) is not supported: bide acks after the task"
            )

        def register(function: Callable[..., Any]) -> Task:
            if is_coroutine_function(function):
                raise InvalidArgument(
                    f"{function.__qualname__} is async; tasks of Celery are plain functions. "
                    "Register it with @app.handler(queue)"
                )
            module = self.main if function.__module__ == "__main__" else function.__module__
            name = task_options.name or f"{module or '__main__'}.{function.__name__}"
            task = Task(
                app=self,
                open_queues=self._open_queues,
                function=function,
                name=self._new_task_name(name),
                queue=task_options.queue or self._default_queue,
                options=task_options,
            )
            handler = task.handler(timeout=task_options.time_limit, warn_after=None)
            self._add_to(task.queue_name, task, handler)
            self._share_tasks()
            return task

        return register if function is None else register(function)

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Put a message that calls a task, here or in a program with another app.

        Args:
            name: of the task.
            args: its positional arguments: JSON, and what Celery's JSON has beside: dates and
                times, `Decimal`, `UUID`, bytes.
            kwargs: its named arguments.
            options: `countdown`: seconds until it is due; a negative number counts as 0.
                `eta`: the time instead; aware.
                `task_id`: the id of the message; a second one with it stores nothing.
                `queue`: by default that of the task, or of the app.
                `expires`: seconds from now, or the time, after which it is not run.
                `priority`: 0 to 255; among due messages, higher goes first.
                `headers`: text beside it.
                `attempts`: how often it is delivered at most; by default as the task says, or 10
                times. Celery's other options are refused.

        Raises:
            Unsupported: a link, a chord or another part of a canvas is given.
            InvalidArgument: an argument is not known or not valid.
            StoreError: the store failed.
        """
        task = self.tasks.get(name)
        if isinstance(task, Task):
            return task.apply_async(args, kwargs, **options)
        check_arguments(name, args, kwargs)
        queue_name = options.pop("queue", None) or self._default_queue
        if queue_name != self._default_queue:  # which may have no task here, but in another app
            check_has_tasks(self, queue_name)
        # Its parameters are not known here, so arguments by position have no names.
        body = {
            "task": name,
            "args": written(list(args or ())),
            "kwargs": written(dict(kwargs or {})),
        }
        queue = self.queue(queue_name)
        outcome = queue.put(body, **message_options(**options))
        return AsyncResult(outcome.id, [queue])

    def AsyncResult(self, id: str) -> AsyncResult:
        """Return the handle of a task that was sent."""
        return AsyncResult(id, [self.queue(name) for name in self._task_queues()])

    def _task_queues(self) -> list[str]:
        """Return the names of the queues that tasks may be sent to."""
        queue_names = [self._default_queue, *(task.queue_name for task in self.tasks.values())]
        return list(dict.fromkeys(queue_names))

    def _share_tasks(self) -> None:
        """Let each queue know each task: any task may be sent to any of them."""
        for queue in self._task_queues():
            for task in self.tasks.values():
                queue_handlers = self._queue_handlers.get(queue)
                if queue_handlers is None or task.name not in queue_handlers.tasks:
                    own_queue_handlers = self._queue_handlers[task.queue_name]
                    self._add_to(queue, task, own_queue_handlers.handlers[task.name])

    def _add_to(self, queue: str, task: tasks.Task[..., Any], handler: Handler) -> None:
        """Let messages of a queue call a task, by its handler."""
        self._add_task(
            queue,
            task,
            handler,
            lease=self._lease,
            concurrency=self._concurrency,
            settings=self._queue_settings,
        )
