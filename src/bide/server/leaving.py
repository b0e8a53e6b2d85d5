"""Leaving: a process that ends answers what was sent to it before it closes its connections.

Clients that keep connections send the next request on them at any moment. So nothing is closed from
one moment to the next: answers say that they are the last ones on their connection, and where none
is to be given, a request that may be on its way is waited for.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LeavingProtocol", "LeavingServer"]

CLOSE = (b"connection", b"close")

QUIET = 1.0
"""A connection is closed when nothing has come for so many seconds since the process was told."""


class LeavingProtocol(HttpToolsProtocol):
    """A connection that is closed between two requests, as far as that can be told from here."""

    quiet = QUIET
    _ends = False

    def connection_made(self, transport: Any) -> None:
        """Wait for a first request, even if this process is about to end."""
        super().connection_made(transport)
        if CLOSE in self.server_state.default_headers:
            self.shutdown()

    def shutdown(self) -> None:
        """Give the last answer, to what has come or may be on its way, and close the connection."""
        self._ends = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._wait_a_moment()
        elif not cycle.response_started:
            cycle.keep_alive = False  # which the answer says

    def on_response_complete(self) -> None:
        """Go on with what has come meanwhile."""
        super().on_response_complete()
        if self._ends and self.timeout_keep_alive_task is not None:
            self._wait_a_moment()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, unless a request has come in this very moment."""
        if self.transport.is_closing():
            return
        if self._request_has_come():
            self._wait_a_moment()  # it is about to be read
        else:
            self.transport.close()

    def _wait_a_moment(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.quiet, self.timeout_keep_alive_handler
        )

    def _request_has_come(self) -> bool:
        """Tell whether there is something to be read; if not, tell the client that all is over.

        Before the event loop closes the connection it may do much else.
        """
        try:
            descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=descriptor) as same:
                try:
                    return bool(same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
                except BlockingIOError:
                    same.shutdown(socket.SHUT_WR)
        except OSError:
            return False  # the client has closed it, or no descriptor is left to look through
        return False


class LeavingServer(uvicorn.Server):
    """uvicorn's server, which leaves no connection without an answer when it ends."""

    def leave(self) -> None:
        """Have each answer say from now on that it is the last one on its connection."""
        state, config = self.server_state, self.config
        if CLOSE not in state.default_headers:
            # The one is made of the other every second.
            config.encoded_headers = [*config.encoded_headers, CLOSE]
            state.default_headers = [*state.default_headers, CLOSE]
        for connection in list(state.connections):
            connection.shutdown()

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Accept no more, answer what has come, and close the connections."""
        self.leave()
        # Who was accepted in this very moment is let in; others are left to those who go on.
        loop = asyncio.get_running_loop()
        for listening in sockets or ():
            loop.remove_reader(listening)
        for _ in range(5):
            await asyncio.sleep(0)
        await super().shutdown(list(sockets) if sockets is not None else None)
