"""Receive hints from other processes: a thread listens to the engine's notifier."""

import logging
import threading
from collections.abc import Callable

from bide.engines.port import Notifier
from bide.lane.waiting_claims import LOOK_AGAIN

_log = logging.getLogger("bide.lane")


def listen(
    open_notifier: Callable[[], Notifier | None], hint: Callable[[str, int], bool], deaf: bool
) -> "Wakeups | None":
    """Start to listen; if that fails, log a warning and return `None`.

    Args:
        open_notifier: opens the engine's notifier.
        hint: see `Wakeups`.
        deaf: whether the last attempt failed, so that the warning was logged.
    """
    try:
        return Wakeups(open_notifier(), hint)
    except Exception as error:  # noqa: BLE001  (claims work without hints)
        _log.log(
            logging.DEBUG if deaf else logging.WARNING,
            "cannot listen for changes by other processes (%s); waiting claims look every %g s "
            "instead, and each tries again to listen",
            error,
            LOOK_AGAIN,
        )
        return None


class Wakeups:
    """Passes the hints of a notifier on until it is stopped.

    Args:
        notifier: the engine's notifier; `None` if the store has none.
        hint: called with a queue, and the time (Unix milliseconds) from which it can be claimed;
            returns whether a claim waits for it.
    """

    def __init__(self, notifier: Notifier | None, hint: Callable[[str, int], bool]) -> None:
        self._notifier = notifier
        self._hint = hint
        self._thread: threading.Thread | None = None
        if notifier is not None:
            self._thread = threading.Thread(target=self._run, name="bide-notifier", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        if self._notifier is not None:
            self._notifier.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        assert self._notifier is not None
        while hints := self._notifier.listen():
            for queue, wake in hints:
                if not self._hint(queue, wake):
                    self._notifier.decline(queue, wake)
                    # The store has forgotten a claim that began to wait meanwhile: it asks again.
                    self._hint(queue, 0)
