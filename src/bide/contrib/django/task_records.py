"""What the store keeps of a task, and the `TaskResult` that Django makes of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from bide.model.ended import End
from bide.model.message import Failure, Message
from bide.model.times import to_datetime


class WorkerLost(Exception):
    """The process that ran a task died, or lost its lease."""


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a task's message."""

    task: str
    """The path of the task."""
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    """The alias of the backend in the settings."""
    queue: str
    """The name of the queue in Django."""
    priority: int
    enqueued: datetime
    after: datetime | None = None
    """Before when it is not run; `None`: at once."""

    @classmethod
    def of(
        cls,
        task: Task,
        backend: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        now: datetime,
    ) -> "TaskRecord":
        """Return the record of a task that is enqueued now."""
        return cls(
            task=task.module_path,
            args=normalize_json(list(args)),
            kwargs=normalize_json(dict(kwargs)),
            backend=backend,
            queue=task.queue_name,
            priority=int(task.priority),
            enqueued=now,
            after=task.run_after,
        )

    def imported(self) -> Task:
        """Return the task, as its module has it now, with the options of this call.

        Raises:
            ImportError: there is no such task any more.
        """
        task = import_string(self.task)
        if not isinstance(task, Task):
            raise ImportError(f"{self.task} is not a task of Django")
        return task.using(
            priority=self.priority,
            queue_name=self.queue,
            backend=self.backend,
            run_after=self.after,
        )


_record = msgspec.json.Decoder(TaskRecord).decode


def result_of(
    id: str,
    record: TaskRecord,
    status: Any,
    task: Task,
    *,
    started: datetime | None = None,
    attempted: datetime | None = None,
    finished: datetime | None = None,
    errors: Sequence[TaskError] = (),
    workers: Sequence[str] = (),
    value: Any = None,
) -> TaskResult:
    """Return a `TaskResult`.

    Args:
        id: of the result, and of the message.
        record: what the store has of the call.
        status: one of `TaskResultStatus`.
        task: the task with the options of the call.
        started: when the first attempt began.
        attempted: when the last attempt began.
        finished: when it ended.
        errors: those of failed attempts, oldest first.
        workers: who made the attempts, oldest first.
        value: what the function has returned.
    """
    result = TaskResult(
        task=task,
        id=id,
        status=status,
        enqueued_at=record.enqueued,
        started_at=started,
        finished_at=finished,
        last_attempted_at=attempted,
        args=record.args,
        kwargs=record.kwargs,
        backend=record.backend,
        errors=list(errors),
        worker_ids=list(workers),
    )
    object.__setattr__(result, "_return_value", value)  # as Django's own backends do
    return result


def result_of_message(
    message: Message, since: int | None = None, end: End | None = None
) -> TaskResult:
    """Return the `TaskResult` of a task by its message.

    Args:
        message: of the task; once acked, the one that its queue keeps.
        since: if a worker holds it, since when, in Unix milliseconds.
        end: if it was acked, what its queue remembers of that.

    Raises:
        ValidationError: the message is of no task.
        ImportError: there is no such task any more.
    """
    record = _record(message.seen_data)
    failures = message.failures
    workers = [failure.holder for failure in failures]
    status, finished, value = TaskResultStatus.READY, None, None
    if end is not None:
        status, finished, since = TaskResultStatus.SUCCESSFUL, end.moment, end.since
        workers.append(end.by or "")
        value = None if end.result is None else msgspec.json.decode(end.result)
    elif message.state == "leased":
        status = TaskResultStatus.RUNNING
        workers.append(message.holder or "")
    elif message.state in ("dead", "expired"):
        status, finished = TaskResultStatus.FAILED, message.ended
    if since is None and failures:
        since = _began(failures[-1])
    first_began = _began(failures[0]) if failures else since
    # The clock of the store may be behind the one of who enqueued it.
    started = _after(record.enqueued, first_began)
    attempted = _after(started, since)
    return result_of(
        message.id,
        record,
        status,
        record.imported(),
        started=started,
        attempted=attempted,
        finished=_after(attempted or record.enqueued, finished),
        errors=[_error_of(failure) for failure in failures],
        workers=workers,
        value=value,
    )


def _began(failure: Failure) -> int:
    """Return when an attempt began, or, where that is not known, when it ended."""
    return failure.moment if failure.started is None else failure.started


def _after(earliest: datetime | None, moment: int | None) -> datetime | None:
    """Return a time of the store, or an earlier event's time if that is later.

    As Django has it: without `USE_TZ` it is naive.

    Args:
        earliest: the time of the earlier event; `None`: there was none.
        moment: in Unix milliseconds; `None`: it is not known, and neither is the result.
    """
    if moment is None:
        return None
    event_time = to_datetime(moment)
    if not settings.USE_TZ:
        event_time = timezone.make_naive(event_time)
    return event_time if earliest is None else max(earliest, event_time)


def _error_of(failure: Failure) -> TaskError:
    """Return a failure as Django has it: the path of the exception's class, and a text."""
    if failure.lapsed:
        path = f"{WorkerLost.__module__}.{WorkerLost.__qualname__}"
        return TaskError(exception_class_path=path, traceback=failure.reason)
    # "shop.Error: what it said", and its traceback; or the reason of a bury.
    first_line, _, _ = failure.reason.partition("\n")
    path, colon, _ = first_line.partition(":")
    if not colon or " " in path:  # it is no class
        path = "Exception"
    if "." not in path:
        path = f"builtins.{path}"
    return TaskError(exception_class_path=path, traceback=failure.reason)
