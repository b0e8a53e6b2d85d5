"""What namespaces have used of their quotas, shared by all processes of a server."""

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from bide.server.shared_files import SharedFile

NEVER = float("-inf")
"""When nothing was counted yet."""

_KEY = 16


class NamespaceUsage(msgspec.Struct):
    """What a namespace has used, by the monotonic clock that all processes of a machine share."""

    allowance: float = 0.0
    """How many messages may be put at once."""
    at: float = 0.0
    """When `allowance` was computed."""
    pending: float = 0.0
    """How many messages are in its queues."""
    count_after: float = NEVER
    """When they may be counted again."""
    stored: float = 0.0
    """How many bytes its messages take at most: as counted, and what was put since."""
    added: float = 0.0
    """How many bytes were put since the server began."""
    weigh_after: float = NEVER
    """When the bytes may be counted again."""
    byte_allowance: float = 0.0
    """How many bytes requests and answers may take at once; less than 0: they took too many."""
    byte_at: float = 0.0
    """When `byte_allowance` was computed."""


_RECORD = struct.Struct(f"={_KEY}s{len(NamespaceUsage.__struct_fields__)}d")


class QuotaUsage(SharedFile):
    """One record per namespace in a shared file. A record is read and written under its lock."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._places: dict[bytes, int] = {}

    @contextmanager
    def of(self, namespace: str | None) -> Iterator[NamespaceUsage]:
        """Hold the record of a namespace. Changes are kept, unless the block raises."""
        key = hashlib.blake2b((namespace or "").encode(), digest_size=_KEY).digest()
        with self.locked() as file:
            place = self._place(file, key)
            _, *values = _RECORD.unpack(os.pread(file, _RECORD.size, place))
            use = NamespaceUsage(*values)
            yield use
            os.pwrite(file, _RECORD.pack(key, *msgspec.structs.astuple(use)), place)

    def _place(self, file: int, key: bytes) -> int:
        """Return the offset of a key's record; append the record if there is none."""
        if key not in self._places:
            end = os.fstat(file).st_size
            known = os.pread(file, end, 0)
            for place in range(0, end, _RECORD.size):
                self._places[known[place : place + _KEY]] = place
            if key not in self._places:
                os.pwrite(file, _RECORD.pack(key, *msgspec.structs.astuple(NamespaceUsage())), end)
                self._places[key] = end
        return self._places[key]
