"""Refuse clients that keep sending wrong tokens."""

import hashlib
from collections import OrderedDict
from ipaddress import ip_address, ip_network

from bide.clock import Clock
from bide.model.limits import MAX_FAILED_LOGINS
from bide.server.problem import Problem

__all__ = ["WINDOW", "LoginThrottle"]

WINDOW = 60.0
"""Seconds."""

MAX_ADDRESSES = 10_000

MAX_KNOWN = 10_000
"""Valid tokens that are remembered: they stay usable from an address that is refused."""


class LoginThrottle:
    """Counts failed logins per address (IPv6: per /64 network), in this process.

    Args:
        clock: that measures `WINDOW`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address: when its window began, and how many logins have failed since."""
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: str, token: str) -> None:
        """Refuse an address with too many failed logins; a token that was valid lately passes.

        Args:
            address: of the client; "" is not limited: all clients of a proxy may share it.
            token: that the request carries.

        Raises:
            Problem: too many logins have failed; it says when to try again.
        """
        began, count = self._failed.get(_network(address), (0.0, 0))
        left = began + WINDOW - self._clock.monotonic()
        if count >= MAX_FAILED_LOGINS and left > 0 and _digest(token) not in self._known:
            raise Problem(
                "too-many-logins",
                f"{address} has sent {count:,} wrong tokens within {WINDOW:g} s; try again in "
                f"{left:.0f} s",
                headers={"retry-after": str(max(1, round(left)))},
            )

    def failed(self, address: str) -> None:
        """Count a failed login."""
        if not address:
            return
        key, now = _network(address), self._clock.monotonic()
        began, count = self._failed.pop(key, (now, 0))
        if now >= began + WINDOW:
            began, count = now, 0
        self._failed[key] = began, count + 1
        if len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)

    def passed(self, token: str) -> None:
        """Remember a valid token."""
        self._known[key := _digest(token)] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=16).digest()


def _network(address: str) -> str:
    """Return what is counted together with an address.

    Example:
        >>> _network("192.0.2.1"), _network("2001:db8::1")
        ('192.0.2.1', '2001:db8::/64')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((int(parsed), 64), strict=False))
