"""Run the handlers of one queue: async ones as tasks, plain ones in threads.

Around each delivery runs the middleware of integrations and of the app, in a span if spans are
collected.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from typing import Any

from bide.consuming.handler import Middleware, NotAwaited, checked_result, name_of
from bide.consuming.handler_threads import HandlerThreads
from bide.consuming.handling import Handling
from bide.queue.delivery import CURRENT
from bide.queue.spans import is_traced
from bide.tasks import cancel, to_the_end

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
        self._executor = HandlerThreads(limit, "bide-handler")
        self._jobs = 0
        """How many jobs of the executor have begun and not reported their end."""
        self._waiting: deque[tuple[Handling, Context, Ended]] = deque()
        """Calls that no thread has taken yet."""
        self._results: deque[tuple[Ended, Handling, BaseException | None] | None] = deque()
        """What threads report to the loop: the end of a call, or `None` for that of a job."""
        self._called = 0
        """How many calls there have been."""
        self._growing = False
        """Whether `_grow` will be called."""
        self._reporting = False
        """Whether `_collect` will be called."""
        self._closed = False

    def call(self, handling: Handling, context: Context, ended: Ended) -> None:
        """Call the handler of a delivery in a thread and a context; then call `ended`."""
        self._waiting.append((handling, context, ended))
        self._called += 1
        try:
            self._use_threads()
        except RuntimeError:  # the system has no thread left, and no job is there to take the call
            self._waiting.pop()
            self._called -= 1
            raise

    def close(self) -> None:
        """End the threads that are idle; the others end with their handlers."""
        self._closed = True
        self._executor.shutdown()

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
            taken = self._called - len(self._waiting)
            late = called - taken  # they have waited for `PATIENCE` or longer
            self._begin(min(late, self._limit - self._jobs))
            self._use_threads()

    def _begin(self, jobs: int) -> None:
        """Begin so many jobs; none if the number is below 1."""
        for _ in range(jobs):
            self._executor.submit(self._work)
            self._jobs += 1  # what it reports is collected later, on this loop

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
            del handling, context, ended, error  # an idle thread keeps no message in memory
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
        """Hand over what the threads have reported, on the loop."""
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
    """Call a plain handler in this thread; keep what it returns."""
    if handling.stopping or handling.outcome_ignored:  # it has waited for this thread
        raise asyncio.CancelledError
    CURRENT.set(handling)
    handling.thread = get_ident()
    try:
        result = handling.handler.call(handling)
    finally:
        handling.thread = None
    if result is not None:
        handling.returned = checked_result(result, handling.handler.name)


INTEGRATIONS: list[Middleware] = []
"""Middleware that an integration such as `bide.contrib.sentry` adds to every app of the process."""


def with_integrations(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Return all middleware of an app, outermost first.

    That is the span, if spans are collected, then integrations, then the middleware of the app.
    """
    if not is_traced():
        return (*INTEGRATIONS, *middleware)
    from bide.consuming.handling_span import handling_span  # here: the package may be missing

    return (handling_span, *INTEGRATIONS, *middleware)


class HandlerRunner:
    """Runs deliveries through the middleware to their handlers.

    Each delivery has its own context. An async handler, and a plain one with middleware, runs in
    its own task.

    Args:
        middleware: outermost first.
        concurrency: the maximum number of threads for plain handlers.
        ended: called on the loop with each ended delivery, and what it raised.
        left: called before that, in the same way, if its middleware has ended while its plain
            handler still runs.
    """

    def __init__(
        self, middleware: Sequence[Middleware], concurrency: int, ended: Ended, left: Ended
    ) -> None:
        self._middleware = middleware
        self._ended = ended
        self._left = left
        self._loop = asyncio.get_running_loop()
        self.threads = Threads(concurrency)
        self._context = copy_context()  # each delivery gets a copy: what one sets, no other sees

    def start(
        self, handling: Handling, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Start a delivery, once `before` has returned if that is given."""
        context = self._context.copy()
        if not handling.handler.is_async and not self._middleware and before is None:
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
        if handling.outcome_ignored or handling.stopping:
            # The task of a plain handler is not cancelled, so its middleware may come here late.
            raise asyncio.CancelledError
        if depth < len(self._middleware):
            await self._run_middleware(self._middleware[depth], handling, depth)
        elif handling.handler.is_async:
            handling.returned = checked_result(
                await handling.handler.call(handling), handling.handler.name
            )
        else:
            await self._in_thread(handling)

    async def _run_middleware(self, middleware: Middleware, handling: Handling, depth: int) -> None:
        """Run a middleware, and see that it has awaited what is inside, if it has called that."""
        calls: list[Coroutine[Any, Any, None]] = []
        tasks: dict[int, asyncio.Task[Any] | None] = {}  # by place: those that run a call

        async def inside(place: int) -> None:
            tasks[place] = asyncio.current_task()
            await self._through(handling, depth + 1)

        def go_on() -> Coroutine[Any, Any, None]:
            calls.append(inside(len(calls)))
            return calls[-1]

        try:
            await middleware(handling, go_on)
        finally:
            unfinished = [
                place
                for place, call in enumerate(calls)
                if inspect.getcoroutinestate(call) != inspect.CORO_CLOSED
            ]
            if unfinished:
                for place in unfinished:
                    if place not in tasks:
                        calls[place].close()  # else Python warns that it was never awaited
                await _end({tasks.get(place) for place in unfinished})
        if unfinished:
            raise NotAwaited(
                f"the middleware {name_of(middleware)} called go_on() without await, so "
                f"{handling.handler.name} has not run to its end; write `await go_on()`"
            )

    async def _in_thread(self, handling: Handling) -> None:
        """Run a plain handler in a thread, and raise what it raises.

        The call goes on if nobody waits for it any more.
        """
        while handling.in_thread is not None:  # middleware tries again, and waits for no first call
            await asyncio.shield(handling.in_thread)
        call: asyncio.Future[BaseException | None] = self._loop.create_future()

        def ended(_: Handling, error: BaseException | None) -> None:
            handling.in_thread = None
            call.set_result(error)

        self.threads.call(handling, copy_context(), ended)
        handling.in_thread = call
        if (error := await asyncio.shield(call)) is not None:
            raise error

    def _finish(self, handling: Handling, task: "asyncio.Task[BaseException | None]") -> None:
        """Report the end of a task: `_attend` returns all errors, so that they are its result."""
        handling.task = None
        # A task that was cancelled before its first step has not called `_attend`.
        error = asyncio.CancelledError() if task.cancelled() else task.result()
        if handling.in_thread is None:
            self._ended(handling, error)
        else:  # else another delivery of its message could begin beside it
            self._left(handling, error)
            handling.in_thread.add_done_callback(lambda _: self._ended(handling, error))


async def _end(tasks: "set[asyncio.Task[Any] | None]") -> None:
    """Cancel tasks of a middleware in which a handler runs, and wait until they have ended."""
    current = asyncio.current_task()
    if others := [task for task in tasks if task is not None and task is not current]:
        await to_the_end(cancel(others))
