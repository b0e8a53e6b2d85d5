"""Addresses: to which a subscription may connect. Looked at when the socket is made.

A host's name may lead to a private address, today or at the next look-up (DNS rebinding). So not
the name is judged but the address that is about to be connected to.
"""

import ipaddress
import socket
from collections.abc import Iterable
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
        # The same words for a name that is unknown: else a stranger could find out which names
        # exist in the network of the server.
        super().__init__(f"the host is unknown or its address is not public; {mend}")


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

    def socket(self, family: socket.AddressFamily, address: str) -> socket.socket:
        """Return a socket for connecting to an address.

        Raises:
            NotPublic: the address may not be connected to.
        """
        if not self.lets(address):
            raise self.refusal()
        return socket.socket(family, socket.SOCK_STREAM)

    def refusal(self) -> NotPublic:
        """Return the error for an address that may not be connected to, or that is unknown."""
        return NotPublic(self._mend)


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
