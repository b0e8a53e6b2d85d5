"""Serve the application on listening sockets: how many connections, from whom, and until when."""

import asyncio
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from bide.consuming.graceful_stop import first_of
from bide.model.limits import MAX_UNREAD
from bide.server.app import App
from bide.server.client_address import network_of
from bide.server.connection import Connection
from bide.server.exchange import CLOSE, head
from bide.server.problem import Problem, as_json
from bide.server.tls import Acceptor, Handshake, context_of

QUIET = 1.0
"""While stopping, a connection is closed when nothing has come for so many seconds."""

BACKLOG = 2_048
"""Connections that the system keeps until this process accepts them."""

RESERVED = 64
"""Descriptors that are kept free for the store, push and logs."""

LINGERING = 16
"""Clients without room that have time to read why; each takes one of these descriptors."""

_KINDS = {400: "malformed", 429: "too-many-connections", 431: "head-too-large", 503: "overloaded"}

_log = logging.getLogger("bide.server")


class HttpServer:
    """The connections of one process.

    Args:
        app: what answers.
    """

    def __init__(self, app: App) -> None:
        settings = app.service.settings
        self.app = app
        self.stopping = False
        self.patience = settings.request_timeout
        """Seconds that a client may take to send a head."""
        self.quiet = min(QUIET, settings.grace / 2)
        self._settings = settings
        self._grace = settings.grace
        self._most = _most(settings.max_connections)
        self._tls = context_of(settings)
        self.connections: dict[Connection | Handshake, None] = {}
        """Those that are open, in the order in which they came."""
        self._by_network: Counter[str] = Counter()
        self._refused: set[Connection] = set()
        """Those without room whose clients may read why."""
        self._unread: dict[Connection, None] = {}
        """Those whose clients have not read their answers, the first to fall behind first."""
        self._stop = asyncio.Event()
        self._empty = asyncio.Event()
        self._hurry = asyncio.Event()
        self._told_at = float("-inf")

    def stop(self) -> None:
        """Answer what has come, accept no more; at the second call break off what is under way."""
        self.app.service.stop(hurry=self.stopping)
        if self.stopping:
            self._hurry.set()
        self.stopping = True
        self._stop.set()
        for connection in list(self.connections):
            connection.shut_down()
        for connection in self._refused:
            connection.transport.abort()

    async def serve(self, sockets: Iterable[socket.socket]) -> None:
        """Serve until `stop` is called, and all is answered or the grace is over."""
        loop = asyncio.get_running_loop()
        async with self.app.running():
            servers = [
                await loop.create_server(lambda: Connection(self), sock=one, backlog=BACKLOG)
                if self._tls is None
                else Acceptor(self, one, self._tls)
                for one in sockets
            ]
            await self._stop.wait()
            for server in servers:
                server.close()
            for _ in range(5):  # what was accepted in this moment is let in
                await asyncio.sleep(0)
            await self._until_empty()

    async def _until_empty(self) -> None:
        if self.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(1.0, self._grace)):
                    await first_of(self._empty.wait(), self._hurry.wait())
        if self.connections:
            _log.warning("stopping; connections broken off: %d", len(self.connections))
            for connection in list(self.connections):
                connection.break_off()
            await asyncio.sleep(0)

    # From connections.

    def enter(self, connection: Connection | Handshake) -> tuple[int, str] | None:
        """Count a connection; return a status and its reason if there is no room for it."""
        address = connection.address
        trusted = self.app.service.addresses.trusts(address)  # many clients share its address
        if address and not trusted and self.app.service.admission.asks:
            most = self._settings.connections_per_address
            if self._by_network[network := network_of(address)] >= most:
                self._tell(f"{network} has {most:,} connections; others are refused")
                return 429, f"{network} has {most:,} connections already; use these, or close some"
        if len(self.connections) >= self._most and not self._make_room(network_of(address)):
            self._tell(f"all {self._most:,} connections of this process are busy")
            return 503, "the server has too many connections; try again in a second"
        self.connections[connection] = None
        self._by_network[network_of(address)] += 1
        self._empty.clear()
        return None

    def has_time_for(self, refused: Connection) -> bool:
        """Tell whether a client without room is not cut off at once; if not, count it."""
        if self.stopping or len(self._refused) >= LINGERING:
            return False
        self._refused.add(refused)
        return True

    def leave(self, connection: Connection | Handshake) -> None:
        """Count a connection no longer."""
        self._refused -= {connection}
        if connection in self.connections:
            del self.connections[connection]
            self._by_network[network := network_of(connection.address)] -= 1
            if not self._by_network[network]:
                del self._by_network[network]
        if not self.connections:
            self._empty.set()

    def fell_behind(self, connection: Connection) -> None:
        """Note that a client has not read its answers; cut one off if all keep too much together.

        That is the one that fell behind first, of the address whose clients have most to read.
        """
        self._unread[connection] = None
        sizes = {one: one.transport.get_write_buffer_size() for one in self._unread}
        while sum(sizes.values()) > MAX_UNREAD:
            of_networks: Counter[str] = Counter()
            for one, size in sizes.items():
                of_networks[network_of(one.address)] += size
            (most, _), *_ = of_networks.most_common(1)
            first = next(one for one in sizes if network_of(one.address) == most)
            self._tell(f"{most} has not read its answers, which take too much; it is cut off")
            del sizes[first]
            self.caught_up(first)
            first.transport.abort()

    def caught_up(self, connection: Connection) -> None:
        """Note that a client has read its answers, or is gone."""
        self._unread.pop(connection, None)

    def _make_room(self, newcomer: str) -> bool:
        """Close the oldest idle connection, of the address that has most connections if it can be.

        So an address with many silent connections closes its own, not those of others; and for one
        with many busy connections none of an address is closed that has no more than it.
        """
        self._tell(
            f"all {self._most:,} connections of this process are taken; idle ones are closed"
        )
        (most, _), *_ = self._by_network.most_common(1)
        own = self._by_network[newcomer]
        networks = {one: network_of(one.address) for one in self.connections}
        of_most = [one for one, network in networks.items() if network == most]
        others = (
            one for one, network in networks.items()
            if network == newcomer or self._by_network[network] > own
        )  # fmt: skip
        return any(one.close_if_idle() for one in (*of_most, *others))

    def _tell(self, text: str) -> None:
        """Log a warning, at most one in ten seconds."""
        now = time.monotonic()
        if now - self._told_at >= 10:
            self._told_at = now
            _log.warning(text)

    def refusal(self, status: int, detail: str) -> bytes:
        """Return the answer to a request that could not be read."""
        status, data, headers = as_json(Problem(_KINDS[status], detail))
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        fields += [(b"content-length", b"%d" % len(data)), CLOSE]
        return head(status, fields) + data


def _most(given: int) -> int:
    """Return how many connections this process takes, as far as its descriptors allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return given
    return max(1, min(given, soft - RESERVED, soft * 3 // 4))
