"""The app: handlers whose database connections are looked after."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries

from bide.clock import SYSTEM_CLOCK, Clock
from bide.contrib.context_app import ContextApp
from bide.contrib.django.conf import store_url
from bide.contrib.django.queues import AsyncQueue, Queue
from bide.worker.app.lifespan import Lifespan
from bide.worker.app.open_queues import OpenQueues


class App(ContextApp):
    """A `bide.App` on the store of the setting `BIDE`, for handlers that use Django's database.

    Around each handler, source and schedule it closes connections as Django does around a request:
    those that are broken, and those that are older than `CONN_MAX_AGE`. An async handler has
    connections of its own, which are closed at its end. What its tasks put joins transactions, as
    what `bide.contrib.django.Queue` puts.

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
        self._url_of_settings = None if url else self._url
        self._open_queues = OpenQueues(self._url_of_queues, clock, Queue, AsyncQueue)

    def _url_of_queues(self) -> str | None:
        """Return what queues are given: nothing if they are to follow the settings."""
        return None if self._url == self._url_of_settings else self._url

    @contextmanager
    def _thread_context(self) -> Iterator[None]:
        """Close connections as Django does around a request, and forget the queries of `DEBUG`."""
        reset_queries()
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()

    @asynccontextmanager
    async def _loop_context(self) -> AsyncIterator[None]:
        """Close the connections of an async handler."""
        # As around an async request of Django: what it does in sync_to_async has its own thread.
        async with ThreadSensitiveContext():
            try:
                yield
            finally:
                await sync_to_async(connections.close_all)()


app = App()
"""The app that `manage.py bide worker` runs: the modules `handlers` of a project fill it."""
