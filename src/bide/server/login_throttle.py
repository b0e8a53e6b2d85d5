"""Refuse clients that keep sending wrong tokens."""

import hashlib
import os
import struct
from collections import OrderedDict
from math import ceil

from bide.model.limits import MAX_FAILED_LOGINS
from bide.server.client_address import network_of
from bide.server.problem import Problem
from bide.server.shared_files import SharedFile

WINDOW = 60.0
"""Seconds."""

PLACES = 16_384
"""How many addresses there is room for. Two that share a place are counted one at a time: the one
that is refused, or else the last."""

MAX_KNOWN = 10_000
"""Valid tokens that are remembered: they stay usable from an address that is refused."""

_RECORD = struct.Struct("=16sdQ")


class LoginThrottle(SharedFile):
    """Refuses addresses with too many failed logins; a token that was valid lately passes.

    The processes of a server count together, each address by itself (IPv6: each /64 network). The
    address "" is not limited: all clients of a proxy may share it. Times are those of the monotonic
    clock, which all processes of a machine share.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: str, token: str, now: float) -> None:
        """Refuse an address with too many failed logins.

        Args:
            address: of the client.
            token: that the request carries.
            now: the time.

        Raises:
            Problem: too many logins have failed; it says when to try again.
        """
        if not address or _digest(token) in self._known:
            return
        with self.locked() as file:
            known, began, count = self._read(file, key := _digest(network_of(address)))
        left = began + WINDOW - now
        if known == key and count >= MAX_FAILED_LOGINS and left > 0:
            raise Problem(
                "too-many-logins",
                f"{address} has sent {MAX_FAILED_LOGINS:,} wrong tokens within {WINDOW:g} s; try "
                f"again in {ceil(left)} s",
                headers={"retry-after": str(ceil(left))},
            )

    def failed(self, address: str, now: float) -> None:
        """Count a failed login."""
        if not address:
            return
        key = _digest(network_of(address))
        with self.locked() as file:
            known, began, count = self._read(file, key)
            if now < began + WINDOW and known == key:
                count += 1
            elif now < began + WINDOW and count >= MAX_FAILED_LOGINS:
                return
            else:
                began, count = now, 1
            os.pwrite(file, _RECORD.pack(key, began, count), _place(key))

    def passed(self, token: str) -> None:
        """Remember a valid token."""
        self._known[key := _digest(token)] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _read(self, file: int, key: bytes) -> tuple[bytes, float, int]:
        data = os.pread(file, _RECORD.size, _place(key))
        known, began, count = _RECORD.unpack(data.ljust(_RECORD.size, b"\0"))
        return known, began, count


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _place(key: bytes) -> int:
    return int.from_bytes(key[:8]) % PLACES * _RECORD.size
