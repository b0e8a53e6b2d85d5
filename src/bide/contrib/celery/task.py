"""A task as Celery's programs write it, with a message of bide behind it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from types import MethodType
from typing import Any, NamedTuple, NoReturn

from bide.consuming.handling import Handling
from bide.consuming.outcomes import ChosenOutcome, Retry
from bide.contrib.celery.arguments import revived, written
from bide.contrib.celery.options import (
    NO_CANVAS,
    check_arguments,
    check_aware,
    check_has_tasks,
    delay_of,
    message_options,
    now,
)
from bide.contrib.celery.parameters import CeleryParameters
from bide.contrib.celery.result import AsyncResult
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument, Unsupported, WrongContext
from bide.model.message import MAX_ATTEMPTS
from bide.model.times import Duration
from bide.worker.app import task as tasks
from bide.worker.app.open_queues import OpenQueues
from bide.worker.app.registrations import Registrations

_WITHIN_TRANSACTION = "put a message within the transaction, with bide.contrib.django.Queue"

_NOT_THERE = {
    **dict.fromkeys(
        ("s", "si", "signature", "subtask", "chunks", "map", "starmap", "replace", "add_to_chord"),
        NO_CANVAS,
    ),
    "apply": "call the task as a function",
    "update_state": "keep the progress in your database",
    "delay_on_commit": _WITHIN_TRANSACTION,
    "apply_async_on_commit": _WITHIN_TRANSACTION,
}
"""What tasks of Celery have, and what to do instead."""

Exceptions = Sequence[type[BaseException]]


class MaxRetriesExceeded(Exception):
    """A task called `retry` more often than `max_retries` allows; it becomes a dead letter."""


class TaskOptions(NamedTuple):
    """The options of `@app.task` that the kit knows; the defaults are Celery's."""

    name: str | None = None
    bind: bool = False
    queue: str | None = None
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: Exceptions = ()
    dont_autoretry_for: Exceptions = ()
    retry_kwargs: Mapping[str, Any] = {}
    retry_backoff: float = 0
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    time_limit: float | None = None
    priority: int = 0
    expires: float | None = None
    acks_late: bool = True
    ignore_result: bool = False


class TaskRequest(NamedTuple):
    """What a task knows about its run: `self.request`."""

    id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    retries: int
    """The attempts before this one, also those that ended with the death of a worker."""
    delivery: Handling


class Task(tasks.Task[..., Any]):
    """A task of bide in the words of Celery: `delay` and `apply_async` put a message.

    Made by `Celery.task`. Calling it runs the function here and now.

    Args:
        app: the app that it belongs to.
        open_queues: opens the queues of its messages.
        function: is called; with the task before its arguments, if it is bound.
        name: names the task in messages.
        queue: of its messages, unless they are sent to another one.
        options: those of `@app.task`.
    """

    def __init__(
        self,
        app: Registrations,
        open_queues: OpenQueues,
        function: Callable[..., Any],
        name: str,
        queue: str,
        options: TaskOptions,
    ) -> None:
        self.options = options
        self.max_retries = options.retry_kwargs.get("max_retries", options.max_retries)
        self.run = MethodType(function, self) if options.bind else function
        """The function."""
        self._request: ContextVar[TaskRequest] = ContextVar("request")
        attempts = MAX_ATTEMPTS if self.max_retries is None else self.max_retries + 1
        # Retried after no error by the worker: the task itself says after which, and when.
        backoff = Backoff(attempts=min(attempts, MAX_ATTEMPTS), on=())
        parameters = CeleryParameters(self.run)
        super().__init__(app, open_queues, self.run, name, queue, parameters, backoff)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _NOT_THERE:
            raise Unsupported(f"{self.name}.{name} is not supported: {_NOT_THERE[name]}")
        raise AttributeError(f"a task of bide.contrib.celery has no {name!r}")

    @property
    def request(self) -> TaskRequest:
        """What is known about this run.

        Raises:
            WrongContext: the task is not run by a worker.
        """
        request = self._request.get(None)
        if request is None:
            raise WrongContext(
                f"{self.name} was called as a function, so there is no request; a worker gives it "
                f"one: {self.__name__}.delay(...), and in a test bide_worker(app).run_due()"
            )
        return request

    def later(self, delay: Duration | None = None, **options: Any) -> tasks.Later[...]:
        """Say when and how it is called, by default as `@app.task` says; see `Task.later` of bide.

        `expires` counts from the due time, also that of `@app.task`.
        """
        defaults = {"priority": self.options.priority, "expires": self.options.expires}
        return super().later(delay, **{**defaults, **options})

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Put a message that calls the function with these arguments, due at once."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Put a message that calls the function; see `Celery.send_task`."""
        check_arguments(self.name, args, kwargs)
        defaults = {"priority": self.options.priority, "expires": self.options.expires}
        queue_name = options.pop("queue", None) or self.queue_name
        check_has_tasks(self.app, queue_name)
        later = self.later(**message_options(**{**defaults, **options}))
        queue = self._open_queues.queue(queue_name)
        outcome = queue.put(later.message(*(args or ()), **(kwargs or {})))
        return AsyncResult(outcome.id, [queue])

    def result(self, id: str, *, wait: Duration | None = None) -> Any:
        """Return what a call has returned; see `Task.result` of bide."""
        return revived(super().result(id, wait=wait))

    async def aresult(self, id: str, *, wait: Duration | None = None) -> Any:
        """Async form of `result`."""
        return revived(await super().aresult(id, wait=wait))

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        **unknown: Any,
    ) -> NoReturn:
        """End this run, and run the task again later.

        A task that is called as a function is not run again: `exc` is raised.

        Args:
            exc: raised instead when there is no retry left.
            countdown: seconds until then; by default the task's `default_retry_delay`.
            eta: the time instead.
            unknown: Celery's other arguments, which are refused.

        Raises:
            Retry: always, unless there is no retry left.
            MaxRetriesExceeded: there is none, and no `exc`.
            InvalidArgument: the arguments are to change, or the limit; or `eta` is naive.
        """
        if unknown:
            raise InvalidArgument(
                f"retry({next(iter(unknown))}=...) of {self.name}: a retry has the same arguments "
                "and the limit of the task (@app.task(max_retries=...)); to call it with others, "
                "send a new one and return"
            )
        request = self._request.get(None)
        if request is None and exc is not None:
            raise exc
        if request and self.max_retries is not None and request.retries >= self.max_retries:
            if exc is not None:
                raise exc
            raise MaxRetriesExceeded(f"{self.name} has been retried {self.max_retries} times")
        check_aware(eta=eta)
        if eta is not None:
            countdown = (eta - now()).total_seconds()
        delay = self.options.default_retry_delay if countdown is None else countdown
        raise Retry(_reason(exc), delay=delay_of(delay))

    def handle(self, handling: Handling) -> Any:
        """Run the function for a message, and return its result.

        Raises:
            Unfit: the function cannot be called with the arguments of the message.
            Discard: Celery has sent it, and it has expired.
        """
        args, kwargs = self.parameters.arguments_of(handling)
        retries = max(0, handling.attempt - 1)  # the first attempt is no retry
        request = TaskRequest(handling.id, self.name, args, kwargs, retries, handling)
        with self._running(request):
            try:
                result = self.run(*args, **kwargs)
                return None if self.options.ignore_result else written(result)
            except ChosenOutcome:  # no failure, also if `autoretry_for` is of all exceptions
                raise
            except tuple(self.options.dont_autoretry_for):
                raise
            except tuple(self.options.autoretry_for) as error:
                self.retry(exc=error, countdown=self._pause(retries))

    @contextmanager
    def _running(self, request: TaskRequest) -> Iterator[None]:
        """Let `request` return this one, while the function runs."""
        token = self._request.set(request)
        try:
            yield
        finally:
            self._request.reset(token)

    def _pause(self, retries: int) -> float | None:
        """Return the seconds before an automatic retry, as Celery computes them.

        `None`: the default of the task.
        """
        options = self.options
        if not options.retry_backoff:
            countdown: float | None = options.retry_kwargs.get("countdown")
            return countdown
        factor = max(1, int(options.retry_backoff))  # `True` is 1
        longest = min(options.retry_backoff_max, factor * 2**retries)
        return random.uniform(0, longest) if options.retry_jitter else longest


def _reason(error: BaseException | None) -> str:
    """Return what a message remembers of an error; empty without one."""
    return "" if error is None else f"{type(error).__name__}: {error}"
