"""How much the disk has room for, and how much commands add."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from bide.model.commands import Bury, Command, Edit, Put, Retry

RESERVE = 32 * 1024 * 1024
"""How many bytes of the disk are kept free for commands that delete and settle; at most a quarter
of the disk. SQLite writes to its log before it frees anything."""

PER_MESSAGE = 1_000
"""About how many bytes a message takes beside its content."""


def bytes_added(commands: Sequence[Command]) -> int:
    """Return about how many bytes commands add to a store; 0 if they read, move or delete."""
    added = 0
    for command in commands:
        if isinstance(command, Put):
            for item in command.items:
                added += PER_MESSAGE + 2 * len(item.data)
                if item.headers is not None or item.failures:
                    headers = sum(len(k) + len(v) for k, v in (item.headers or {}).items())
                    added += 2 * (headers + sum(len(failure.reason) for failure in item.failures))
        elif isinstance(command, Edit):
            size = len(command.data or b"")
            size += sum(len(name) + len(text) for name, text in (command.headers or {}).items())
            added += (PER_MESSAGE + 2 * size) * len(command.ids)
        elif isinstance(command, Bury) or (isinstance(command, Retry) and not command.release):
            added += (PER_MESSAGE + 2 * len(command.reason)) * len(command.leases)
    return added


def free_room(path: Path, reserve: float = 1.0) -> int | None:
    """Return how many bytes a store may grow by, `None` if the file system does not tell.

    Args:
        path: the store's file.
        reserve: which part of the room for deleting is to be left.
    """
    try:
        disk = shutil.disk_usage(path)
        log = os.stat(f"{path}-wal").st_size  # noqa: PTH116
    except OSError:  # gone, or out of reach: the command tells which
        return None
    # The log may hold new pages alone: the file grows by so much at a checkpoint.
    room = disk.free - log - int(reserve * min(RESERVE, disk.total // 4))
    return room if disk.total else None
