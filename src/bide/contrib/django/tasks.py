"""A backend of `django.tasks`: delayed, prioritized and recoverable, with results on any store.

    TASKS = {"default": {"BACKEND": "bide.contrib.django.tasks.BideBackend"}}

It needs Django 6 or newer.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import msgspec
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, Task, TaskContext, TaskResult, TaskResultStatus
from django.tasks import task as django_task
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import DEFAULT_TASK_QUEUE_NAME, TaskError
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.json import normalize_json

import bide
from bide.consuming.outcomes import text_of
from bide.consuming.settling import judge
from bide.contrib.django.queues import Queue
from bide.contrib.django.task_records import TaskRecord, result_of, result_of_message
from bide.lane.shared import present_clock
from bide.model.commands import Explain
from bide.model.ended import encode_result
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue
from bide.model.message import ATTEMPTS, MAX_ATTEMPTS, Message
from bide.model.times import Duration, milliseconds

PREFIX = "tasks."
"""Before the name of a queue of Django, in the store."""

MIDDLE = 128
"""The priority, in the store, of a task with the default priority 0."""

MOST_OPEN = 256
"""The maximum number of queues that a process keeps open; the id of a result may name any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BideTask(Task):
    """A task of `BideBackend`."""

    retry: bide.Backoff | None = None
    """When a task that raises is tried again; by default never. A crashed worker is no failure of
    the task: it is tried again in any case, up to the option `ATTEMPTS`."""


def task(
    function: Callable[..., Any] | None = None,
    *,
    retry: bide.Backoff | None = None,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    **options: Any,
) -> Any:
    """Make a task of a function, as `django.tasks.task` does, which takes no `retry` in Django 6.0.

    Args:
        function: of the task; without it, a decorator is returned.
        retry: when a task that raises is tried again; by default never.
        backend: the alias of the backend.
        **options: those of `django.tasks.task`.

    Raises:
        InvalidTask: Django or the backend refuses the task, or `retry` needs another backend.
    """

    def made(function: Callable[..., Any]) -> Task:
        task = django_task(backend=backend, **options)(function)
        if retry is None:
            return task
        if not isinstance(task, BideTask):
            raise InvalidTask(f"retry= needs {BideBackend.__name__} in TASKS[{backend!r}]")
        return replace(task, retry=retry)

    return made if function is None else made(function)


class TaskBackendOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="upper"):
    """The `OPTIONS` of the backend."""

    result_ttl: str | float = "1d"
    """How long the result of a task is kept after its success; 0: not at all."""
    attempts: int = ATTEMPTS
    """How often a task is begun at most, when the processes that run it die."""
    lease: str | float = "1m"
    """How long after the death of a process another one gets its tasks."""
    concurrency: int = 16
    """How many tasks of a queue a process runs at a time."""
    timeout: str | float | None = None
    """How long a task may take; by default there is no limit."""


class BideBackend(BaseTaskBackend):
    """Keeps the tasks of Django in bide's store, where `manage.py bide worker` runs them.

    Inside `transaction.atomic` a task is enqueued with the transaction; see `Queue`.
    """

    task_class = BideTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self._options = msgspec.convert(self.options, TaskBackendOptions)
            self.result_ttl = milliseconds(self._options.result_ttl, "RESULT_TTL")
        except (msgspec.ValidationError, InvalidArgument) as error:
            names = ", ".join(TaskBackendOptions.__struct_encode_fields__)
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS']: {error}; known are {names}"
            ) from error

    # What Django asks for.

    def validate_task(self, task: Task) -> None:
        """Refuse a task that cannot be enqueued.

        Raises:
            InvalidTask: Django refuses the task, or bide the name of its queue.
        """
        super().validate_task(task)
        try:
            check_queue(PREFIX + task.queue_name)
        except InvalidArgument as error:
            raise InvalidTask(f"queue_name: {error}") from error

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Enqueue a task."""
        self.validate_task(task)
        id = f"{task.queue_name}:{get_random_string(32)}"
        record = TaskRecord.of(task, self.alias, args, kwargs, timezone.now())
        result = result_of(id, record, TaskResultStatus.READY, task)
        self._queue(task.queue_name).put(
            record,
            id=id,
            at=_aware(task.run_after),
            priority=MIDDLE + int(task.priority),
            attempts=max(self._options.attempts, _retry_of(task).attempts),
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a task, as it is now.

        Raises:
            TaskResultDoesNotExist: there is none with this id, it was cancelled, or its time is up.
        """
        if (message := self._message(result_id)) is None:
            raise TaskResultDoesNotExist(result_id)
        queue = self._queue(_queue_of(result_id))
        since, end = None, None
        if message.state == "leased":
            since = queue._execute(Explain(message.queue, result_id)).since
        elif message.state == "acked":
            if not (ends := queue.history(result_id)):
                raise TaskResultDoesNotExist(result_id)
            end = ends[0]
        return result_of_message(message, since, end)

    # What bide offers beyond.

    def cancel(self, result: TaskResult | str) -> bool:
        """Cancel a task that no worker runs; its result does not exist any more.

        Args:
            result: or its id.

        Returns:
            Whether it will not run. False: a worker runs it, it has ended, or there is none.
        """
        id = _id_of(result)
        return bool(self._queue(_queue_of(id)).cancel(id))

    def reschedule(
        self, result: TaskResult | str, at: datetime | None = None, *, delay: Duration | None = None
    ) -> bool:
        """Change when a task runs that no worker runs yet.

        Args:
            result: or its id.
            at: when it runs, an aware `datetime`;
            delay: or how long from now.

        Returns:
            Whether that was changed.
        """
        id = _id_of(result)
        at = _aware(at)
        return bool(self._queue(_queue_of(id)).reschedule(id, at=at, delay=delay))

    async def acancel(self, result: TaskResult | str) -> bool:
        """Async form of `cancel`."""
        return bool(await sync_to_async(self.cancel)(result))

    async def areschedule(
        self, result: TaskResult | str, at: datetime | None = None, *, delay: Duration | None = None
    ) -> bool:
        """Async form of `reschedule`."""
        return bool(await sync_to_async(self.reschedule)(result, at, delay=delay))

    # What a worker asks for.

    @property
    def served(self) -> list[str]:
        """The names of the queues that a worker serves."""
        return sorted(self.queues) or [DEFAULT_TASK_QUEUE_NAME]

    def register(self, app: bide.App) -> None:
        """Register the handlers of the queues of this backend."""
        options = self._options
        for name in self.served:
            if PREFIX + name not in app.queue_handlers:  # else another backend has the same queue
                app.handler(
                    PREFIX + name,
                    lease=options.lease,
                    concurrency=options.concurrency,
                    timeout=options.timeout,
                    retry=bide.Backoff(attempts=MAX_ATTEMPTS),
                )(self.run)

    def run(self, delivery: bide.Handling) -> Any:
        """Run a task, and return its result, which the worker gives with the ack.

        Raises:
            Bury: the task has failed for good.
            Retry: it will be tried again.
        """
        result = result_of_message(delivery.message, since=present_clock().now())
        task = result.task
        # By which the worker judges the task if it goes on past its timeout.
        retry = _retry_of(task)
        crashes = sum(failure.lapsed for failure in delivery.message.failures)
        if crashes:  # they are no failures of the task: `ATTEMPTS` alone counts them
            retry = replace(retry, attempts=min(retry.attempts + crashes, MAX_ATTEMPTS))
        delivery.handler = replace(delivery.handler, retry=retry)
        task_started.send(type(self), task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
            if self.result_ttl:
                encode_result(value)  # raises if it is too large to be kept
        except BaseException as error:  # noqa: BLE001  (it is judged, and reported to Django)
            self._failed(delivery, result, error)
        object.__setattr__(result, "_return_value", value)
        self._finished(delivery, result, TaskResultStatus.SUCCESSFUL)
        return value

    def _failed(
        self, delivery: bide.Handling, result: TaskResult, error: BaseException
    ) -> NoReturn:
        """Raise what settles a task that raised.

        Raises:
            Retry: it will be tried again.
            Bury: it has failed for good.
        """
        error_type = type(error)
        path = f"{error_type.__module__}.{error_type.__qualname__}"
        trace = "".join(traceback.format_exception(error))
        summary = text_of(error).partition("\n")[0][:FIRST_LINE]
        reason = f"{path}: {summary}\n{trace}"
        chance = random.random()  # for the jitter
        verdict = judge(delivery.message, error, delivery.handler.retry, chance)
        if verdict.outcome == "retried" and isinstance(error, Exception):
            raise bide.Retry(reason, delay=verdict.delay / 1000) from error
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
        self._finished(delivery, result, TaskResultStatus.FAILED)
        raise bide.Bury(reason) from error

    def _finished(self, delivery: bide.Handling, result: TaskResult, status: Any) -> None:
        """Note the end of a task in its result, and tell the receivers of the signal.

        They hear nothing of a run that went on past its timeout or lost its lease: the store has
        another end of it, or none yet.
        """
        # The result is frozen for all but backends.
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", status)
        if not delivery.outcome_ignored:
            task_finished.send(type(self), task_result=result)

    def check(self, **more: Any) -> list[CheckMessage]:
        """Return what is wrong with the settings."""
        if not apps.is_installed("bide.contrib.django"):
            hint = "add 'bide.contrib.django' to INSTALLED_APPS"
            return [Error(f"TASKS[{self.alias!r}] needs the kit", hint=hint, id="bide.E005")]
        if self.queues:
            return []
        text = (
            f"TASKS[{self.alias!r}]['QUEUES'] is empty, so that tasks may be in any queue, and a "
            f"worker serves {DEFAULT_TASK_QUEUE_NAME!r} alone"
        )
        return [Warning(text, hint="name the queues", id="bide.W004")]

    def _queue(self, name: str) -> Queue:
        """Return the queue in the store for a queue of Django."""
        return _open(PREFIX + name, self.result_ttl)

    def _message(self, id: str) -> Message | None:
        """Return the message of a task; `None` if there is none with this id."""
        try:
            return self._queue(_queue_of(id)).get(id)
        except InvalidArgument:  # it is no id of this backend
            return None


@lru_cache(maxsize=MOST_OPEN)
def _open(name: str, result_ttl: int) -> Queue:
    """Return a queue that keeps tasks, and their results, for so many milliseconds."""
    ttl = result_ttl / 1000
    return Queue(name, keep=ttl, result_ttl=ttl)


def _queue_of(id: str) -> str:
    """Return the name of the queue that the id of a task begins with; see `enqueue`."""
    queue, _, _ = id.rpartition(":")
    return queue


def _retry_of(task: Task) -> bide.Backoff:
    """Return when a task that has failed is tried again: without `retry`, never."""
    return getattr(task, "retry", None) or bide.Backoff(attempts=1)


def _id_of(result: TaskResult | str) -> str:
    """Return the id of a result that was given as itself or by its id."""
    return result if isinstance(result, str) else str(result.id)


def _aware(moment: datetime | None) -> datetime | None:
    """Return a time that bide takes: without `USE_TZ`, Django's are in the default time zone."""
    if moment is not None and not settings.USE_TZ and timezone.is_naive(moment):
        aware: datetime = timezone.make_aware(moment)
        return aware
    return moment


FIRST_LINE = 500
"""The maximum number of characters of an error in the first line of a failure's reason."""
