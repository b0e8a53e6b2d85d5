"""What namespaces have used of their quotas, shared by all processes of a server."""

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bide.server.shared_stats import SharedFile

__all__ = ["NamespaceUsage", "QuotaUsage"]

_RECORD = struct.Struct("=16s4d")


class NamespaceUsage:
    """What a namespace has used, by the monotonic clock that all processes of a machine share."""

    def __init__(self, allowance: float, at: float, pending: float, counted: float) -> None:
        self.allowance = allowance
        """How many messages may be put at once."""
        self.at = at
        """When `allowance` was computed."""
        self.pending = pending
        """How many messages are in its queues."""
        self.counted = counted
        """When they were counted last."""


class QuotaUsage(SharedFile):
    """One record per namespace in a shared file. A record is read and written under its lock."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._places: dict[bytes, int] = {}

    @contextmanager
    def of(self, namespace: str | None) -> Iterator[NamespaceUsage]:
        """Hold the record of a namespace. Changes are kept, unless the block raises."""
        key = hashlib.blake2b((namespace or "").encode(), digest_size=16).digest()
        with self.locked() as file:
            place = self._place(file, key)
            _, *values = _RECORD.unpack(os.pread(file, _RECORD.size, place))
            use = NamespaceUsage(*values)
            yield use
            data = _RECORD.pack(key, use.allowance, use.at, use.pending, use.counted)
            os.pwrite(file, data, place)

    def _place(self, file: int, key: bytes) -> int:
        """Return the offset of a key's record; append the record if there is none."""
        if key not in self._places:
            end = os.fstat(file).st_size
            known = os.pread(file, end, 0)
            for place in range(0, end, _RECORD.size):
                self._places[known[place : place + 16]] = place
            if key not in self._places:
                os.pwrite(file, _RECORD.pack(key, 0.0, 0.0, 0.0, float("-inf")), end)
                self._places[key] = end
        return self._places[key]
