"""Failed logins by address, counted by all processes of a server together."""

import hashlib
import os
import struct
from ipaddress import ip_address, ip_network

from bide.model.limits import MAX_FAILED_LOGINS
from bide.server.shared_files import SharedFile

__all__ = ["WINDOW", "FailedLogins"]

WINDOW = 60.0
"""Seconds."""

PLACES = 16_384
"""How many addresses there is room for. Two that share a place are counted one at a time: the one
that is refused, or else the last."""

_RECORD = struct.Struct("=16sdQ")


class FailedLogins(SharedFile):
    """Counts the failed logins of each address (IPv6: of each /64 network)."""

    def refused_for(self, address: str, now: float) -> float:
        """Return for how many seconds the logins of an address are refused; 0: they are not."""
        with self.locked() as file:
            known, began, count = self._read(file, key := _key(address))
        left = began + WINDOW - now
        return left if known == key and count >= MAX_FAILED_LOGINS and left > 0 else 0.0

    def add(self, address: str, now: float) -> None:
        """Count a failed login.

        Args:
            address: where it came from.
            now: the monotonic clock, which all processes of a machine share.
        """
        key = _key(address)
        with self.locked() as file:
            known, began, count = self._read(file, key)
            if now < began + WINDOW and known == key:
                count += 1
            elif now < began + WINDOW and count >= MAX_FAILED_LOGINS:
                return
            else:
                began, count = now, 1
            os.pwrite(file, _RECORD.pack(key, began, count), _place(key))

    def _read(self, file: int, key: bytes) -> tuple[bytes, float, int]:
        data = os.pread(file, _RECORD.size, _place(key))
        known, began, count = _RECORD.unpack(data.ljust(_RECORD.size, b"\0"))
        return known, began, count


def _place(key: bytes) -> int:
    return int.from_bytes(key[:8]) % PLACES * _RECORD.size


def _key(address: str) -> bytes:
    return hashlib.blake2b(_network(address).encode(), digest_size=16).digest()


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
