"""Hearing of changes: the server's stream of events."""

import threading
import time

import msgspec

from bide.engines.http.connection import Address
from bide.engines.http.stream import SILENCE, EventStream
from bide.model.errors import AccessDenied, BideError

AGAIN = 1.0
"""How long to wait, in seconds, before the events are asked for again."""


DENIED = 60.0
"""How long, if the server refuses the token: it counts wrong ones, and refuses an address for more
than a few a minute."""


class _Hint(msgspec.Struct):
    queue: str
    wake_in: int


class HttpNotifier:
    """Listens to a server's events, and begins anew when they break off.

    Args:
        address: of the server.
        timeout: seconds to wait for a connection.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._events = EventStream(address, "counts=0", max(SILENCE, timeout))
        self._closed = threading.Event()

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes; an empty list once this is closed."""
        while not self._closed.is_set():
            try:
                kind, data = self._events.next()
                if kind == "hint":
                    hint = msgspec.json.decode(data, type=_Hint)
                    # The clock of this machine: what the server said is how long from now.
                    return [(hint.queue, time.time_ns() // 1_000_000 + hint.wake_in)]
            except (BideError, msgspec.DecodeError) as error:
                # Whoever waits looks again by itself meanwhile.
                self._events.drop()
                self._closed.wait(DENIED if isinstance(error, AccessDenied) else AGAIN)
        self._events.drop()
        return []

    def decline(self, queue: str, wake: int) -> None:
        """Do nothing: the server has told everybody."""

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._events.close()
