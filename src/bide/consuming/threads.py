"""Run plain handlers in the threads of an executor."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

from bide.consuming.handler import done
from bide.consuming.handling import Handling

PATIENCE = 0.001
"""Seconds that a call waits for a busy thread before another thread is used. Fast handlers need few
threads; more would only compete for the interpreter's lock."""

Ended = Callable[[Handling, BaseException | None], None]
"""Called on the loop with a delivery whose handler has ended, and what that raised."""

Result = tuple[Handling, BaseException | None, Ended]


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
        self._results: deque[Result | None] = deque()
        self._called = 0
        self._growing = self._told = self._closed = False

    def call(self, one: Handling, context: Context, ended: Ended) -> None:
        """Call the handler of a delivery in a thread and a context; then call `ended`."""
        self._waiting.append((one, context, ended))
        self._called += 1
        if not self._jobs:
            self._use(1)
        elif not self._growing:
            self._grow_later()

    def close(self) -> None:
        """End the threads that are idle; the others end with their handlers."""
        self._closed = True
        self._executor.shutdown(wait=False)

    def _grow_later(self) -> None:
        if self._jobs < self._limit:
            self._growing = True
            self._loop.call_later(PATIENCE, self._grow, self._called)

    def _grow(self, called: int) -> None:
        """Use more threads for those of the first `called` calls that still wait."""
        self._growing = False
        if self._waiting and not self._closed:
            late = called - (self._called - len(self._waiting))
            self._use(min(late, self._limit - self._jobs))
            self._grow_later()

    def _use(self, threads: int) -> None:
        for _ in range(threads):
            self._jobs += 1
            self._executor.submit(self._work)

    def _work(self) -> None:
        """Make calls until none waits. Runs in a thread."""
        while self._waiting:
            try:
                one, context, ended = self._waiting.popleft()
            except IndexError:  # another thread took it
                break
            error: BaseException | None = None
            try:
                context.run(_call, one)
            except BaseException as raised:  # noqa: BLE001  (it is judged on the loop)
                error = raised
            self._report((one, error, ended))
            del one, context, ended, error
        self._report(None)

    def _report(self, result: Result | None) -> None:
        """Report the end of a call, or with `None` that of a job."""
        self._results.append(result)
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop is closed: the worker has ended without this thread
                return

    def _collect(self) -> None:
        self._told = False  # first: calls that end from now on report again
        while self._results:
            if (result := self._results.popleft()) is None:
                self._jobs -= 1
            else:
                one, error, ended = result
                ended(one, error)
        if self._waiting and not self._closed:  # they came after the last look of a job that ended
            if not self._jobs:
                self._use(1)
            elif not self._growing:
                self._grow_later()


def _call(one: Handling) -> None:
    result = one.handler.call(one)
    if result is not None:
        one.returned = done(result, one.handler.name)
