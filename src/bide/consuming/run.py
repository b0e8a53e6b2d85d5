"""Run the handlers of one queue: async ones as tasks, plain ones in threads."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bide.consuming.handler import Middleware
from bide.consuming.handling import Handling
from bide.consuming.threads import Ended, Threads

NEVER_BEGAN = asyncio.CancelledError()
"""The error of a task that was cancelled before its first step."""


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
        self._threads = Threads(concurrency)
        self._context = contextvars.copy_context()

    def start(self, one: Handling, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start a delivery, once `before` has returned if that is given."""
        context = self._context.copy()
        if not one.handler.is_async and not self._around and before is None:
            self._threads.call(one, context, self._ended)
            return
        one.error = NEVER_BEGAN
        # Not by the loop's factory: an app may have set one that starts tasks eagerly.
        one.task = asyncio.Task(self._attend(one, before), loop=self._loop, context=context)
        one.task.add_done_callback(partial(self._finish, one))

    def close(self) -> None:
        """End the threads that are idle; the others end with their handlers."""
        self._threads.close()

    async def _attend(self, one: Handling, before: Callable[[], Awaitable[None]] | None) -> None:
        """Run a handler, and keep what it raised, whatever that is."""
        try:
            if before is not None:
                await before()
                if one.gone:  # a plain handler is not cancelled
                    return
            await self._through(one, 0)
            one.error = None
        except BaseException as raised:  # noqa: BLE001
            one.error = raised

    async def _through(self, one: Handling, depth: int) -> None:
        """Run the middleware from a depth on, and the handler inside."""
        if depth < len(self._around):
            await self._around[depth](one, partial(self._through, one, depth + 1))
        elif one.handler.is_async:
            one.returned = await one.handler.call(one)
        else:
            await self._in_thread(one)

    async def _in_thread(self, one: Handling) -> None:
        over: asyncio.Future[BaseException | None] = self._loop.create_future()

        def ended(_: Handling, error: BaseException | None) -> None:
            if not over.done():
                over.set_result(error)

        self._threads.call(one, contextvars.copy_context(), ended)
        if (error := await over) is not None:
            raise error

    def _finish(self, one: Handling, task: "asyncio.Task[None]") -> None:
        error, one.error, one.task = one.error, None, None  # an error refers to its delivery
        self._ended(one, error)
