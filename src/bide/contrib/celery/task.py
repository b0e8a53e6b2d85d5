"""A task as Celery's programs write it, with a message of bide behind it."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, Protocol

from bide.consuming.outcomes import ChosenOutcome, Discard, Retry
from bide.contrib.celery.arguments import call_of, written
from bide.contrib.celery.result import AsyncResult
from bide.model.errors import InvalidArgument, Unsupported, WrongContext
from bide.model.message import MAX_ATTEMPTS
from bide.queue.delivery import Delivery

NO_CANVAS = "bide has no canvas; let a task send the next one when it ends"

_WITHIN = "put a message within the transaction, with bide.contrib.django.Queue"

_NOT_THERE = {
    **dict.fromkeys(
        ("s", "si", "signature", "subtask", "chunks", "map", "starmap", "replace", "add_to_chord"),
        NO_CANVAS,
    ),
    "apply": "call the task as a function",
    "update_state": "keep the progress in your database",
    "delay_on_commit": _WITHIN,
    "apply_async_on_commit": _WITHIN,
}
"""What tasks of Celery have, and what to do instead."""

_CANVAS_OPTIONS = ("link", "link_error", "chain", "chord", "group_id", "add_to_parent")

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
    delivery: Delivery


class SendsTasks(Protocol):
    """What a task needs of its app."""

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Put a message that calls a task."""
        ...

    def now(self) -> datetime:
        """Return the time by the clock of the app's queues."""
        ...


class Task:
    """A function that messages call: `delay` and `apply_async` put one.

    Made by `Celery.task`. Calling it runs the function here and now.
    """

    def __init__(
        self, app: SendsTasks, function: Callable[..., Any], name: str, options: TaskOptions
    ) -> None:
        self.app = app
        self.run = function
        self.name = name
        self.options = options
        self.max_retries = options.retry_kwargs.get("max_retries", options.max_retries)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self._request: ContextVar[TaskRequest] = ContextVar("request")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now."""
        return self.run(self, *args, **kwargs) if self.options.bind else self.run(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _NOT_THERE:
            raise Unsupported(f"{self.name}.{name} is not there: {_NOT_THERE[name]}")
        raise AttributeError(f"a task of bide.contrib.celery has no {name!r}")

    @property
    def attempts(self) -> int:
        """How often a message of the task is delivered at most."""
        return MAX_ATTEMPTS if self.max_retries is None else self.max_retries + 1

    @property
    def request(self) -> TaskRequest:
        """What is known about this run.

        Raises:
            WrongContext: the task is not run by a worker.
        """
        running = self._request.get(None)
        if running is None:
            raise WrongContext(
                f"{self.name} was called as a function, so there is no request; a worker gives it "
                f"one: {self.__name__}.delay(...), and in a test bide_worker(app).run_due()"
            )
        return running

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Put a message that calls the function with these arguments, due at once."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Put a message that calls the function; see `Celery.send_task`."""
        own = self.options
        defaults = {"queue": own.queue, "priority": own.priority, "expires": own.expires}
        return self.app.send_task(
            self.name, args, kwargs, attempts=self.attempts, **{**defaults, **options}
        )

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check that the function can be called so, as Celery does when a task is sent.

        Raises:
            InvalidArgument: it cannot.
        """
        own = (self,) if self.options.bind else ()
        try:
            inspect.signature(self.run).bind(*own, *args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(
                f"{self.name} cannot be called with args={args!r} and kwargs={kwargs!r}: {error}"
            ) from None

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
        running = self._request.get(None)
        if running is None and exc is not None:
            raise exc
        if running and self.max_retries is not None and running.retries >= self.max_retries:
            if exc is not None:
                raise exc
            raise MaxRetriesExceeded(f"{self.name} has been retried {self.max_retries} times")
        check_aware(eta=eta)
        if eta is not None:
            countdown = (eta - self.app.now()).total_seconds()
        delay = self.options.default_retry_delay if countdown is None else countdown
        raise Retry(_reason(exc), delay=delay_of(delay))

    def handle(self, body: Any, delivery: Delivery) -> Any:
        """Run the function for a message, and return its result.

        Raises:
            Discard: Celery has sent it, and it has expired.
        """
        call = call_of(body)
        if call.expires is not None and delivery.claimed > call.expires * 1000:
            end = datetime.fromtimestamp(call.expires, UTC)
            raise Discard(f"it expired at {end:%Y-%m-%d %H:%M:%S} UTC, before it was run")
        retries = max(0, delivery.attempt - 1)
        request = TaskRequest(delivery.id, self.name, call.args, call.kwargs, retries, delivery)
        with self._running(request):
            try:
                result = self(*call.args, **call.kwargs)
                return None if self.options.ignore_result else written(result)
            except ChosenOutcome:
                raise
            except tuple(self.options.dont_autoretry_for):
                raise
            except tuple(self.options.autoretry_for) as error:
                self.retry(exc=error, countdown=self._pause(retries))

    @contextmanager
    def _running(self, request: TaskRequest) -> Iterator[None]:
        token = self._request.set(request)
        try:
            yield
        finally:
            self._request.reset(token)

    def _pause(self, retries: int) -> float | None:
        """Return the delay before an automatic retry, as Celery computes it."""
        own = self.options
        if not own.retry_backoff:
            pause: float | None = own.retry_kwargs.get("countdown")
            return pause
        longest = min(own.retry_backoff_max, max(1, int(own.retry_backoff)) * 2**retries)
        return random.uniform(0, longest) if own.retry_jitter else longest


def delay_of(countdown: float | None) -> float | None:
    """Return the delay of a message; a countdown to a time that is past is negative."""
    return 0 if isinstance(countdown, (int, float)) and countdown < 0 else countdown


def check_aware(**given: Any) -> None:
    """Check that times have a time zone; other values pass.

    Raises:
        InvalidArgument: one has none.
    """
    for name, value in given.items():
        if isinstance(value, datetime) and value.tzinfo is None:
            raise InvalidArgument(
                f"{name}={value!r} is naive; give it a time zone, as in datetime.now(UTC)"
            )


def unsupported_option(name: str) -> Unsupported:
    """Return the error of an option of `apply_async` that Celery has and bide does not."""
    none = "leave it out, there is no broker; see help(Celery.send_task)"
    hint = NO_CANVAS if name in _CANVAS_OPTIONS else none
    return Unsupported(f"apply_async({name}=...) is not there: {hint}")


def _reason(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"
