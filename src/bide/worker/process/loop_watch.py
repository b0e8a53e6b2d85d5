"""Watches whether the event loop moves, and names the handler that holds it up."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

__all__ = ["LIMIT", "Watch"]

LIMIT = 0.5
"""Seconds for which a handler may hold up the event loop before a warning names it."""

_log = logging.getLogger("bide.worker")


class Watch:
    """A thread that looks at the event loop while handlers run, and rests while none does.

    It goes by real time: a loop that stands still cannot be woken by any clock.

    Args:
        name: names what a task is doing, if it is a handler.
        busy: tells whether handlers run on the loop.
        limit: seconds of standing still that are too many.
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
        self._on = False
        self._moved = time.monotonic()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bide-watch", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Handlers were started: watch until none is left. Called on the loop."""
        if not self._on:
            self._on = True
            self._moved = time.monotonic()
            self._wake.set()
            self._loop.call_later(self._limit / 4, self._tick)

    def close(self) -> None:
        """Watch no longer."""
        self._over.set()
        self._wake.set()
        self._thread.join()

    def _tick(self) -> None:
        self._moved = time.monotonic()
        if self._busy() and not self._over.is_set():
            self._loop.call_later(self._limit / 4, self._tick)
        else:
            self._on = False
            self._wake.clear()

    def _run(self) -> None:
        warned = 0.0
        while self._wake.wait() and not self._over.wait(self._limit):
            moved = self._moved
            if self._on and time.monotonic() - moved > self._limit and warned != moved:
                warned = moved  # once for each time that it stands still
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
