"""For tests of Django projects: handlers run in the thread of the test, on its connection."""

import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async

from bide.consuming.handler import checked_result
from bide.consuming.handling import Handler, Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.contrib.django.queues import OfSettings
from bide.lane.shared import close_lanes, open_lane
from bide.model.errors import InvalidArgument
from bide.model.times import Duration, Moment
from bide.queue.base import open_queues
from bide.testing import AsyncManualWorker, Handled, ScratchStore
from bide.testing.worker import LIMIT, PATIENCE, Errors
from bide.worker.app.app import App

T = TypeVar("T")


class DjangoWorker:
    """A worker that a test drives, whose handlers run in the test's own thread.

    So they are inside of the transaction of a `TestCase`, and see what the test has saved. Async
    handlers run on an event loop; what they do in `sync_to_async`, and in the async methods of
    models, is done in the test's thread as well. The fixture `bide_django_worker`, and
    `BideTestMixin.bide_worker`.

    The app's lifespan is entered and left by each call.

    Args:
        app: whose handlers run; by default the one that `manage.py bide worker` runs.
        store: where its queues are.
        queues: only these; all that have a handler by default.
        errors: "raise": what a handler raises, a call raises; "collect": keep it in `handled`.
        patience: how many real seconds one delivery may take.
    """

    __test__ = False

    def __init__(
        self,
        app: App | None,
        store: ScratchStore,
        *,
        queues: Iterable[str] = (),
        errors: Errors = "raise",
        patience: float = PATIENCE,
    ) -> None:
        if app is None:
            from bide.contrib.django.worker import app as project_app

            app = project_app
        if errors not in ("raise", "collect"):
            raise InvalidArgument(f'errors={errors!r} must be "raise" or "collect"')
        self.app = app
        self.store = store
        self.handled: list[Handled] = []
        """Every delivery so far, in order."""
        self._options: dict[str, Any] = {  # of each call's worker
            "queues": list(queues),
            "errors": errors,
            "patience": patience,
        }

    def run_due(self, *, limit: int = LIMIT) -> list[Handled]:
        """Handle all messages that are due now; see `bide.testing.ManualWorker.run_due`."""
        return async_to_sync(self.arun_due)(limit=limit)

    def advance(self, duration: Duration, *, limit: int = LIMIT) -> list[Handled]:
        """Let time pass, and handle each message at its due time; see `ManualWorker.advance`."""
        return async_to_sync(self.aadvance)(duration, limit=limit)

    def advance_to(self, moment: Moment, *, limit: int = LIMIT) -> list[Handled]:
        """Let time pass until a time; see `ManualWorker.advance_to`."""
        return async_to_sync(self.aadvance_to)(moment, limit=limit)

    async def arun_due(self, *, limit: int = LIMIT) -> list[Handled]:
        """Async form of `run_due`."""
        return await self._carry_out(lambda worker: worker.run_due(limit=limit))

    async def aadvance(self, duration: Duration, *, limit: int = LIMIT) -> list[Handled]:
        """Async form of `advance`."""
        return await self._carry_out(lambda worker: worker.advance(duration, limit=limit))

    async def aadvance_to(self, moment: Moment, *, limit: int = LIMIT) -> list[Handled]:
        """Async form of `advance_to`."""
        return await self._carry_out(lambda worker: worker.advance_to(moment, limit=limit))

    async def _carry_out(
        self, work: Callable[[AsyncManualWorker], Awaitable[list[Handled]]]
    ) -> list[Handled]:
        """Do something with a worker that lasts for this call; keep what it has handled."""
        async with _InPlace(self.app, self.store, **self._options) as worker:
            try:
                return await work(worker)
            finally:
                self.handled += worker.handled


class BideTestMixin:
    """Gives each test of a `TestCase` a store of its own, and a worker.

    Example:
        ::

            from django.test import TestCase

            class OrderTests(BideTestMixin, TestCase):
                def test_an_unpaid_order_expires(self):
                    order = place_order()
                    self.bide_worker.advance("30m")
                    order.refresh_from_db()
                    self.assertEqual(order.state, "expired")
    """

    bide_store: ScratchStore
    """The store of the test: `assert_put`, `pending`, `dead`, `clock`."""
    bide_worker: DjangoWorker
    """Runs the handlers of the project, as `manage.py bide worker` does."""

    def setUp(self) -> None:
        """Open the store; a test case that has a `setUp` too calls this one by `super()`."""
        super().setUp()  # type: ignore[misc]
        stack = ExitStack()
        self.addCleanup(stack.close)  # type: ignore[attr-defined]
        self.bide_store = stack.enter_context(ScratchStore())
        self.bide_worker = DjangoWorker(None, self.bide_store)


def close_connections() -> None:
    """Close the connections of queues and dashboard to the store; they are opened when needed.

    A test on the real store calls this in `tearDownClass`: PostgreSQL drops no database with open
    connections.
    """
    if (dashboard := sys.modules.get("bide.contrib.django.dashboard")) is not None:
        dashboard.close()
    queues = [
        queue
        for queue in list(open_queues)  # a copy: queues may come and go meanwhile
        if isinstance(queue, OfSettings) and not queue._closed
    ]
    for url in {queue._url for queue in queues}:
        close_lanes(url)
    for queue in queues:
        # A lane connects with its first command.
        queue._use(open_lane(queue._absolute_url, queue._own_clock))


class _InPlace(AsyncManualWorker):
    """Runs plain handlers where Django runs them for async code: in the thread of the test."""

    def _handlers_of(self, queue: str) -> QueueHandlers:
        # Not `app.queue_handlers`: that closes connections, which here are those of the test.
        queue_handlers = self.app._queue_handlers[queue]
        handlers = {
            job: _in_test_thread(handler) for job, handler in queue_handlers.handlers.items()
        }
        return replace(queue_handlers, handlers=handlers)


def _in_test_thread(handler: Handler) -> Handler:
    """Return a handler that runs in the thread of the test."""
    if handler.remade is not None:  # its contexts would close the connections of the test
        return handler.remade(in_thread=nullcontext, on_loop=nullcontext, run=_run_in_test_thread)
    if handler.is_async:  # it runs on the event loop, which is in that thread
        return handler

    async def call(handling: Handling) -> Any:
        result = await _run_in_test_thread(partial(handler.call, handling))
        return checked_result(result, handler.name)

    return replace(handler, call=call, is_async=True)


async def _run_in_test_thread(call: Callable[[], T]) -> T:
    """Make a call of a plain function in the thread of the test."""
    return await sync_to_async(call, thread_sensitive=True)()
