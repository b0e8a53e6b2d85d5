"""Run plain handlers in the threads of an executor."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Threads"]

PATIENCE = 0.001
"""Seconds that a call waits for a busy thread before another thread is used. Fast handlers need few
threads; more would only compete for the interpreter's lock."""

Ended = Callable[[BaseException | None], None]


class Threads:
    """Calls functions in threads, and reports to the event loop once for all that have ended.

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
        self._waiting: deque[tuple[Callable[[], object], Ended]] = deque()
        self._results: deque[tuple[Ended, BaseException | None]] = deque()
        self._growing = self._told = self._closed = False

    def call(self, function: Callable[[], object], ended: Ended) -> None:
        """Call a function in a thread; then call `ended` on the loop with what it raised."""
        self._waiting.append((function, ended))
        if not self._jobs:
            self._use(1)
        elif not self._growing and self._jobs < self._limit:
            self._growing = True
            self._loop.call_later(PATIENCE, self._grow)

    def close(self) -> None:
        """End the threads that are idle; the others end with their handlers."""
        self._closed = True
        self._executor.shutdown(wait=False)

    def _grow(self) -> None:
        self._growing = False
        if not self._closed:
            self._use(min(len(self._waiting), self._limit - self._jobs))

    def _use(self, threads: int) -> None:
        for _ in range(threads):
            self._jobs += 1
            self._executor.submit(self._work)

    def _work(self) -> None:
        """Make calls until none waits. Runs in a thread."""
        while self._waiting:
            try:
                function, ended = self._waiting.popleft()
            except IndexError:  # another thread took it
                break
            error: BaseException | None = None
            try:
                function()
            except BaseException as raised:  # noqa: BLE001  (it is judged on the loop)
                error = raised
            self._tell(ended, error)
            del function, ended, error
        self._tell(self._free, None)

    def _tell(self, ended: Ended, error: BaseException | None) -> None:
        self._results.append((ended, error))
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop is closed: the worker has ended without this thread
                return

    def _collect(self) -> None:
        self._told = False  # first: calls that end from now on report again
        while self._results:
            ended, error = self._results.popleft()
            ended(error)

    def _free(self, _: BaseException | None) -> None:
        """Start another job if calls came after the last look of the one that ended."""
        self._jobs -= 1
        if self._waiting and not self._jobs and not self._closed:
            self._use(1)
