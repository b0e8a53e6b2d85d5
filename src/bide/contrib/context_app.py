"""Handlers that run in a context of a framework."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bide.consuming.handling import Handler, Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.worker.app.app import App


class ContextApp(App):
    """A `bide.App` whose handlers, sources and schedules run in a context of the framework."""

    @property
    def queue_handlers(self) -> Mapping[str, QueueHandlers]:
        """The handlers by queue, including those of jobs, sources and schedules."""
        return MappingProxyType(
            {
                queue: replace(
                    queue_handlers,
                    handlers={
                        job: self._in_context(handler)
                        for job, handler in queue_handlers.handlers.items()
                    },
                )
                for queue, queue_handlers in self._queue_handlers.items()
            }
        )

    def _in_context(self, handler: Handler) -> Handler:
        """Return a handler that runs in a context of the framework."""
        if handler.batch > 1:  # each call of its function has the context, not each message
            return handler

        def in_thread(handling: Handling) -> Any:
            with self._thread_context():
                return handler.call(handling)

        async def on_loop(handling: Handling) -> Any:
            async with self._loop_context():
                return await handler.call(handling)

        return replace(handler, call=on_loop if handler.is_async else in_thread)
