"""Find the handler of a message: that of its queue, or of the job that its header names."""

from bide.consuming.handler import Handler
from bide.consuming.outcomes import Retry
from bide.consuming.queue_handlers import QueueHandlers
from bide.model.message import Message

__all__ = ["JOB", "any_handler", "no_such_job", "route"]

JOB = "bide-job"
"""The header that names the job of a message."""


def route(queue_handlers: QueueHandlers, message: Message) -> Handler | None:
    """Return the handler of a message of a queue with jobs; `None` if this process has no such."""
    handlers = queue_handlers.handlers
    job = (message.headers or {}).get(JOB)
    if job is None and len(handlers) == 1:
        return any_handler(queue_handlers)
    return handlers.get(job)


def any_handler(queue_handlers: QueueHandlers) -> Handler:
    """Return any handler of a queue, for a message without one."""
    return next(iter(queue_handlers.handlers.values()))


def no_such_job(queue_handlers: QueueHandlers, message: Message) -> Retry:
    """Return the retry of a message without a handler: a newer process may know its job."""
    job = (message.headers or {}).get(JOB)
    known = ", ".join(str(name) for name in queue_handlers.handlers)
    said = f"is of the job {job!r}" if job else f"has no header {JOB!r}"
    return Retry(reason=f"the message {said}; this worker knows the jobs {known}")
