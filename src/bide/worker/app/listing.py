"""What an app has registered, for lists."""

from collections.abc import Iterator
from typing import Any

from bide.worker.app.app import App


def facts_of(app: App) -> Iterator[dict[str, Any]]:
    """Yield what is known of each task, job, handler, source and schedule, in the order of code.

    `declared` are the settings of its queue, by name as `Configure` takes them.
    """
    for queue, queue_handlers in app.queue_handlers.items():
        for name, handler in queue_handlers.handlers.items():
            source = app.sources.get(queue)
            facts: dict[str, Any] = {
                "kind": _kind_of(app, queue, name),
                "name": name or (handler.name if source is None else source.name),
                "queue": queue if source is None else source.queue,
                "takes": handler.takes,
                "function": handler.name,
                "lease": queue_handlers.lease,
                "concurrency": queue_handlers.concurrency,
                "attempts": handler.retry.attempts,
                "declared": queue_handlers.settings,
            }
            if queue_handlers.window is not None:
                facts["window"] = str(queue_handlers.window)
            if handler.timeout is not None:
                facts["timeout"] = round(handler.timeout * 1000)  # milliseconds, as the lease
            yield facts


def _kind_of(app: App, queue: str, name: str | None) -> str:
    """Return what a handler was registered as.

    Args:
        app: the app that it is of.
        queue: its queue.
        name: the job or the task; `None` for what takes all messages of its queue.
    """
    if queue in app.sources:
        return "source"
    if queue in app.schedules:
        return "schedule"
    if name is None:
        return "handler"
    return "task" if name in app.queue_handlers[queue].tasks else "job"
