"""The app: handlers whose database connections are looked after."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar, overload

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries, transaction

from bide.clock import SYSTEM_CLOCK, Clock
from bide.consuming.handler import is_coroutine_function, name_of
from bide.contrib.context_app import ContextApp
from bide.contrib.django.conf import configuration, store_url
from bide.contrib.django.queues import AsyncQueue, Queue
from bide.model.errors import InvalidArgument
from bide.worker.app.lifespan import Lifespan
from bide.worker.app.open_queues import OpenQueues
from bide.worker.app.periodic import F
from bide.worker.app.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class DjangoApp(ContextApp):
    """A `bide.App` on the store of the setting `BIDE`, for handlers that use Django's database.

    Around each handler, source and schedule it closes connections as Django does around a request:
    those that are broken, and those that are older than `CONN_MAX_AGE`. An async handler has
    connections of its own, which are closed at its end. What its tasks put joins transactions, as
    what `bide.contrib.django.Queue` puts.

    Args:
        url: of another store; by default the one of the settings.
        lifespan: opens and closes what handlers need, such as a connection pool: a function that
            takes the app and returns a context manager, plain or async.
        clock: for tests; see `bide.testing.FakeClock`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        named = store_url() if url is None else url
        super().__init__(named, lifespan=lifespan, clock=clock)
        self._url_of_settings = self._url if url is None else None
        """What the settings named when the app was made; `None`: it is on another store."""
        self._open_queues = OpenQueues(self._url_of_queues, clock, Queue, AsyncQueue)

    def handler(self, queue: str, *, atomic: bool = False, **options: Any) -> Callable[[F], F]:
        """Register a function that handles the messages of a queue; see `bide.App.handler`.

        Args:
            queue: its name.
            atomic: run each delivery in `transaction.atomic`, and ack its message within it: what
                the function changes and the ack are committed together. For plain functions, with
                the store in the database of the setting `BIDE`.
            options: of `bide.App.handler`.
        """
        register = super().handler(queue, **_joining(options, atomic=atomic))
        return _refusing_async(register) if atomic else register

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, /, *, atomic: bool = False, **options: Any
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, /, *, atomic: bool = False, **options: Any) -> Any:
        """Register a function that messages call; see `bide.App.task`. `atomic`: see `handler`."""
        if function is not None:
            return super().task(function)
        register = super().task(**_joining(options, atomic=atomic))
        return _refusing_async(register) if atomic else register

    def _url_of_queues(self) -> str | None:
        """Return the URL that queues are opened with; `None`: they follow the settings.

        `bide worker --url` replaces the URL of the app: then they do not.
        """
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


def _joining(options: dict[str, Any], *, atomic: bool) -> dict[str, Any]:
    """Return the options of a handler, if `atomic` with the transaction that it runs in.

    Raises:
        InvalidArgument: the options name a transaction already (`within`).
    """
    if not atomic:
        return options
    if options.get("within") is not None:
        raise InvalidArgument("atomic=True and within= cannot be combined; leave one of them out")
    return {**options, "within": _atomic}


@contextmanager
def _atomic() -> Iterator[Any]:
    """Open a transaction of the database of the settings, and yield its connection."""
    alias = configuration().database
    with transaction.atomic(using=alias):
        yield connections[alias]


def _refusing_async(register: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that refuses async functions, for `atomic=True`."""

    def checked(function: Any) -> Any:
        if is_coroutine_function(function):
            raise InvalidArgument(
                f"{name_of(function)} is async, and Django has no transactions in async code; "
                "make it a plain function, or leave out atomic=True"
            )
        return register(function)

    return checked


app = DjangoApp()
"""The app that `manage.py bide worker` runs: the modules `handlers` of a project fill it."""
