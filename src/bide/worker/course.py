"""The course of one delivery: through the middleware to its handler, on the loop or in a thread."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bide.worker.delivery import Handling
from bide.worker.handler import Middleware, done
from bide.worker.threads import Threads

__all__ = ["Course"]


class Course:
    """Runs the handlers of one queue.

    Args:
        around: the middleware, outermost first.
        concurrency: how many threads plain handlers get at most.
        ended: called on the loop with each delivery that has ended, and what came out of it.
    """

    def __init__(
        self,
        around: Sequence[Middleware],
        concurrency: int,
        ended: Callable[[Handling, BaseException | None], None],
    ) -> None:
        self._around = around
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(concurrency)

    def start(self, one: Handling) -> None:
        """Let a delivery begin."""
        if one.handler.is_async or self._around:
            one.task = self._loop.create_task(self._attend(one))
        else:
            self._threads.submit(_run, self._ended, one)

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def _attend(self, one: Handling) -> None:
        """Run a handler on the loop. Whatever comes out of it, the message is settled."""
        one.entered = True
        error: BaseException | None = None
        try:
            if one.refused:
                raise asyncio.CancelledError
            if self._around:
                await self._through(one, 0)
            else:
                await one.handler.call(one)
        except BaseException as raised:  # noqa: BLE001  (it is judged)
            error = raised
        self._ended(one, error)

    async def _through(self, one: Handling, depth: int) -> None:
        """Go through the middleware from a depth on, to the handler inside."""
        if depth < len(self._around):
            await self._around[depth](one, partial(self._through, one, depth + 1))
        elif one.handler.is_async:
            await one.handler.call(one)
        else:
            await self._in_thread(one)

    def _in_thread(self, one: Handling) -> Awaitable[None]:
        ended: asyncio.Future[None] = self._loop.create_future()
        context = contextvars.copy_context()

        def tell(_: Handling, error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            elif isinstance(error, StopIteration):  # which no future takes
                ended.set_exception(RuntimeError(f"the handler raised {error!r}"))
            else:
                ended.set_exception(error)

        self._threads.submit(lambda it: context.run(_run, it), tell, one)
        return ended


def _run(one: Handling) -> None:
    """Run a plain handler, in a thread."""
    done(one.handler.call(one), one.handler.name)
