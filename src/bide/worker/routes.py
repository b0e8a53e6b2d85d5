"""Which handler a message is for: the one of its queue, or the job that its header names."""

from bide.model.message import Message
from bide.worker.duty import Duty
from bide.worker.handler import Handler
from bide.worker.job import JOB
from bide.worker.signals import Retry

__all__ = ["any_handler", "no_such_job", "route"]


def route(duty: Duty, message: Message) -> Handler | None:
    """Return the handler of a message; `None` if it is of a job that is not known here."""
    handlers = duty.handlers
    if (plain := handlers.get(None)) is not None:
        return plain
    job = (message.headers or {}).get(JOB)
    if job is None and len(handlers) == 1:
        return any_handler(duty)
    return handlers.get(job)


def any_handler(duty: Duty) -> Handler:
    """Return one of the handlers of a queue, for a message that none of them is for."""
    return next(iter(duty.handlers.values()))


def no_such_job(duty: Duty, message: Message) -> Retry:
    """Return what has such a message tried again: a newer process may know its job."""
    job = (message.headers or {}).get(JOB)
    known = ", ".join(str(name) for name in duty.handlers)
    said = f"is of the job {job!r}" if job else f"has no header {JOB!r}"
    return Retry(reason=f"the message {said}; this worker knows the jobs {known}")
