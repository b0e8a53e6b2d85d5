"""TLS: the certificate of the server, and the handshake of a connection."""

import asyncio
import socket
import ssl
from typing import Any

from bide.model.errors import InvalidArgument
from bide.server.http.connection import Connection
from bide.server.http.connection_table import ConnectionTable
from bide.server.http.exchange import App
from bide.server.logs import log_refused
from bide.server.settings import Settings

CLOSING_SECONDS = 1.0
"""Seconds that a client has to confirm the end of a connection before it is cut off."""


def context_of(settings: Settings) -> ssl.SSLContext | None:
    """Load the certificate, its key, and the authorities of clients; return `None` without TLS.

    Raises:
        InvalidArgument: a file cannot be read or used.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])  # the server does not speak HTTP/2
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"tls_cert={settings.tls_cert!r} and tls_key={settings.tls_key!r} cannot be used: "
            f"{_reason(error)}; give a certificate chain and its key, without a passphrase, as PEM "
            "files that this user may read"
        ) from None
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise InvalidArgument(
                f"tls_client_ca={settings.tls_client_ca!r} cannot be used: {_reason(error)}; give "
                "the certificates of the authorities as a PEM file that this user may read"
            ) from None
    return context


def _reason(error: BaseException) -> str:
    """Return the short text of an error of OpenSSL or the system, without file names."""
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class Handshake:
    """A connection during its TLS handshake; afterwards a `Connection` replaces it.

    It counts as an idle connection of its address: a client that does not finish the handshake is
    cut off after `request_timeout`, or earlier to make room.
    """

    def __init__(
        self,
        table: ConnectionTable,
        app: App,
        sock: socket.socket,
        address: str,
        context: ssl.SSLContext,
    ) -> None:
        self.address = address
        """The client's address."""
        self._table = table
        self._sock = sock
        if (refusal := table.enter(self)) is not None:
            log_refused(address, *refusal)
            sock.close()
            return
        handshake = asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(table, app, self),
            sock,
            ssl=context,
            ssl_handshake_timeout=table.patience,
            ssl_shutdown_timeout=CLOSING_SECONDS,
        )
        self._task = asyncio.ensure_future(handshake)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Future[Any]") -> None:
        """Remove the connection from the counts; close it if the handshake failed."""
        self._table.leave(self)
        if task.cancelled():  # to make room, or because the server stops
            reason = "too slow"
        elif (error := task.exception()) is not None:
            reason = _reason(error)
        else:
            return
        self._sock.close()
        log_refused(self.address, 400, f"no TLS handshake: {reason}")

    def close_if_idle(self) -> bool:
        """Close the connection, which has no request; tell whether it was closed.

        One that is being closed does not count again.
        """
        is_being_closed = self._task.cancelling() > 0
        return not is_being_closed and self._task.cancel()

    def shut_down(self) -> None:
        """Give the client a little more time: a request that follows soon is answered."""
        asyncio.get_running_loop().call_later(self._table.quiet, self.break_off)

    def break_off(self) -> None:
        """Close the connection, unless a `Connection` has replaced it."""
        self._task.cancel()
