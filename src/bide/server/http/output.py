"""Write answers to a client that may read slowly, or not at all.

What a client has not read is kept in the buffer of the transport. The client is cut off when it
reads nothing of it for `STALLED` seconds, and the server bounds what all buffers take together.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from bide.model.limits import STALLED

if TYPE_CHECKING:
    from bide.server.http.connection import Connection
    from bide.server.http.http_server import HttpServer

WRITTEN = 64 * 1024
"""Bytes that TLS is given at a time."""


class Output(asyncio.Protocol):
    """The side of a connection that writes."""

    server: "HttpServer"
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _tls: bool

    def __init__(self) -> None:
        self.write_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._stall: asyncio.TimerHandle | None = None
        """Cuts the client off, unless it reads on before."""

    def write(self, data: bytes) -> None:
        """Write a part of an answer.

        TLS hands all that it is given at once to the socket's transport, and does not count what
        stays there as unread.
        """
        if not self._tls or len(data) <= WRITTEN:
            self.transport.write(data)
            return
        view = memoryview(data)
        for at in range(0, len(data), WRITTEN):
            self.transport.write(view[at : at + WRITTEN])

    def pause_writing(self) -> None:
        """Let answers wait until the client has read some."""
        self.write_paused = True
        self._watch_reading()
        self.server.fell_behind(cast("Connection", self))

    def resume_writing(self) -> None:
        """Go on with the answer that waits."""
        self.write_paused = False
        if self._stall is not None:  # the next stall gets the full time
            self._stall.cancel()
            self._stall = None
        self.server.caught_up(cast("Connection", self))
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""
        if self.write_paused:
            if self._drained is None:
                self._drained = self.loop.create_future()
            await asyncio.shield(self._drained)

    def _watch_reading(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(STALLED, self._abort_if_stalled, size)

    def _abort_if_stalled(self, before: int) -> None:
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._watch_reading()
