"""The server: it accepts connections, and stops gracefully.

With TLS, a connection is a `Handshake` first and a `Connection` afterwards.
"""

import asyncio
import socket
import ssl
from contextlib import suppress

from bide.logs import logger
from bide.server.app import ServerApp
from bide.server.http.connection import Connection
from bide.server.http.connection_table import ConnectionTable
from bide.server.http.tls import Handshake, context_of
from bide.tasks import first_of

BACKLOG = 2_048
"""Connections that the system keeps until a process accepts them."""

RETRY_SECONDS = 1.0
"""Seconds after which accepting is tried again when no descriptor is left."""

_log = logger("bide.server")


class HttpServer:
    """The connections of one process.

    Args:
        app: the application.
    """

    def __init__(self, app: ServerApp) -> None:
        self.app = app
        service = app.service
        self.table = ConnectionTable(service.settings, service.addresses, service.admission)
        """The open connections."""
        self._tls = context_of(service.settings)
        """`None`: without TLS."""
        self._stop = asyncio.Event()
        """Set by the first call of `stop`."""
        self._second_stop = asyncio.Event()
        """Set by the second call of `stop`: what is under way is broken off."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self.table.stopping

    def stop(self) -> None:
        """Finish requests and accept no more; the second call breaks off what is under way."""
        self.app.service.stop(hurry=self.stopping)
        if self.stopping:
            self._second_stop.set()
        self.table.stopping = True
        self._stop.set()
        for connection in list(self.table.connections):
            connection.shut_down()
        for connection in list(self.table.refused):
            connection.break_off()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `stop` is called and all requests are answered, or the grace is over."""
        async with self.app.running():
            if self._tls is None:
                server = await asyncio.get_running_loop().create_server(
                    lambda: Connection(self.table, self.app), sock=listening, backlog=BACKLOG
                )
                await self._stop.wait()
                server.close()
            else:
                await first_of(self._stop.wait(), self._accept(listening, self._tls))
                listening.close()
            # A connection that was accepted just now enters the table within a few rounds of the
            # event loop.
            for _ in range(5):
                await asyncio.sleep(0)
            await self._end_connections()

    async def _end_connections(self) -> None:
        """Wait until all connections are closed; break off those that outlast the grace."""
        if self.table.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(1.0, self.app.service.settings.grace)):
                    await first_of(self.table.empty.wait(), self._second_stop.wait())
        if self.table.connections:
            _log.warning("stopping; connections broken off: %d", len(self.table.connections))
            for connection in list(self.table.connections):
                connection.break_off()
            await asyncio.sleep(0)  # their tasks are cancelled in the next round of the event loop

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        """Accept connections and begin their handshakes.

        A server of asyncio would count connections only after their handshake.
        """
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                sock, client_name = await loop.sock_accept(listening)
            except ConnectionAbortedError:  # the client has gone already
                continue
            except OSError as error:  # no descriptor is left: trying at once would spin
                _log.warning("no connection can be accepted: %s", error.strerror)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                host, *_ = client_name
                Handshake(self.table, self.app, sock, host, context)
                await asyncio.sleep(0)  # `sock_accept` does not yield while clients wait
