"""How processes on one SQLite file wake each other: a line in a pipe of each process that listens.

Each listening process makes a named pipe in the folder `<file>-bell` beside the file. A process
that puts a message for which others may wait writes a line to each pipe there. A hint that is lost
(a full pipe, a file system without pipes) loses no message: waiting claims look again by themselves
now and then. The next sender removes the pipe of a dead process. A process whose pipe was deleted
makes another one.
"""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bide.model.commands import Command
from bide.model.replies import Outcomes, QueueSettings

HINTED_ENDS = 100
"""The maximum number of ends of messages that a batch sends as hints; callers that wait for others
look again within a second."""

_encode = msgspec.json.Encoder().encode


def folder_of(path: Path) -> str:
    """Return the folder of the pipes beside a file; it is there while a process listens."""
    return f"{path}-bell"


def wakes_of(
    commands: Sequence[Command], outcomes: Sequence[object], ends: Sequence[str]
) -> dict[str, int]:
    """Return what others may wait for: from when on, by queue or by the end of a message.

    Args:
        commands: that were executed.
        outcomes: of them, in their order.
        ends: of messages, in their transaction.

    Returns:
        Times in Unix milliseconds, by the names of queues; 0 by the names of ends (`message_hint`).
    """
    wakes: dict[str, int] = {}
    for command, reply in zip(commands, outcomes, strict=True):
        if isinstance(reply, (Outcomes, QueueSettings)) and reply.wake is not None:
            wakes[command.queue] = min(reply.wake, wakes.get(command.queue, reply.wake))
    wakes.update(dict.fromkeys(ends[:HINTED_ENDS], 0))
    return wakes


def send_hints(path: Path, wakes: Mapping[str, int], own: str | None) -> None:
    """Send hints to every other process that listens beside the file.

    Args:
        path: the file.
        wakes: as `wakes_of` returns them.
        own: the pipe of this process, which needs no hint; `None`: it has none.

    Raises:
        OSError: nothing listens.
    """
    folder = folder_of(path)
    hints = [_encode(hint) + b"\n" for hint in wakes.items()]
    for address in [f"{folder}/{name}" for name in os.listdir(folder)]:
        if address != own:
            _write(address, hints)


def _write(address: str, hints: list[bytes]) -> None:
    """Write hints to a pipe that a process listens to; remove it if none does."""
    try:
        pipe = os.open(address, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # its process is gone
            with suppress(OSError):
                os.unlink(address)
        return
    # If it is full, its process has enough hints to look.
    with suppress(OSError), os.fdopen(pipe, "wb", buffering=0) as file:
        for hint in hints if stat.S_ISFIFO(os.fstat(pipe).st_mode) else ():
            file.write(hint)
