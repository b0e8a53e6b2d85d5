"""Room on the disk that is kept for deleting: SQLite writes to its log before it frees anything."""

import os
from collections.abc import Sequence
from pathlib import Path

from bide.model.commands import Bury, Command, Put, Retry
from bide.model.message import Item

__all__ = ["RESERVE", "growth", "room"]

RESERVE = 32 * 1024 * 1024
"""How many bytes of the disk are left for commands that delete and settle; a quarter of a small
disk."""

_PER_MESSAGE = 1_000


def growth(commands: Sequence[Command]) -> int:
    """Return about how many bytes commands add to a store; 0 if they look, move or delete."""
    added = 0
    for command in commands:
        if isinstance(command, Put):
            added += sum(_PER_MESSAGE + 2 * _size(item) for item in command.items)
        elif isinstance(command, Bury) or (isinstance(command, Retry) and not command.release):
            added += (_PER_MESSAGE + 2 * len(command.reason)) * len(command.leases)
    return added


def _size(item: Item) -> int:
    if item.headers is None and not item.failures:
        return len(item.data)
    headers = sum(len(name) + len(value) for name, value in (item.headers or {}).items())
    return len(item.data) + headers + sum(len(failure.reason) for failure in item.failures)


def room(path: Path, reserve: float = 1.0) -> int | None:
    """Return how many bytes a store may grow by, `None` if the file system does not tell.

    Args:
        path: the store's file.
        reserve: which part of the room for deleting is to be left.
    """
    try:
        disk = os.statvfs(path)
        log = os.stat(f"{path}-wal").st_size  # noqa: PTH116
    except OSError:  # gone, or out of reach: the command tells which
        return None
    size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    # The log may hold new pages alone: the file grows by so much when they are written back.
    return free - log - int(reserve * min(RESERVE, size // 4)) if size else None
