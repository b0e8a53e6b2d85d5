"""The course of one delivery: through the middleware to its handler, on the loop or in a thread."""

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from bide.consuming.handler import Middleware, done
from bide.consuming.handling import Handling
from bide.consuming.threads import Threads

__all__ = ["Course"]

TURN = 64
"""So many deliveries begin in a row before the event loop looks at anything else."""

ALONE = 31
"""After a handler that waited so many more get a task each, before one is looked at again."""


class Begun(NamedTuple):
    """A delivery whose handler waits for something."""

    coroutine: Coroutine[Any, Any, None]
    context: contextvars.Context
    awaited: Any


class Course:
    """Runs the handlers of one queue.

    A task costs as much as all else that is done for a message, so one task begins many deliveries:
    each in a context of its own, one after the other, for as long as they end without waiting. The
    first that waits keeps the task to itself until it ends, and others get a task each: handlers of
    one queue are alike, and to begin in a turn and go on alone costs more than to be alone at once.

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
        self._context = contextvars.copy_context()
        self._ready: deque[Handling] = deque()
        self._coming: asyncio.Task[None] | None = None  # which is going to begin what is ready
        self._alone = 0  # how many get a task each from now on

    def start(self, one: Handling) -> None:
        """Let a delivery begin."""
        if one.handler.is_async or self._around:
            if self._alone:
                self._alone -= 1
                one.task = self._create(self._attend(one))
                return
            self._ready.append(one)
            if self._coming is None:
                self._coming = self._create(self._turn())
        else:
            self._threads.submit(self._run_apart, self._ended, one)

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    def _run_apart(self, one: Handling) -> None:
        """Run a plain handler, in a thread: what it keeps in its context is gone with it."""
        self._context.copy().run(_run, one)

    def _create(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        # By itself, not by the loop's factory: an app may have set one that begins tasks at once,
        # and each of these would begin the next one inside itself.
        return asyncio.Task(work, loop=self._loop, context=self._context.copy())

    async def _turn(self) -> None:
        """Begin what is ready; stay with the first that waits."""
        task = asyncio.current_task()
        assert task is not None
        begun = None
        try:
            begun = self._begin(task)
        finally:
            self._coming = None
            if begun is not None:
                self._alone = ALONE
                for one in self._ready:
                    one.task = self._create(self._attend(one))
                self._ready.clear()
            elif self._ready:
                self._coming = self._create(self._turn())
        if begun is not None:
            await _rest(begun)

    def _begin(self, task: "asyncio.Task[None]") -> Begun | None:
        """Run one handler after the other; return the first that waits."""
        ready = self._ready
        for _ in range(TURN):
            if not ready:
                break
            one = ready.popleft()
            one.task = task
            coroutine, context = self._attend(one), self._context.copy()
            try:
                awaited = context.run(coroutine.send, None)
            except StopIteration:
                pass
            else:
                return Begun(coroutine, context, awaited)
            if task.cancelling():  # it has asked for that itself; it is not meant for the others
                break
        return None

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


@types.coroutine
def _rest(begun: Begun) -> Generator[Any, Any, None]:
    """Run what has begun to its end, in its own context."""
    coroutine, context, awaited = begun
    while True:
        step: Callable[[], Any]
        try:
            result = yield awaited
        except BaseException as error:  # noqa: BLE001  (an interruption is the handler's)
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, result)
        try:
            awaited = context.run(step)
        except StopIteration:
            return
        finally:
            del step  # it may hold an error, whose traceback holds this frame


def _run(one: Handling) -> None:
    """Run a plain handler, in a thread."""
    done(one.handler.call(one), one.handler.name)
