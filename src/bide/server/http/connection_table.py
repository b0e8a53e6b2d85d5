"""The open connections of one process, and the limits of all of them together.

Limited are their number, of one address and of all; the bytes of unfinished heads, which clients
send before they show a token; and what clients have not read of their answers.
"""

import asyncio
import resource
import time
from collections import Counter
from typing import Protocol

from bide.logs import logger
from bide.model.limits import MAX_HEADS, MAX_UNREAD, SMALL_HEAD
from bide.server.access.admission import Admission
from bide.server.http.client_address import ClientAddress, network_of
from bide.server.http.request_parser import Refusal
from bide.server.settings import Settings

IDLE_SECONDS_AT_STOP = 1.0
"""While stopping, a connection is closed when it was idle for so many seconds."""

RESERVED_DESCRIPTORS = 64
"""Descriptors that are kept free for the store, push and logs."""

MOST_REFUSED = 16
"""Refused clients that get time to read the refusal; each takes one of these descriptors."""

_log = logger("bide.server")


class Peer(Protocol):
    """A client: a connection, or a TLS handshake that becomes one."""

    @property
    def address(self) -> str:
        """The client's address; "" on a Unix socket."""

    def close_if_idle(self) -> bool:
        """Close the connection if no request is under way; tell whether it was closed."""

    def shut_down(self) -> None:
        """Answer requests that have come or may be on their way, and close the connection."""

    def break_off(self) -> None:
        """End what is under way without an answer."""


class Writer(Protocol):
    """A connection as its answers are written."""

    @property
    def address(self) -> str:
        """The client's address; "" on a Unix socket."""

    @property
    def transport(self) -> asyncio.Transport:
        """What keeps the data that the client has not read."""


class ConnectionTable:
    """The open connections of one process.

    Args:
        settings: the limits.
        addresses: tells which clients are proxies.
        admission: knows whether requests need tokens; then the connections of an address are
            limited.
    """

    def __init__(self, settings: Settings, addresses: ClientAddress, admission: Admission) -> None:
        self._addresses = addresses
        self._admission = admission
        self._most_per_address = settings.connections_per_address
        self.patience = settings.request_timeout
        """Seconds that a client may take to send a head."""
        self.quiet = min(IDLE_SECONDS_AT_STOP, settings.grace / 2)
        """Seconds after which an idle connection is closed while the server stops."""
        self.stopping = False
        """Whether the server stops: no connection waits long for another request."""
        self.most = _most_connections(settings.max_connections)
        """How many connections there may be."""
        self.connections: dict[Peer, None] = {}
        """The open connections, the oldest first."""
        self.empty = asyncio.Event()
        """Set while there are none."""
        self._count_by_network: Counter[str] = Counter()
        self.refused: dict[Peer, None] = {}
        """Refused connections whose clients get time to read the refusal."""
        self.unread: dict[Writer, None] = {}
        """Connections whose clients have not read their answers, the longest unread first."""
        self._head_sizes: dict[Peer, int] = {}
        """Bytes of unfinished heads that are not small."""
        self.head_bytes = 0
        """The sum of them."""
        self._warned_at = float("-inf")
        """The time of the last warning, in seconds of the monotonic clock."""

    def enter(self, peer: Peer) -> Refusal | None:
        """Count a connection; return why it is refused if there is no room for it."""
        address, network = peer.address, network_of(peer.address)
        is_proxy = self._addresses.trusts(address)  # many clients share it
        most = self._most_per_address
        # Without tokens, and on a Unix socket (""), all clients are programs of this machine.
        is_limited = address and not is_proxy and self._admission.requires_tokens
        if is_limited and self._count_by_network[network] >= most:
            self._warn(f"{network} has {most:,} connections; more are refused")
            return 429, f"{network} has {most:,} connections already; use these, or close some"
        if len(self.connections) >= self.most and not self._make_room(network):
            self._warn(f"all {self.most:,} connections of this process are busy")
            return 503, "the server has too many connections; try again in a second"
        self.connections[peer] = None
        self._count_by_network[network] += 1
        self.empty.clear()
        return None

    def leave(self, peer: Peer) -> None:
        """Remove a connection from all counts."""
        self.refused.pop(peer, None)
        self.head_bytes -= self._head_sizes.pop(peer, 0)
        if peer in self.connections:
            del self.connections[peer]
            self._count_by_network[network := network_of(peer.address)] -= 1
            if not self._count_by_network[network]:
                del self._count_by_network[network]
        if not self.connections:
            self.empty.set()

    def lets_linger(self, refused: Peer) -> bool:
        """Tell whether a refused client gets time to read the refusal; then count it."""
        if self.stopping or len(self.refused) >= MOST_REFUSED:
            return False
        self.refused[refused] = None
        return True

    def has_room_for_head(self, connection: Peer, size: int) -> bool:
        """Count the bytes of an unfinished head; tell whether there is room for them.

        Clients send heads before they show a token, so a large one needs room.
        """
        if connection in self._head_sizes:
            self.head_bytes -= self._head_sizes.pop(connection)
        if size <= SMALL_HEAD:
            return True
        self._head_sizes[connection] = size
        self.head_bytes += size
        return self.head_bytes <= MAX_HEADS

    def fell_behind(self, connection: Writer) -> None:
        """Note that a client has not read its answers; if all answers take too much, cut one off.

        That is the client that is behind for the longest, of the address with the most unread data.
        """
        self.unread[connection] = None
        sizes = {writer: writer.transport.get_write_buffer_size() for writer in self.unread}
        while sum(sizes.values()) > MAX_UNREAD:
            unread_by_network: Counter[str] = Counter()
            for writer, size in sizes.items():
                unread_by_network[network_of(writer.address)] += size
            worst = _most_common(unread_by_network)
            # `unread` has the longest behind first.
            victim = next(writer for writer in sizes if network_of(writer.address) == worst)
            self._warn(f"{worst} has not read its answers, which take too much; it is cut off")
            del sizes[victim]
            self.caught_up(victim)
            victim.transport.abort()

    def caught_up(self, connection: Writer) -> None:
        """Note that a client has read its answers, or has gone."""
        self.unread.pop(connection, None)

    def _make_room(self, newcomer: str) -> bool:
        """Close the oldest idle connection, if possible of the address with the most connections.

        So an address with many idle connections loses its own, not those of others. An address with
        many busy connections closes none of an address that has not more than it.

        Args:
            newcomer: the network of the client that needs room.

        Returns:
            Whether a connection was closed.
        """
        self._warn(f"all {self.most:,} connections of this process are taken; idle ones are closed")
        largest = _most_common(self._count_by_network)
        newcomers_count = self._count_by_network[newcomer]
        networks = {connection: network_of(connection.address) for connection in self.connections}
        of_largest = [connection for connection, network in networks.items() if network == largest]
        others = (
            connection
            for connection, network in networks.items()
            if network == newcomer or self._count_by_network[network] > newcomers_count
        )
        return any(connection.close_if_idle() for connection in (*of_largest, *others))

    def _warn(self, text: str) -> None:
        """Log a warning, at most one in ten seconds."""
        now = time.monotonic()
        if now - self._warned_at >= 10:
            self._warned_at = now
            _log.warning(text)


def _most_connections(setting: int) -> int:
    """Return how many connections this process may have: some of its descriptors stay free."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 1 << 20
    return max(1, min(setting, descriptors - RESERVED_DESCRIPTORS, descriptors * 3 // 4))


def _most_common(counter: Counter[str]) -> str:
    ((network, _count),) = counter.most_common(1)
    return network
