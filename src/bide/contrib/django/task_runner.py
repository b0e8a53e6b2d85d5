"""Runs a task for a worker, and keeps its result."""

from __future__ import annotations

import random
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from django.tasks import TaskContext, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

import bide
from bide.consuming.outcomes import text_of
from bide.contrib.django.task_records import (
    Outcome,
    Record,
    errors_of,
    record_of,
    result_of,
    time_of,
)

if TYPE_CHECKING:
    from bide.contrib.django.tasks import BideBackend

__all__ = ["TaskRunner"]

FIRST_LINE = 500
"""The maximum number of characters of an error in the first line of a failure's reason."""


class TaskRunner:
    """Handles the messages of tasks.

    Args:
        backend: that enqueued them.
    """

    def __init__(self, backend: BideBackend) -> None:
        self._backend = backend

    def run(self, delivery: bide.Delivery) -> None:
        """Run a task. What it returns is kept before the message is acked.

        A worker that dies in between leaves both; then the next attempt finds the result, and the
        task does not run again.

        Raises:
            Bury: the task has failed for good.
            Retry: it will be tried again.
        """
        record = record_of(delivery.message)
        if delivery.attempt > 1 and self._backend.result_queue.get(delivery.id) is not None:
            return
        result = self._started(delivery, record)
        task_started.send(type(self._backend), task_result=result)
        task = result.task
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:  # noqa: BLE001  (it is judged, and told to Django)
            self._failed(delivery, result, error)
        try:
            self._keep(result, record, value)
        except bide.InvalidArgument as error:  # too large
            self._failed(delivery, result, error)
        _end(result, TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "_return_value", value)
        task_finished.send(type(self._backend), task_result=result)

    def _started(self, delivery: bide.Delivery, record: Record) -> TaskResult:
        now, failures = timezone.now(), delivery.message.failures
        first = time_of(failures[0].moment) if failures else now
        workers = [failure.holder for failure in failures] + [delivery.message.holder or ""]
        return result_of(
            delivery.id, record, TaskResultStatus.RUNNING, record.imported(), started=first,
            attempted=now, workers=workers, errors=errors_of(failures),
        )  # fmt: skip

    def _failed(
        self, delivery: bide.Delivery, result: TaskResult, error: BaseException
    ) -> NoReturn:
        """Tell the worker what becomes of a task that raised."""
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        told = "".join(traceback.format_exception(error))
        said = text_of(error).partition("\n")[0][:FIRST_LINE]
        reason = f"{path}: {said}\n{told}"
        retry: bide.Backoff | None = getattr(result.task, "retry", None)
        is_last = (
            retry is None
            or not isinstance(error, Exception)
            or not retry.covers(error)
            or delivery.attempt >= min(retry.attempts, delivery.message.attempts)
        )
        if retry is not None and not is_last:
            pause = retry.delay(delivery.attempt, random.random())
            raise bide.Retry(reason, delay=pause / 1000) from error
        result.errors.append(TaskError(exception_class_path=path, traceback=told))
        _end(result, TaskResultStatus.FAILED)
        task_finished.send(type(self._backend), task_result=result)
        raise bide.Bury(reason) from error

    def _keep(self, result: TaskResult, record: Record, value: Any) -> None:
        if not (ttl := self._backend.result_ttl):
            return
        outcome = Outcome(
            value, result.started_at, result.last_attempted_at, timezone.now(), result.worker_ids,
            [(one.exception_class_path, one.traceback) for one in result.errors],
        )  # fmt: skip
        kept = msgspec.structs.replace(record, outcome=outcome)
        # Whatever the transaction of the task's own: it has succeeded.
        self._backend.result_queue.put(
            kept, id=result.id, delay=ttl / 1000, on_conflict="replace", within=False
        )


def _end(result: TaskResult, status: Any) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
