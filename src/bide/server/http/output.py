"""Write answers to a client that may read slowly, or not at all.

The transport buffers what the client has not read. A client that reads nothing for `STALLED`
seconds is cut off, and the server limits the size of all buffers together.
"""

import asyncio

from bide.model.limits import STALLED
from bide.server.http.connection_table import ConnectionTable

TLS_PIECE = 64 * 1024
"""Bytes that are passed to TLS at a time."""


class ResponseOutput(asyncio.Protocol):
    """The writing side of a connection.

    Args:
        table: limits what all clients together leave unread.
    """

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _tls: bool
    """Whether the connection is encrypted."""

    def __init__(self, table: ConnectionTable) -> None:
        self.table = table
        self.address = ""
        """The client's address; "" on a Unix socket."""
        self.write_paused = False
        self._drained: asyncio.Future[None] | None = None
        """Done when more may be written; `None` while nothing waits for it."""
        self.stall_timer: asyncio.TimerHandle | None = None
        """Cuts the client off, unless it reads more earlier."""

    def write(self, data: bytes) -> None:
        """Write a part of an answer, over TLS in pieces.

        TLS passes each piece to the socket's transport at once. What that transport keeps is not
        counted as unread, so a single large piece would hide that the client reads slowly.
        """
        if not self._tls or len(data) <= TLS_PIECE:
            self.transport.write(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), TLS_PIECE):
            self.transport.write(view[start : start + TLS_PIECE])

    def pause_writing(self) -> None:
        """Make answers wait until the client has read some."""
        self.write_paused = True
        self._watch_reading()
        self.table.fell_behind(self)

    def resume_writing(self) -> None:
        """Continue with the waiting answer."""
        self.write_paused = False
        if self.stall_timer is not None:  # the next stall gets the full time
            self.stall_timer.cancel()
            self.stall_timer = None
        self.table.caught_up(self)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""
        if self.write_paused:
            if self._drained is None:
                self._drained = self.loop.create_future()
            # Others may wait for the same future: a cancelled caller must not cancel it.
            await asyncio.shield(self._drained)

    def _watch_reading(self) -> None:
        """Look after `STALLED` seconds whether the client has read some of what is unread now."""
        size = self.transport.get_write_buffer_size()
        self.stall_timer = self.loop.call_later(STALLED, self._abort_if_stalled, size)

    def _abort_if_stalled(self, unread_before: int) -> None:
        if self.transport.get_write_buffer_size() >= unread_before:
            self.transport.abort()
        else:
            self._watch_reading()
