"""What namespaces have used, kept in a file without a name that all processes of a server share."""

import fcntl
import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

__all__ = ["Use", "Uses", "make_file"]

_RECORD = struct.Struct("=16s4d")


class Use:
    """What a namespace has used, by the monotonic clock that all processes of a machine share."""

    def __init__(self, allowance: float, at: float, pending: float, counted: float) -> None:
        self.allowance = allowance
        """How many messages may be put at once."""
        self.at = at
        """As of when."""
        self.pending = pending
        """How many messages are in its queues."""
        self.counted = counted
        """When they were counted last."""


def make_file(name: str = "bide-uses") -> int:
    """Return the descriptor of a file without a name, to be handed to each process.

    Args:
        name: by which it can be told from others in a list of open files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Uses:
    """The records, one a namespace.

    A record is read and written under a lock of the file, which takes a few microseconds and is let
    go by the system when a process dies.

    Args:
        descriptor: of the file, see `make_file`; one of this process alone by default.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._given = descriptor
        self._places: dict[bytes, int] = {}

    @cached_property
    def _file(self) -> int:
        return make_file() if self._given is None else self._given

    @contextmanager
    def of(self, namespace: str | None) -> Iterator[Use]:
        """Hold the record of a namespace; what is changed in it is kept, but not after an error."""
        key = hashlib.blake2b((namespace or "").encode(), digest_size=16).digest()
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            place = self._place(key)
            _, *values = _RECORD.unpack(os.pread(self._file, _RECORD.size, place))
            use = Use(*values)
            yield use
            data = _RECORD.pack(key, use.allowance, use.at, use.pending, use.counted)
            os.pwrite(self._file, data, place)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _place(self, key: bytes) -> int:
        """Return where the record of a key is; make it if there is none."""
        if key not in self._places:
            end = os.fstat(self._file).st_size
            known = os.pread(self._file, end, 0)
            for place in range(0, end, _RECORD.size):
                self._places[known[place : place + 16]] = place
            if key not in self._places:
                os.pwrite(self._file, _RECORD.pack(key, 0.0, 0.0, 0.0, float("-inf")), end)
                self._places[key] = end
        return self._places[key]

    def close(self) -> None:
        """Let go of the file."""
        if self._given is not None or "_file" in vars(self):
            os.close(self._file)
