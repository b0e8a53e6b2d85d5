"""Hints from other processes: a thread that listens to the engine's doorbell."""

import threading
from collections.abc import Callable

from bide.engines.port import Doorbell

__all__ = ["Wakeups"]


class Wakeups:
    """Passes on what a doorbell says until it is stopped.

    Args:
        bell: what to listen to; `None`, where a store has none, means silence.
        hint: called with each queue, and the moment (Unix milliseconds) it can be claimed from on;
            returns whether anybody waits for it.
    """

    def __init__(self, bell: Doorbell | None, hint: Callable[[str, int], bool]) -> None:
        self._bell = bell
        self._hint = hint
        self._thread: threading.Thread | None = None
        if bell is not None:
            self._thread = threading.Thread(target=self._run, name="bide-bell", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Listen no longer."""
        if self._bell is not None:
            self._bell.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        assert self._bell is not None
        while hints := self._bell.listen():
            for queue, wake in hints:
                if not self._hint(queue, wake):
                    self._bell.decline(queue, wake)
