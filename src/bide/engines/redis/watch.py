"""A thread that sees every so often whether a group still has the same master.

A master that was cut off from the others goes on answering whoever reaches it. A process that waits
for nothing would work there for ever: no connection breaks, and nobody tells it anything.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["CHECK", "Watch"]

CHECK = 1.0
"""How often, in seconds, the sentinels are asked."""

Kept = dict[tuple[str, int], Any]
"""By host and port of a sentinel: the connection to it, kept from round to round."""

Told = Callable[[frozenset[tuple[str, int]]], None]
"""Told in each round where the master is: host and port, mostly one."""


class Watch:
    """Asks as long as anybody wants to be told.

    Args:
        look: asks once, on connections that are kept; returns where the master is, as far as that
            is known. It raises nothing.
    """

    def __init__(self, look: Callable[[Kept], frozenset[tuple[str, int]]]) -> None:
        self._look = look
        self._fresh()

    def _fresh(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._listeners: tuple[Told, ...] = ()
        self._ended = threading.Event()

    def add(self, told: Told) -> None:
        """Call `told` after each round from now on, in a thread of its own."""
        if self._process != os.getpid():  # a fork has no thread, and who listened is the parent's
            self._fresh()
        with self._lock:
            if not self._listeners:
                self._ended = threading.Event()
                thread = threading.Thread(
                    target=self._run, args=(self._ended,), name="bide-sentinel", daemon=True
                )
                thread.start()
            self._listeners = (*self._listeners, told)

    def remove(self, told: Told) -> None:
        """Call it no longer, but for a round that is under way."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != told)
            if not self._listeners:
                self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        kept: Kept = {}
        while not ended.wait(CHECK):
            if masters := self._look(kept):
                for told in self._listeners:
                    told(masters)
        for connection in kept.values():
            connection.disconnect()
