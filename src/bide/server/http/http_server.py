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

PAUSE = 1.0
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
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self.table.stopping

    def stop(self) -> None:
        """Finish requests and accept no more; the second call breaks off what is under way."""
        self.app.service.stop(hurry=self.stopping)
        if self.stopping:
            self._hurry.set()
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
            for _ in range(5):  # serve connections accepted just now
                await asyncio.sleep(0)
            if self.table.connections:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(1.0, self.app.service.settings.grace)):
                        await first_of(self.table.empty.wait(), self._hurry.wait())
            if self.table.connections:
                _log.warning("stopping; connections broken off: %d", len(self.table.connections))
                for connection in list(self.table.connections):
                    connection.break_off()
                await asyncio.sleep(0)

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        """Accept connections and begin their handshakes.

        A server of asyncio would count connections only after their handshake.
        """
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                sock, peer = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptor is left: trying at once would spin
                _log.warning("no connection can be accepted: %s", error.strerror)
                await asyncio.sleep(PAUSE)
            else:
                Handshake(self.table, self.app, sock, peer[0], context)
                await asyncio.sleep(0)  # `sock_accept` does not yield while clients wait
