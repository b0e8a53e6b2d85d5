"""TLS in the server: the certificate, and connections until their handshake is over."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from bide.model.errors import InvalidArgument
from bide.server.accesslog import log_refused
from bide.server.connection import Connection

if TYPE_CHECKING:
    from bide.server.http_server import HttpServer
    from bide.server.settings import Settings

FAREWELL = 1.0
"""Seconds that a client has to confirm the end of a connection before it is cut off."""

AT_ONCE = 100
"""Connections that are accepted before others get a turn."""

PAUSE = 1.0
"""Seconds after which accepting is tried again when no descriptor is left."""

_log = logging.getLogger("bide.server")


def context_of(settings: "Settings") -> ssl.SSLContext | None:
    """Read the certificate, its key, and the authorities of clients; `None` without TLS.

    Raises:
        InvalidArgument: a file cannot be read or used; the text names it.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        _readable(name, getattr(settings, name))
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"tls_cert={settings.tls_cert!r} and tls_key={settings.tls_key!r} cannot be used: "
            f"{_words(error)}; give a certificate chain and its key, without a passphrase, as PEM"
        ) from None
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise InvalidArgument(
                f"tls_client_ca={settings.tls_client_ca!r} cannot be used: {_words(error)}; give "
                "the certificates of the authorities as PEM"
            ) from None
    return context


def _readable(name: str, file: str | None) -> None:
    try:
        if file is not None:
            Path(file).open("rb").close()
    except OSError as error:
        raise InvalidArgument(
            f"{name}={file!r} cannot be read: {error.strerror}; name a file that this user may read"
        ) from None


def _words(error: BaseException) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class Acceptor:
    """Accepts connections on a listening socket, and begins their handshakes.

    A server of asyncio would count connections only after their handshake.

    Args:
        server: what the connections belong to.
        listening: the socket.
        context: the certificate.
    """

    def __init__(
        self, server: "HttpServer", listening: socket.socket, context: ssl.SSLContext
    ) -> None:
        self._server = server
        self._listening = listening
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        self._closed = True
        self._loop.remove_reader(self._listening)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left: trying at once would spin
                _log.warning("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(PAUSE, self._resume)
                return
            sock.setblocking(False)
            Handshake(self._server, sock, peer[0], self._context)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)


class Handshake:
    """A connection until its TLS handshake is over; then a `Connection` takes its place.

    It counts as a connection of its address from the start, and as an idle one: a client that does
    not finish the handshake is cut off after `request_timeout`, or earlier if there is no room.
    """

    def __init__(
        self, server: "HttpServer", sock: socket.socket, address: str, context: ssl.SSLContext
    ) -> None:
        self.address = address
        """The client's address."""
        self.server = server
        self._sock = sock
        if (refusal := server.enter(self)) is not None:
            log_refused(address, *refusal)
            sock.close()
            return
        self._task = asyncio.create_task(self._shake(context))
        self._task.add_done_callback(self._over)

    async def _shake(self, context: ssl.SSLContext) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _Secured(self), self._sock, ssl=context,
            ssl_handshake_timeout=self.server.patience, ssl_shutdown_timeout=FAREWELL,
        )  # fmt: skip

    def _over(self, task: "asyncio.Task[None]") -> None:
        """Count the connection no longer; close it if there was no handshake."""
        self.server.leave(self)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._sock.close()
            why = "it took too long" if error is None else _words(error)
            log_refused(self.address, 400, f"no TLS handshake: {why}")

    def close_if_idle(self) -> bool:
        """Close the connection, which carries no request; tell whether that was done."""
        return not self._task.cancelling() and self._task.cancel()

    def shut_down(self) -> None:
        """Give the client a little more time: the request that may follow is answered."""
        asyncio.get_running_loop().call_later(self.server.quiet, self.break_off)

    def break_off(self) -> None:
        """Close the connection, unless a `Connection` has taken its place."""
        self._task.cancel()


class _Secured(Connection):
    """Takes the place of a handshake."""

    def __init__(self, handshake: Handshake) -> None:
        super().__init__(handshake.server)
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self.server.leave(self._handshake)
        super().connection_made(transport)
