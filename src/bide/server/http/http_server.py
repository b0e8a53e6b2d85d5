"""The server: it accepts connections, limits their number, and stops gracefully.

With TLS, a connection is a `Handshake` first and a `Connection` afterwards.
"""

import asyncio
import resource
import socket
import ssl
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from bide.logs import logger
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_HEADS, MAX_UNREAD, SMALL_HEAD
from bide.server.app import ServerApp
from bide.server.http.client_address import network_of
from bide.server.http.connection import Connection
from bide.server.http.exchange import CLOSE, head
from bide.server.logs import log_refused
from bide.server.problem import Problem, as_json
from bide.server.settings import Settings
from bide.tasks import first_of

QUIET = 1.0
"""While stopping, a connection is closed when it was idle for so many seconds."""

BACKLOG = 2_048
"""Connections that the system keeps until a process accepts them."""

RESERVED = 64
"""Descriptors that are kept free for the store, push and logs."""

LINGERING = 16
"""Refused clients that get time to read the refusal; each takes one of these descriptors."""

_KINDS = {400: "malformed", 429: "too-many-connections", 431: "head-too-large", 503: "overloaded"}

_log = logger("bide.server")


class HttpServer:
    """The connections of one process.

    Args:
        app: the application.
    """

    def __init__(self, app: ServerApp) -> None:
        settings = app.service.settings
        self.app = app
        self.stopping = False
        self.patience = settings.request_timeout
        """Seconds that a client may take to send a head."""
        self.quiet = min(QUIET, settings.grace / 2)
        self._settings = settings
        # Some of the descriptors that this process may open stay free.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = 1 << 20 if files == resource.RLIM_INFINITY else files
        self._most = max(1, min(settings.max_connections, files - RESERVED, files * 3 // 4))
        self._tls = context_of(settings)
        self.connections: dict[Connection | Handshake, None] = {}
        """The open connections, the oldest first."""
        self._by_network: Counter[str] = Counter()
        self._refused: set[Connection] = set()
        """Refused connections whose clients get time to read the refusal."""
        self._unread: dict[Connection, None] = {}
        """Connections whose clients have not read their answers, the longest unread first."""
        self._heads: dict[Connection | Handshake, int] = {}
        """Bytes of unfinished heads."""
        self._head_bytes = 0
        self._stop = asyncio.Event()
        self._empty = asyncio.Event()
        self._hurry = asyncio.Event()
        self._warned_at = float("-inf")

    def stop(self) -> None:
        """Finish requests and accept no more; the second call breaks off what is under way."""
        self.app.service.stop(hurry=self.stopping)
        if self.stopping:
            self._hurry.set()
        self.stopping = True
        self._stop.set()
        for connection in list(self.connections):
            connection.shut_down()
        for connection in self._refused:
            connection.transport.abort()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `stop` is called and all requests are answered, or the grace is over."""
        async with self.app.running():
            if self._tls is None:
                server = await asyncio.get_running_loop().create_server(
                    lambda: Connection(self), sock=listening, backlog=BACKLOG
                )
                await self._stop.wait()
                server.close()
            else:
                await first_of(self._stop.wait(), self._accept(listening, self._tls))
                listening.close()
            for _ in range(5):  # serve connections accepted just now
                await asyncio.sleep(0)
            if self.connections:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(1.0, self._settings.grace)):
                        await first_of(self._empty.wait(), self._hurry.wait())
            if self.connections:
                _log.warning("stopping; connections broken off: %d", len(self.connections))
                for connection in list(self.connections):
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
                Handshake(self, sock, peer[0], context)
                await asyncio.sleep(0)  # `sock_accept` does not yield while clients wait

    # From connections.

    def enter(self, connection: "Connection | Handshake") -> tuple[int, str] | None:
        """Count a connection; return a status and its reason if there is no room for it."""
        address, network = connection.address, network_of(connection.address)
        trusted = self.app.service.addresses.trusts(address)  # the clients of a proxy share it
        most = self._settings.connections_per_address
        limited = address and not trusted and self.app.service.admission.asks
        if limited and self._by_network[network] >= most:
            self._warn(f"{network} has {most:,} connections; more are refused")
            return 429, f"{network} has {most:,} connections already; use these, or close some"
        if len(self.connections) >= self._most and not self._make_room(network):
            self._warn(f"all {self._most:,} connections of this process are busy")
            return 503, "the server has too many connections; try again in a second"
        self.connections[connection] = None
        self._by_network[network] += 1
        self._empty.clear()
        return None

    def has_time_for(self, refused: Connection) -> bool:
        """Tell whether a refused client gets time to read the refusal; then count it."""
        if self.stopping or len(self._refused) >= LINGERING:
            return False
        self._refused.add(refused)
        return True

    def leave(self, connection: "Connection | Handshake") -> None:
        """Remove a connection from the counts."""
        self._refused -= {connection}
        self._head_bytes -= self._heads.pop(connection, 0)
        if connection in self.connections:
            del self.connections[connection]
            self._by_network[network := network_of(connection.address)] -= 1
            if not self._by_network[network]:
                del self._by_network[network]
        if not self.connections:
            self._empty.set()

    def has_room_for_head(self, connection: Connection, size: int) -> bool:
        """Count the bytes of an unfinished head; tell whether there is room for them.

        Clients send heads before they show a token, so a large one needs room.
        """
        self._head_bytes -= self._heads.pop(connection, 0)
        if size > SMALL_HEAD:
            self._heads[connection] = size
            self._head_bytes += size
        return size <= SMALL_HEAD or self._head_bytes <= MAX_HEADS

    def fell_behind(self, connection: Connection) -> None:
        """Note that a client has not read its answers; if all answers take too much, cut one off.

        That is the client that is behind for the longest, of the address with the most unread data.
        """
        self._unread[connection] = None
        sizes = {peer: peer.transport.get_write_buffer_size() for peer in self._unread}
        while sum(sizes.values()) > MAX_UNREAD:
            of_networks: Counter[str] = Counter()
            for peer, size in sizes.items():
                of_networks[network_of(peer.address)] += size
            (most, _), *_ = of_networks.most_common(1)
            first = next(peer for peer in sizes if network_of(peer.address) == most)
            self._warn(f"{most} has not read its answers, which take too much; it is cut off")
            del sizes[first]
            self.caught_up(first)
            first.transport.abort()

    def caught_up(self, connection: Connection) -> None:
        """Note that a client has read its answers, or has gone."""
        self._unread.pop(connection, None)

    def _make_room(self, newcomer: str) -> bool:
        """Close the oldest idle connection, if possible of the address with the most connections.

        So an address with many idle connections loses its own, not those of others. An address with
        many busy connections closes none of an address that has not more than it.
        """
        self._warn(
            f"all {self._most:,} connections of this process are taken; idle ones are closed"
        )
        (most, _), *_ = self._by_network.most_common(1)
        own = self._by_network[newcomer]
        networks = {connection: network_of(connection.address) for connection in self.connections}
        of_most = [connection for connection, network in networks.items() if network == most]
        others = (
            connection
            for connection, network in networks.items()
            if network == newcomer or self._by_network[network] > own
        )
        return any(connection.close_if_idle() for connection in (*of_most, *others))

    def _warn(self, text: str) -> None:
        """Log a warning, at most one in ten seconds."""
        now = time.monotonic()
        if now - self._warned_at >= 10:
            self._warned_at = now
            _log.warning(text)

    def refusal(self, status: int, detail: str) -> bytes:
        """Return the answer to a request that could not be parsed, or a refused connection."""
        status, data, headers = as_json(Problem(_KINDS[status], detail))
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        fields += [(b"content-length", b"%d" % len(data)), CLOSE]
        return head(status, fields) + data


FAREWELL = 1.0
"""Seconds that a client has to confirm the end of a connection before it is cut off."""

PAUSE = 1.0
"""Seconds after which accepting is tried again when no descriptor is left."""


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
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"tls_cert={settings.tls_cert!r} and tls_key={settings.tls_key!r} cannot be used: "
            f"{_words(error)}; give a certificate chain and its key, without a passphrase, as PEM "
            "files that this user may read"
        ) from None
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise InvalidArgument(
                f"tls_client_ca={settings.tls_client_ca!r} cannot be used: {_words(error)}; give "
                "the certificates of the authorities as a PEM file that this user may read"
            ) from None
    return context


def _words(error: BaseException) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class Handshake:
    """A connection during its TLS handshake; afterwards a `Connection` replaces it.

    It counts as an idle connection of its address: a client that does not finish the handshake is
    cut off after `request_timeout`, or earlier to make room.
    """

    def __init__(
        self, server: HttpServer, sock: socket.socket, address: str, context: ssl.SSLContext
    ) -> None:
        self.address = address
        """The client's address."""
        self.server = server
        self._sock = sock
        if (refusal := server.enter(self)) is not None:
            log_refused(address, *refusal)
            sock.close()
            return
        shake = asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(server, self),
            sock,
            ssl=context,
            ssl_handshake_timeout=server.patience,
            ssl_shutdown_timeout=FAREWELL,
        )
        self._task = asyncio.ensure_future(shake)
        self._task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Future[Any]") -> None:
        """Remove the connection from the counts; close it if the handshake failed."""
        self.server.leave(self)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._sock.close()
            why = "too slow" if error is None else _words(error)
            log_refused(self.address, 400, f"no TLS handshake: {why}")

    def close_if_idle(self) -> bool:
        """Close the connection, which has no request; tell whether it was closed."""
        return not self._task.cancelling() and self._task.cancel()

    def shut_down(self) -> None:
        """Give the client a little more time: a request that follows soon is answered."""
        asyncio.get_running_loop().call_later(self.server.quiet, self.break_off)

    def break_off(self) -> None:
        """Close the connection, unless a `Connection` has replaced it."""
        self._task.cancel()
