"""Handlers that run in a context of a framework."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from bide.consuming.handler import Handler
from bide.consuming.handling import Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.worker.app.app import App

__all__ = ["ContextApp"]


class ContextApp(App):
    """A `bide.App` whose handlers, sources and schedules run in a context of the framework."""

    def _thread_context(self) -> AbstractContextManager[object]:
        """Return the context of a plain handler."""
        raise NotImplementedError

    def _loop_context(self) -> AbstractAsyncContextManager[object]:
        """Return the context of an async handler."""
        raise NotImplementedError

    @property
    def queue_handlers(self) -> Mapping[str, QueueHandlers]:
        """The handlers by queue, including those of jobs, sources and schedules."""
        return MappingProxyType(
            {queue: self._in_context(known) for queue, known in self._queue_handlers.items()}
        )

    def _in_context(self, known: QueueHandlers) -> QueueHandlers:
        handlers: dict[str | None, Handler] = {
            job: _InContext(
                **{each.name: getattr(handler, each.name) for each in fields(handler)}, app=self
            )
            for job, handler in known.handlers.items()
        }
        return replace(known, handlers=handlers)


@dataclass(frozen=True, eq=False, kw_only=True)
class _InContext(Handler):
    """A handler that runs in a context of its app."""

    app: ContextApp

    def call(self, one: Handling) -> Any:
        """Call the function, in its thread or on the event loop."""
        return self._on_loop(one) if self.is_async else self._in_thread(one)

    def _in_thread(self, one: Handling) -> Any:
        with self.app._thread_context():
            return super().call(one)

    async def _on_loop(self, one: Handling) -> Any:
        async with self.app._loop_context():
            return await super().call(one)
