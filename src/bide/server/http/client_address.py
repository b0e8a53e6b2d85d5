"""Find out the address of a client, also behind proxies that the server trusts.

Anyone can send `X-Forwarded-For` and `Forwarded`. They are read only if a trusted proxy sent them,
and only up to the first address that is not a trusted proxy.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from bide.model.errors import InvalidArgument

UNIX = "unix"
"""The entry of the trusted proxies for every client of the server's Unix socket."""

_FOR = re.compile(r"""\bfor\s*=\s*"?([^",;]*)""", re.IGNORECASE)

_WITH_PORT = re.compile(r"\[([^\]]*)\](?::\d+)?|([^:]*):\d+")
"""An IPv6 address in brackets, or an address and its port."""


def networks(texts: Iterable[str], setting: str) -> list[IPv4Network | IPv6Network]:
    """Return the networks that the entries of a setting name.

    Args:
        texts: the entries: networks, or single addresses.
        setting: the name of the setting, for the error.

    Raises:
        InvalidArgument: one of them is not a network.
    """
    parsed_networks = []
    for text in texts:
        try:
            parsed_networks.append(ip_network(text))
        except ValueError as error:
            raise InvalidArgument(
                f"{setting} has {text!r}: {error}; write 10.1.0.0/16, or 127.0.0.1"
            ) from None
    return parsed_networks


class ClientAddress:
    """Reads the address of a client from its connection, or from the headers of a trusted proxy.

    Args:
        trusted: networks of proxies, such as "10.1.0.0/16", or "unix".

    Raises:
        InvalidArgument: one of them is not a network.
    """

    def __init__(self, trusted: Sequence[str] = ()) -> None:
        self._trusts_unix = UNIX in trusted
        self._networks = networks([entry for entry in trusted if entry != UNIX], "trusted_proxies")
        """Networks in which all addresses are trusted proxies."""

    def of(self, scope: dict[str, Any]) -> str:
        """Return the client's address; "" on a Unix socket without a trusted proxy.

        If the two headers name different clients, the proxy did not write one of them: then the
        address is that of the proxy, or "unix". All who send two count together.
        """
        peer = ""
        if scope.get("client"):
            host, _port = scope["client"]
            peer = _plain_address(host) or host
        if not self.trusts(peer):
            return peer
        entries: dict[bytes, list[str]] = {b"x-forwarded-for": [], b"forwarded": []}
        for name, value in scope["headers"]:
            if name in entries:
                entries[name] += value.decode("latin-1").split(",")
        matches = map(_FOR.search, entries[b"forwarded"])
        forwarded = [match[1] if match else "" for match in matches]
        paths = (entries[b"x-forwarded-for"], forwarded)
        clients = {self._nearest(peer, hops) for hops in paths if hops}
        if len(clients) == 1:
            return clients.pop()
        return peer or (UNIX if clients else "")

    def trusts(self, address: str) -> bool:
        """Tell whether an address is that of a trusted proxy; "": a client of the Unix socket."""
        if not address:
            return self._trusts_unix
        return bool(self._networks) and any(_is_in(address, network) for network in self._networks)

    def _nearest(self, peer: str, hops: Sequence[str]) -> str:
        """Return the client: going back from the server, the first that is no trusted proxy.

        If all are trusted, that is the farthest; before an entry that is no address, the proxy that
        has added it.

        Args:
            peer: the proxy from which the request has come, returned if the path names no other.
            hops: the addresses that proxies have added, the client's first.
        """
        nearest = peer
        for hop in reversed(hops):
            address = _plain_address(hop)
            if address is None:  # such as "unknown": the addresses before it cannot be trusted
                break
            nearest = address
            if not self.trusts(address):
                break
        return nearest


@lru_cache(maxsize=4_096)
def network_of(address: str) -> str:
    """Return the network that limits count together: of IPv6, a client has a /64 network.

    Example:
        >>> network_of("192.0.2.1"), network_of("2001:db8::1")
        ('192.0.2.1', '2001:db8::/64')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((int(parsed), 64), strict=False))


@lru_cache(maxsize=4_096)
def _plain_address(text: str) -> str | None:
    """Return an address in its usual form without port and brackets, `None` if it is not valid.

    Example:
        >>> _plain_address(" [2001:DB8::1]:4711"), _plain_address("::ffff:192.0.2.1")
        ('2001:db8::1', '192.0.2.1')
    """
    text = text.strip()
    if len(text) > 64:  # longer than any address; the cache keeps the texts
        return None
    if match := _WITH_PORT.fullmatch(text):
        text = match[1] or match[2]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # An IPv6 socket shows IPv4 clients as ::ffff:192.0.2.1.
    return str(getattr(address, "ipv4_mapped", None) or address)


@lru_cache(maxsize=4_096)
def _is_in(address: str, network: IPv4Network | IPv6Network) -> bool:
    try:
        return ip_address(address) in network
    except ValueError:
        return False
