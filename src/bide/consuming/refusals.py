"""Which messages the handlers of an app would refuse, and why: for `bide check-deploy`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bide.consuming.handler import Misfit, Unfit
from bide.consuming.parameters import task_called
from bide.consuming.queue_handlers import QueueHandlers
from bide.model.message import JOB, Message

Kind = Misfit | Literal["no task", "no job"]

UNTIL = "until these messages are gone"

FIXES: dict[Kind, str] = {
    "missing argument": f"give the new parameters defaults {UNTIL}",
    "unknown argument": f"keep the parameters, with defaults, {UNTIL}",
    "argument": f"annotate it with both types, the former and the new, {UNTIL}",
    "body": f"let the type take these bodies {UNTIL}: give new fields defaults, and fields that "
    "changed both types",
    "no task": f"keep it {UNTIL}; if you renamed or moved it: "
    f"@app.task(name={{name!r}}, queue={{queue!r}})",
    "no job": f"keep it {UNTIL}; if you renamed or moved it: @app.job({{queue!r}}, {{name!r}})",
}
NAMELESS = (
    f"let the queue keep its former handler {UNTIL}, and give the tasks and jobs another queue"
)


@dataclass(frozen=True)
class MessageRefusal:
    """Why an app would refuse messages of a queue; equal for those that have the same fault."""

    queue: str
    kind: Kind
    name: str
    """The task, the job, or the function of the handler."""
    reason: str
    fix: str


def refusal_of(
    message: Message, queue: str, queues: Mapping[str, QueueHandlers]
) -> MessageRefusal | None:
    """Return why an app would refuse a message; `None` if it would handle it, or if it is not its.

    In a queue that the app does not handle, only calls of tasks and messages of jobs are refused:
    the task or the job is gone, or has another queue now. Other messages are not the app's.

    Args:
        message: the message.
        queue: its queue.
        queues: what the app handles, by queue.

    Raises:
        AccessDenied: a server withheld the body.
    """
    _ = message.seen_data  # raises if it was withheld: else it would seem to be empty
    queue_handlers = queues.get(queue)
    job = (message.headers or {}).get(JOB)
    if queue_handlers is None:
        name = task_called(message) if job is None else job
        return None if name is None else _gone(queue, name, queues, is_job=job is not None)
    name, handler = queue_handlers.work_of(message), queue_handlers.of(message)
    if handler is None and name is not None:
        return _gone(queue, name, queues, is_job=job is not None)
    if handler is None:
        known = ", ".join(sorted(map(str, queue_handlers.handlers)))
        reason = f"they name neither task nor job; the app has {known} in this queue"
        return MessageRefusal(queue, "body", "", reason, NAMELESS)
    if handler.check is None:
        return None
    try:
        handler.check(message)
    except Unfit as error:
        is_call = name is not None or not queue_handlers.tasks
        fix = FIXES[error.misfit] if is_call else NAMELESS
        return MessageRefusal(queue, error.misfit, name or handler.name, _reason(error), fix)
    return None


def _gone(
    queue: str, name: str, queues: Mapping[str, QueueHandlers], *, is_job: bool
) -> MessageRefusal:
    """Return the refusal of a task or a job that an app does not have in a queue."""
    others = [
        other
        for other, queue_handlers in queues.items()
        if other != queue and name in queue_handlers.handlers
    ]
    elsewhere = f"; it has one in {', '.join(others)}" if others else ""
    kind: Kind = "no job" if is_job else "no task"
    reason = f"the app has {kind} {name!r} in this queue{elsewhere}"
    return MessageRefusal(queue, kind, name, reason, FIXES[kind].format(name=name, queue=queue))


def _reason(error: Unfit) -> str:
    """Return why a body does not fit, in one line, the same for all with the same fault.

    The text of an error of pydantic has the values that it refused.
    """
    cause = error.__cause__
    if cause is None or not hasattr(cause, "errors"):
        return " ".join(str(error).split())
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}".removeprefix(": ")
        for fault in cause.errors()
    ]
    return str(error).removesuffix(str(cause)) + "; ".join(faults)
