"""Hearing of changes: the server's stream of events."""

import threading
import time
from http.client import HTTPException, HTTPResponse

import msgspec

from bide.engines.http.connection import Address, Connection
from bide.model.errors import BideError

__all__ = ["HttpBell"]

PATH = "/v1/events?counts=0"

SILENCE = 60.0
"""After so many seconds without a word the connection is taken for dead; the server says something
every 15 s."""

AGAIN = 1.0
"""How long to wait, in seconds, before the events are asked for again."""


class _Hint(msgspec.Struct):
    queue: str
    wake_in: int


class HttpBell:
    """Listens to a server's events, and begins anew when they break off.

    Args:
        address: of the server.
        timeout: seconds to wait for a connection.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._stream: HTTPResponse | None = None

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes; an empty list once this is closed."""
        while not self._closed.is_set():
            try:
                if self._stream is None:
                    self._open()
                hint = self._next()
            except (OSError, HTTPException, BideError, ValueError, AttributeError):
                # Whoever waits looks again by itself meanwhile.
                hint = None
                self._drop()
            if hint is not None:
                # The clock of this machine: what the server said is how long from now.
                return [(hint.queue, time.time_ns() // 1_000_000 + hint.wake_in)]
            if self._stream is None:
                self._closed.wait(AGAIN)
        self._drop()
        return []

    def decline(self, queue: str, wake: int) -> None:
        """Do nothing: the server has told everybody."""

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._connection.shutdown()

    def _open(self) -> None:
        connection = Connection(self._address, max(SILENCE, self._timeout))
        with self._lock:
            self._connection = connection
        stream = connection.stream(PATH, "text/event-stream")
        if stream.status != 200:
            raise HTTPException(f"status {stream.status}")
        self._stream = stream
        if self._closed.is_set():
            connection.shutdown()

    def _next(self) -> _Hint | None:
        """Return the next hint; `None` when a line says something else."""
        assert self._stream is not None
        line = self._stream.readline(65_536)
        if not line:
            raise HTTPException("the server has ended the stream")
        if not line.startswith(b"data: "):
            return None
        return msgspec.json.decode(line[6:], type=_Hint)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        self._stream = None
        if connection is not None:
            connection.close()
