"""The app: handlers whose database connections are looked after."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

import bide
from bide.clock import SYSTEM_CLOCK, Clock
from bide.consuming.handler import Handler
from bide.consuming.handling import Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.contrib.django.conf import store_url
from bide.worker.app.lifespan import Lifespan

__all__ = ["App", "app"]


class App(bide.App):
    """A `bide.App` on the store of the setting `BIDE`, for handlers that use Django's database.

    Around each handler, source and schedule it closes connections as Django does around a request:
    those that are broken, and those that are older than `CONN_MAX_AGE`. An async handler has
    connections of its own, which are closed at its end.

    Args:
        url: of another store; by default the one of the settings.
        lifespan, clock: as for `bide.App`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(url or store_url(), lifespan=lifespan, clock=clock)

    @property
    def queue_handlers(self) -> Mapping[str, QueueHandlers]:
        """The handlers by queue, including those of jobs, sources and schedules."""
        return MappingProxyType(
            {queue: _looked_after(known) for queue, known in self._queue_handlers.items()}
        )


app = App()
"""The app that `manage.py bide worker` runs: the modules `handlers` of a project fill it."""


def _looked_after(known: QueueHandlers) -> QueueHandlers:
    handlers: dict[str | None, Handler] = {
        job: _WithConnections(
            **{each.name: getattr(handler, each.name) for each in fields(handler)}
        )
        for job, handler in known.handlers.items()
    }
    return replace(known, handlers=handlers)


@dataclass(frozen=True, eq=False)
class _WithConnections(Handler):
    """A handler that leaves no connection behind that it should not."""

    def call(self, one: Handling) -> Any:
        """Call the function, in its thread or on the event loop."""
        return self._on_loop(one) if self.is_async else self._in_thread(one)

    def _in_thread(self, one: Handling) -> Any:
        close_old_connections()
        try:
            return super().call(one)
        finally:
            close_old_connections()

    async def _on_loop(self, one: Handling) -> Any:
        # As around an async request of Django: what it does in sync_to_async has its own thread.
        async with ThreadSensitiveContext():
            try:
                return await super().call(one)
            finally:
                await sync_to_async(connections.close_all)()
