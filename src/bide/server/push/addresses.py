"""Addresses: to which a subscription may connect. Looked at when the socket is made.

A host's name may lead to a private address, today or at the next look-up (DNS rebinding). So not
the name is judged but the address that is about to be connected to.
"""

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from bide.model.errors import InvalidArgument

__all__ = ["Gate", "NotPublic"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
            "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        ),
    )
)  # fmt: skip
_NOT_PUBLIC_6 = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20"))
)  # fmt: skip


SERVERS = "whoever runs the server may allow its network (--allow-network)"
"""What mends it where a server sends."""


class NotPublic(OSError):
    """The address is not to be connected to.

    Args:
        mend: what mends it.
    """

    def __init__(self, mend: str = SERVERS) -> None:
        # Which one it is tells a stranger what the names of this network lead to.
        super().__init__(
            "the host leads to an address that is private, of this machine, or otherwise not "
            f"public; {mend}"
        )


def _refusal(url: str) -> InvalidArgument:
    return InvalidArgument(
        f"url names {urlsplit(url).hostname}, which is not public; name a public host, or have "
        "whoever runs the server allow its network (--allow-network, push_networks)"
    )


class Gate:
    """Lets connections through to public addresses, and to networks that are allowed.

    Args:
        allowed: networks that may be reached though they are not public, such as "10.1.0.0/16".
        mend: what mends it that an address is not among them.

    Example:
        >>> gate = Gate(["10.1.0.0/16"])
        >>> gate.lets("10.1.2.3"), gate.lets("10.2.0.1"), gate.lets("::ffff:127.0.0.1")
        (True, False, False)
    """

    def __init__(self, allowed: Iterable[str] = (), mend: str = SERVERS) -> None:
        self._mend = mend
        self._allowed: list[_Network] = [ipaddress.ip_network(network) for network in allowed]

    def lets(self, address: str) -> bool:
        """Tell whether an address may be connected to."""
        found = _inner(ipaddress.ip_address(address.partition("%")[0]))
        return _is_public(found) or any(
            found.version == network.version and found in network for network in self._allowed
        )

    def check(self, url: str) -> None:
        """Look at the host of a URL as far as that can be judged before anybody connects.

        Raises:
            InvalidArgument: it is an address, or this machine, and not to be connected to.
        """
        host = urlsplit(url).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            if not (self.lets("127.0.0.1") or self.lets("::1")):
                raise _refusal(url)
            return
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return  # a name: what it leads to is judged at each connection
        if not self.lets(str(address)):
            raise _refusal(url)

    def socket(self, info: tuple[Any, Any, int, str, tuple[Any, ...]]) -> socket.socket:
        """Return a socket for an address that was looked up, as aiohttp asks for one.

        Raises:
            NotPublic: it is not to be connected to.
        """
        family, kind, protocol, _, address = info
        if not self.lets(address[0]):
            raise NotPublic(self._mend)
        return socket.socket(family, kind, protocol)


def _inner(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: _Address) -> bool:
    # Told out here, and not by `is_global`, which knows more or less from version to version.
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _UNICAST and not any(address in network for network in _NOT_PUBLIC_6)
