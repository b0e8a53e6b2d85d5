"""Hints from other processes: a thread that listens to the engine's doorbell."""

import logging
import threading
from collections.abc import Callable

from bide.engines.port import Doorbell
from bide.lane.parked import LOOK_AGAIN

__all__ = ["Wakeups", "listen"]

_log = logging.getLogger("bide.lane")


def listen(
    open_bell: Callable[[], Doorbell | None], hint: Callable[[str, int], bool], deaf: bool
) -> "Wakeups | None":
    """Begin to listen; `None`, with a warning, where that cannot be done.

    Args:
        open_bell: opens the engine's doorbell.
        hint: see `Wakeups`.
        deaf: the last attempt failed, and the warning was given.
    """
    try:
        return Wakeups(open_bell(), hint)
    except Exception as error:  # noqa: BLE001  (whatever it is, claims work without hints)
        _log.log(
            logging.DEBUG if deaf else logging.WARNING,
            "cannot listen for changes by other processes (%s); waiting claims look every %g s "
            "instead, and each tries again to listen",
            error,
            LOOK_AGAIN,
        )
        return None


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
