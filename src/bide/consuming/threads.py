"""Threads for plain handlers, and one wake-up of the event loop for all that end meanwhile."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Threads"]

PATIENCE = 0.001
"""Seconds for which work waits for one of the threads there are, before another is started.

Handlers that end at once need few threads, and each more only fights for the interpreter's lock.
"""

Ended = Callable[[Any, BaseException | None], None]
Work = tuple[Callable[[Any], Any], Ended, Any]


class Threads:
    """Runs functions in threads that are started when they are needed, and tells the loop.

    Not an executor of the standard library: that costs a future with a lock and a wake-up of the
    loop for each function, and at exit it waits for a handler that never returns.

    Args:
        limit: how many threads there are at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._count = 0
        self._busy = 0  # handed in and not collected: known to the loop's thread alone
        self._results: deque[tuple[Ended, Any, BaseException | None]] = deque()
        self._told = False
        self._growing = False
        self._closed = False

    def submit(self, function: Callable[[Any], Any], ended: Ended, subject: Any) -> None:
        """Call `function(subject)` in a thread, then `ended(subject, error)` on the loop."""
        self._busy += 1
        self._work.put((function, ended, subject))
        if self._count == 0:
            self._start(1)
        elif not self._growing and self._count < min(self._busy, self._limit):
            self._growing = True
            self._loop.call_later(PATIENCE, self._grow)

    def _grow(self) -> None:
        """Start a thread for each that still waits for one."""
        self._growing = False
        waiting = self._work.qsize()
        if waiting and not self._closed:
            self._start(min(waiting, self._busy - self._count, self._limit - self._count))

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            name = f"bide-handler-{self._count}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Let the threads end that have nothing to do; the others are left alone."""
        self._closed = True
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            function, ended, subject = work
            error: BaseException | None = None
            try:
                function(subject)
            except BaseException as raised:  # noqa: BLE001  (it is judged on the loop)
                error = raised
            self._results.append((ended, subject, error))
            del work, function, subject, error
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop was closed: the worker has left without us
                    return

    def _collect(self) -> None:
        self._told = False  # first: who ends from now on tells anew
        while self._results:
            ended, subject, error = self._results.popleft()
            self._busy -= 1
            ended(subject, error)
