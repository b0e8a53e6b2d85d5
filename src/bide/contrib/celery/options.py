"""The options with which Celery sends a task, as those of a message."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bide.lane.shared import present_clock
from bide.model.errors import InvalidArgument, Unsupported
from bide.model.message import MAX_ATTEMPTS
from bide.model.times import to_datetime
from bide.worker.app.registrations import Registrations

NO_CANVAS = "bide has no canvas; let a task send the next one when it ends"

_CANVAS_OPTIONS = ("link", "link_error", "chain", "chord", "group_id", "add_to_parent")
"""Options of `apply_async` that make a task a part of a canvas."""


def message_options(
    *,
    countdown: float | None = None,
    eta: datetime | None = None,
    task_id: str | None = None,
    expires: float | datetime | None = None,
    priority: int = 0,
    headers: Mapping[str, str] | None = None,
    attempts: int | None = None,
    **unknown: Any,
) -> dict[str, Any]:
    """Return the options of the message of a task; `Celery.send_task` describes the arguments.

    Raises:
        Unsupported: a link, a chord or another part of a canvas is given.
        InvalidArgument: a time is naive, or the task expires before it is due.
    """
    if unknown:
        name = next(iter(unknown))
        no_broker = "leave it out, there is no broker; see help(Celery.send_task)"
        hint = NO_CANVAS if name in _CANVAS_OPTIONS else no_broker
        raise Unsupported(f"apply_async({name}=...) is not supported: {hint}")
    check_aware(eta=eta)
    options = {
        "delay": delay_of(countdown) if eta is None else None,
        "at": eta,
        "id": task_id,
        "priority": priority,
        "expires": _after_due(expires, countdown, eta),
        "headers": headers,
    }
    if attempts is not None:  # else as the task says
        options["attempts"] = min(attempts, MAX_ATTEMPTS)
    return options


def check_arguments(name: str, args: object, kwargs: object) -> None:
    """Check that the arguments of a call are given as Celery takes them.

    Raises:
        InvalidArgument: `args` is not a list or tuple, or `kwargs` is not a mapping.
    """
    if not isinstance(args or (), list | tuple):
        raise InvalidArgument(
            f"args={args!r} of {name} must be a list or a tuple: args=({args!r},)"
        )
    if not isinstance(kwargs or {}, Mapping):
        raise InvalidArgument(f"kwargs={kwargs!r} of {name} must map names to arguments")


def check_has_tasks(app: Registrations, queue: str) -> None:
    """Check that a worker of an app looks for tasks in a queue.

    Raises:
        InvalidArgument: no task of the app is in the queue.
    """
    if queue not in app.queue_handlers or not app.queue_handlers[queue].tasks:
        raise InvalidArgument(
            f"queue={queue!r} belongs to no task, so no worker of this app would look "
            f"there; name it in @app.task(queue={queue!r})"
        )


def now() -> datetime:
    """Return the time by the clock of this process, which tests replace."""
    return to_datetime(present_clock().now())


def delay_of(countdown: float | None) -> float | None:
    """Return the delay of a message; a countdown to a time that is past is negative."""
    return 0 if isinstance(countdown, (int, float)) and countdown < 0 else countdown


def check_aware(**arguments: Any) -> None:
    """Check that those arguments which are times have a time zone.

    Args:
        arguments: by the names that the error says.

    Raises:
        InvalidArgument: one of these times has no time zone.
    """
    for name, value in arguments.items():
        if isinstance(value, datetime) and value.tzinfo is None:
            raise InvalidArgument(
                f"{name}={value!r} is naive; give it a time zone, as in datetime.now(UTC)"
            )


def _after_due(
    expires: float | datetime | None, countdown: float | None, eta: datetime | None
) -> timedelta | None:
    """Return how long after its due time a task may run; Celery counts `expires` from the send.

    Raises:
        InvalidArgument: it expires before it is due, or a time is naive.
    """
    if expires is None:
        return None
    check_aware(expires=expires)
    sent = now()
    end = expires if isinstance(expires, datetime) else sent + timedelta(seconds=expires)
    due = eta or sent + timedelta(seconds=delay_of(countdown) or 0)
    if end <= due:
        raise InvalidArgument(
            f"expires={expires!r} is before the task is due, so it would never run; like Celery's "
            "it counts from now"
        )
    return end - due
