"""Watch the event loop, and name the handler that blocks it."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

LIMIT = 0.5
"""Seconds that a handler may block the event loop before a warning names it."""

_log = logging.getLogger("bide.worker")


class Watch:
    """A thread that watches the event loop while handlers run.

    It uses real time: no clock can wake a blocked loop.

    Args:
        name: returns the name of the handler that a task runs, if any.
        busy: returns whether handlers run on the loop.
        limit: seconds of blocking before the warning.
    """

    def __init__(
        self,
        name: Callable[["asyncio.Task[object]"], str | None],
        busy: Callable[[], bool],
        limit: float = LIMIT,
    ) -> None:
        self._name = name
        self._busy = busy
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._moved = time.monotonic()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bide-watch", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Watch until no handler runs. Call it on the loop after handlers were started."""
        if not self._wake.is_set():
            self._moved = time.monotonic()
            self._wake.set()
            self._loop.call_later(self._limit / 4, self._tick)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._wake.set()
        self._thread.join()

    def _tick(self) -> None:
        self._moved = time.monotonic()
        if self._busy() and not self._over.is_set():
            self._loop.call_later(self._limit / 4, self._tick)
        else:
            self._wake.clear()

    def _run(self) -> None:
        warned = 0.0
        while self._wake.wait() and not self._over.wait(self._limit):
            moved = self._moved
            if self._wake.is_set() and time.monotonic() - moved > self._limit and warned != moved:
                warned = moved  # once for each time that it is blocked
                self._warn(time.monotonic() - moved)

    def _warn(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        name = (self._name(task) if task is not None else None) or "something"
        frame = sys._current_frames().get(self._loop_thread)
        where = ""
        if frame is not None:
            innermost = traceback.extract_stack(frame)[-1]
            where = f" at {innermost.filename}:{innermost.lineno} ({innermost.name})"
        _log.warning(
            "%s has held up the event loop for %.1f s%s; nothing else moves meanwhile. Make it a "
            "plain function, which gets a thread, or await what takes long",
            name, seconds, where,
        )  # fmt: skip
