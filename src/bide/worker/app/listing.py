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
            if source is not None:
                kind = "source"
            elif queue in app.schedules:
                kind = "schedule"
            elif name is None:
                kind = "handler"
            else:
                task = app.tasks.get(name)
                kind = "task" if task is not None and task.queue_name == queue else "job"
            facts: dict[str, Any] = {
                "kind": kind,
                "name": name or (handler.name if source is None else source.name),
                "queue": queue if source is None else source.queue,
                "takes": handler.takes,
                "function": handler.name,
                "lease": queue_handlers.lease,
                "concurrency": queue_handlers.concurrency,
                "attempts": handler.retry.attempts,
                "declared": queue_handlers.settings,
            }
            if handler.timeout is not None:
                facts["timeout"] = round(handler.timeout * 1000)
            yield facts
