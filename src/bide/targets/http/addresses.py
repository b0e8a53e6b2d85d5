"""The addresses that push may connect to, checked at each connection.

The name of a host may resolve to a private address, now or at the next look-up (DNS rebinding). So
the check is on the address of each connection, not on the name.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

from bide.model.errors import InvalidArgument

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses whose last 32 bits are an IPv4 address (RFC 6052)."""

# Not by `is_global`, which differs between versions of Python.
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "168.63.129.16/32",  # public by its number, but the agent of a virtual machine on Azure
        # All of IPv6 but 2000::/3, and what is not public of that.
        "::/3",
        "4000::/2",
        "8000::/1",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
    )
]


SERVERS = "the operator of the server may allow its network (--allow-network)"
"""The fix where a server sends."""


LOW_PORTS = (80, 443)
"""The ports below 1024 that push may connect to. The others belong to services such as SSH and
mail, which must not get requests that a stranger writes."""


class NotPublic(OSError):
    """Push may not connect to the address, or to the port.

    Args:
        fix: what the user can do.
    """

    def __init__(self, fix: str = SERVERS) -> None:
        # The same text for an unknown name: else a stranger could find out which names exist in the
        # network of the server.
        super().__init__(f"the host is unknown or its address or port is not public; {fix}")


def is_own(address: str) -> bool:
    """Tell whether an address belongs to this machine: a socket can be bound to it.

    A public address of this machine leads past its firewall.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


class AddressGate:
    """Allows connections to public addresses of other machines, and to allowed networks.

    Args:
        allowed: networks that are allowed though they are not public, such as "10.1.0.0/16", with
            all their ports.
        fix: what the user can do about a refused address, for the error.
        is_own: tells whether an address belongs to this machine.

    Example:
        >>> gate = AddressGate(["10.1.0.0/16"])
        >>> gate.lets("10.1.2.3", 22), gate.lets("10.2.0.1", 443), gate.lets("::ffff:127.0.0.1", 80)
        (True, False, False)
    """

    def __init__(
        self,
        allowed: Iterable[str] = (),
        fix: str = SERVERS,
        is_own: Callable[[str], bool] = is_own,
    ) -> None:
        self._fix = fix
        self._allowed = [ipaddress.ip_network(network) for network in allowed]
        self._is_own = is_own

    def lets(self, address: str, port: int) -> bool:
        """Tell whether push may connect to a port of an address."""
        without_zone, _, _ = address.partition("%")  # as in fe80::1%eth0
        inner = _inner(ipaddress.ip_address(without_zone))
        if any(inner in network for network in self._allowed):
            return True
        is_public = not any(inner in network for network in _NOT_PUBLIC)
        return is_public and _is_open(port) and not self._is_own(str(inner))

    def check(self, url: str) -> None:
        """Check the host of a URL as far as that is possible before a connection.

        Raises:
            InvalidArgument: it is an address, or this machine, that is not allowed; or a port of a
                public host.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        if not _is_open(port) and not self._allowed:
            raise InvalidArgument(
                f"url names port {port}; of public hosts push connects to ports 80, 443 and those "
                "from 1024: name such a port, or have the operator of the server allow the network "
                "of the host (--allow-network, push_networks)"
            )
        is_local = host == "localhost" or host.endswith(".localhost")
        addresses = ("127.0.0.1", "::1") if is_local else (host,)
        try:
            is_allowed = any(self.lets(address, port) for address in addresses)
        except ValueError:
            return  # a name: its addresses are checked at each connection
        if not is_allowed:
            raise InvalidArgument(
                f"url names {host}, which is not public; name a public host, or have the operator "
                "of the server allow its network (--allow-network, push_networks)"
            )

    async def addresses(self, host: str, port: int, lookup: "Lookup") -> list[str]:
        """Look up the addresses of a host, and return those to whose port push may connect.

        Raises:
            NotPublic: there is none, or the host is unknown.
        """
        addresses: list[str] = []
        # An unknown host looks like one that is not public; see `NotPublic`. A UnicodeError is of
        # a name that cannot be one, such as one with a part of more than 63 characters.
        with suppress(OSError, UnicodeError):
            addresses = await lookup(host)
        if not (allowed := [address for address in addresses if self.lets(address, port)]):
            raise NotPublic(self._fix)
        return allowed


_PORTS = {"http": 80, "https": 443, "amqp": 5672, "amqps": 5671}
"""The port of a URL that names none, by its scheme."""


def _is_open(port: int) -> bool:
    """Tell whether push may connect to a port of public hosts."""
    return port in LOW_PORTS or port >= 1024


def _inner(address: _Address) -> _Address:
    """Return the IPv4 address inside an IPv6 address, if there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)  # the last 32 bits
    return address.ipv4_mapped or address.sixtofour or address


THREADS = 128
"""How many hosts are looked up at a time: more than a namespace has subscriptions, unless it was
given more."""

TRY = 3.0
"""Seconds for connecting to one address of a host that has others."""

T = TypeVar("T")

Lookup = Callable[[str], Awaitable[list[str]]]
"""Returns the addresses of a host."""


_threads = ThreadPoolExecutor(THREADS, "bide-lookup")
_lookups: dict[str, Future[list[str]]] = {}
"""The look-ups under way, by host.

The system's resolver holds a thread for as long as the name server of a host takes to answer. Who
chooses a host also chooses its name server, which may never answer. So a host occupies one thread,
however many requests to it wait, and never one of those in which the server does other work.
"""


def _addresses(host: str) -> list[str]:
    """Ask the system for the addresses of a host; return each once, in the system's order."""
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [str(socket_address[0]) for _, _, _, _, socket_address in infos]
    return list(dict.fromkeys(addresses))


async def lookup(host: str) -> list[str]:
    """Return the addresses of a host, in the order in which the system prefers them.

    Raises:
        OSError: it is not known.
    """
    with suppress(ValueError):  # the host is a name
        return [str(ipaddress.ip_address(host))]
    addresses = _lookups.get(host)
    if addresses is None:
        addresses = _lookups[host] = _threads.submit(_addresses, host)
        addresses.add_done_callback(lambda _: _lookups.pop(host, None))
    # Others wait for it as well: one of them that gives up does not end it.
    return await asyncio.shield(asyncio.wrap_future(addresses))


async def first_to_answer(addresses: Sequence[str], connect: Callable[[str], Awaitable[T]]) -> T:
    """Return the connection to the first of some addresses that answers.

    Raises:
        OSError: none does; it is the error of the last one.
    """
    for address in addresses[:-1]:
        with suppress(OSError):  # TimeoutError is one, too
            async with asyncio.timeout(TRY):
                return await connect(address)
    return await connect(addresses[-1])
