"""Run the handlers of one queue: async ones as tasks, plain ones in threads.

Around each delivery runs the middleware of integrations and of the app, in a span if spans are
collected.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from bide.consuming.handler import Middleware, NotAwaited, checked_result, name_of
from bide.consuming.handling import Handling
from bide.observing.spans import is_traced
from bide.queue.delivery import CURRENT

PATIENCE = 0.001
"""Seconds that a call waits for a busy thread before another thread is used. Fast handlers need few
threads; more would only compete for the interpreter's lock."""

Ended = Callable[[Handling, BaseException | None], None]
"""Called on the loop with a delivery whose handler has ended, and what that raised."""


class Threads:
    """Calls handlers in threads, and reports to the event loop once for all that have ended.

    A job of the executor makes calls until none waits, so a quick call costs neither a future nor a
    switch of threads.

    Args:
        limit: the maximum number of threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(limit, "bide-handler")
        self._jobs = 0
        self._waiting: deque[tuple[Handling, Context, Ended]] = deque()
        self._results: deque[tuple[Ended, Handling, BaseException | None] | None] = deque()
        self._called = 0
        self._growing = self._reporting = self._closed = False

    def call(self, handling: Handling, context: Context, ended: Ended) -> None:
        """Call the handler of a delivery in a thread and a context; then call `ended`."""
        self._waiting.append((handling, context, ended))
        self._called += 1
        self._use_threads()

    def close(self) -> None:
        """End the threads that are idle; the others end with their handlers."""
        self._closed = True
        self._executor.shutdown(wait=False)

    def _use_threads(self) -> None:
        """Use a thread for the calls that wait, and more if they still wait a little later."""
        if not self._waiting:
            return
        if not self._jobs:
            self._begin(1)
        elif not self._growing and self._jobs < self._limit:
            self._growing = True
            self._loop.call_later(PATIENCE, self._grow, self._called)

    def _grow(self, called: int) -> None:
        """Use more threads for those of the first `called` calls that still wait."""
        self._growing = False
        if not self._closed:
            late = called - (self._called - len(self._waiting))
            self._begin(min(late, self._limit - self._jobs))
            self._use_threads()

    def _begin(self, jobs: int) -> None:
        for _ in range(jobs):
            self._jobs += 1
            self._executor.submit(self._work)

    def _work(self) -> None:
        """Make calls until none waits. Runs in a thread."""
        while self._waiting:
            try:
                handling, context, ended = self._waiting.popleft()
            except IndexError:  # another thread took it
                break
            error: BaseException | None = None
            try:
                context.run(_call, handling)
            except BaseException as raised:  # noqa: BLE001  (it is judged on the loop)
                error = raised
            self._report((ended, handling, error))
            del handling, context, ended, error
        self._report(None)

    def _report(self, result: tuple[Ended, Handling, BaseException | None] | None) -> None:
        """Report the end of a call, or with `None` that of a job."""
        self._results.append(result)
        if not self._reporting:
            self._reporting = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop is closed: the worker has ended without this thread
                return

    def _collect(self) -> None:
        self._reporting = False  # first: calls that end from now on report again
        while self._results:
            if (result := self._results.popleft()) is None:
                self._jobs -= 1
            else:
                ended, handling, error = result
                ended(handling, error)
        if not self._closed:  # calls may have come after a job that ended checked for them
            self._use_threads()


def _call(handling: Handling) -> None:
    CURRENT.set(handling)
    result = handling.handler.call(handling)
    if result is not None:
        handling.returned = checked_result(result, handling.handler.name)


INTEGRATIONS: list[Middleware] = []
"""Middleware that an integration such as `bide.contrib.sentry` adds to every app of the process."""


def traced(around: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Return the middleware with integrations around it, and a span if spans are collected."""
    if not is_traced():
        return (*INTEGRATIONS, *around)
    from bide.consuming.handling_span import handling_span  # here: the package may be missing

    return (handling_span, *INTEGRATIONS, *around)


class Run:
    """Runs deliveries through the middleware to their handlers.

    Each delivery has its own context. An async handler, and a plain one with middleware, runs in
    its own task.

    Args:
        around: the middleware, outermost first.
        concurrency: the maximum number of threads for plain handlers.
        ended: called on the loop with each ended delivery, and what it raised.
    """

    def __init__(self, around: Sequence[Middleware], concurrency: int, ended: Ended) -> None:
        self._around = around
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self.threads = Threads(concurrency)
        self._context = copy_context()

    def start(
        self, handling: Handling, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Start a delivery, once `before` has returned if that is given."""
        context = self._context.copy()
        if not handling.handler.is_async and not self._around and before is None:
            self.threads.call(handling, context, self._ended)
            return
        # Not by the loop's factory: an app may have set one that starts tasks eagerly.
        handling.task = asyncio.Task(
            self._attend(handling, before),
            loop=self._loop,
            context=context,
            name=f"{handling.handler.name} with {handling.id}",
        )
        handling.task.add_done_callback(partial(self._finish, handling))

    async def _attend(
        self, handling: Handling, before: Callable[[], Awaitable[None]] | None
    ) -> BaseException | None:
        """Run a handler, and return what it raised, whatever that is."""
        try:
            if before is not None:
                await before()
            await self._through(handling, 0)
        except BaseException as error:  # noqa: BLE001
            return error
        return None

    async def _through(self, handling: Handling, depth: int) -> None:
        """Run the middleware from a depth on, and the handler inside."""
        if handling.gone:  # a plain handler is not cancelled while what is around it waits
            raise asyncio.CancelledError
        if depth < len(self._around):
            await self._around_it(self._around[depth], handling, depth)
        elif handling.handler.is_async:
            handling.returned = checked_result(
                await handling.handler.call(handling), handling.handler.name
            )
        else:
            await self._in_thread(handling)

    async def _around_it(self, middleware: Middleware, handling: Handling, depth: int) -> None:
        """Run a middleware, and see that it has awaited what is inside, if it has called that."""
        calls: list[Coroutine[Any, Any, None]] = []

        def go_on() -> Coroutine[Any, Any, None]:
            calls.append(self._through(handling, depth + 1))
            return calls[-1]

        await middleware(handling, go_on)
        if all(inspect.getcoroutinestate(call) == inspect.CORO_CLOSED for call in calls):
            return
        for call in calls:
            if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                call.close()  # else Python warns that it was never awaited
        raise NotAwaited(
            f"the middleware {name_of(middleware)} called go_on() without await, so "
            f"{handling.handler.name} has not run to its end; write `await go_on()`"
        )

    async def _in_thread(self, handling: Handling) -> None:
        over: asyncio.Future[BaseException | None] = self._loop.create_future()

        def ended(_: Handling, error: BaseException | None) -> None:
            if not over.done():
                over.set_result(error)

        self.threads.call(handling, copy_context(), ended)
        if (error := await over) is not None:
            raise error

    def _finish(self, handling: Handling, task: "asyncio.Task[BaseException | None]") -> None:
        handling.task = None
        # It is cancelled only before its first step: then it raises that itself.
        self._ended(handling, asyncio.CancelledError() if task.cancelled() else task.result())
