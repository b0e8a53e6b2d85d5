"""Files without a name, by which the processes of a server share what they must know together."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property


def make_file(name: str = "bide-shared") -> int:
    """Return the descriptor of a file without a name, to be inherited by each process.

    Args:
        name: shown in lists of open files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedFile:
    """A file that processes share, and its lock, which the system releases when a process dies.

    Args:
        descriptor: see `make_file`; by default a file of this process alone.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._given = descriptor

    @cached_property
    def _file(self) -> int:
        return make_file() if self._given is None else self._given

    @property
    def is_closed(self) -> bool:
        """Whether it was closed: the process ends."""
        return self._file == -1

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock, and yield the descriptor."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield self._file
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        if self._given is not None or "_file" in vars(self):
            os.close(self._file)
            self._file = -1  # a late call must not meet another file under this number
