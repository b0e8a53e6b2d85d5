"""Runs a task for a worker."""

from __future__ import annotations

import random
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from django.tasks import TaskContext, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

import bide
from bide.consuming.outcomes import text_of
from bide.contrib.django.task_records import (
    Record,
    began,
    errors_of,
    record_of,
    result_of,
    time_of,
)
from bide.model.ended import encode_result

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

    def run(self, delivery: bide.Delivery) -> Any:
        """Run a task, and return its result, which the worker gives with the ack.

        Raises:
            Bury: the task has failed for good.
            Retry: it will be tried again.
        """
        result = self._started(delivery, record_of(delivery.message))
        task_started.send(type(self._backend), task_result=result)
        task = result.task
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
            if self._backend.result_ttl:
                encode_result(value)  # raises if it is too large to be kept
        except BaseException as error:  # noqa: BLE001  (it is judged, and told to Django)
            self._failed(delivery, result, error)
        _end(result, TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "_return_value", value)
        task_finished.send(type(self._backend), task_result=result)
        return value

    def _started(self, delivery: bide.Delivery, record: Record) -> TaskResult:
        now, failures = timezone.now(), delivery.message.failures
        first = time_of(began(failures[0])) if failures else now
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


def _end(result: TaskResult, status: Any) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
