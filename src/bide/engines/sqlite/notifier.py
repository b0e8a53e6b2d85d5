"""How processes on one SQLite file wake each other: a line in a pipe of each process that listens.

Each listening process makes a named pipe in the folder `<file>-bell` beside the file. A process
that puts a message for which others may wait writes a line to each pipe there. A hint that is lost
(a full pipe, a file system without pipes) loses no message: waiting claims look again by themselves
now and then. The next sender removes the pipe of a dead process. A process whose pipe was deleted
makes another one.
"""

import errno
import os
import secrets
import stat
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bide.engines.waiting import readable
from bide.model.commands import Command
from bide.model.replies import Outcomes, QueueSettings
from bide.model.times import UnixMs

ATTEMPTS = 20
"""How often to try to make a pipe while others remove the folder as they leave, or a pipe that is
not open yet: to them it is that of a dead process."""

CHECK = 1.0
"""Seconds of silence after which a process looks whether its pipe was deleted."""

HINTED_ENDS = 100
"""The maximum number of ends of messages that a batch sends as hints; callers that wait for others
look again within a second."""

_CAPACITY = 64 * 1024  # of a pipe

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, UnixMs]).decode


def folder_of(path: Path) -> str:
    """Return the folder of the pipes beside a file; it is there while a process listens."""
    return f"{path}-bell"


class PipeNotifier:
    """The listening end in one process.

    Args:
        path: the file, beside which it makes a pipe.

    Raises:
        OSError: no pipe can be made there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pipe, self.address = make_pipe(path)
        """The descriptor of the pipe (-1: it is closed), and its path."""
        self._lock = threading.Lock()  # held while the pipe is replaced or closed
        self._closed = False

    @property
    def is_listening(self) -> bool:
        """Whether its pipe is open, and still where other processes look for it."""
        return self.pipe >= 0 and os.path.exists(self.address)

    def listen(self) -> list[tuple[str, int]]:
        """Block until hints come; return all that have arrived. Once closed, an empty list."""
        while not self._closed:
            if not readable(self.pipe, seconds=CHECK):
                self._replace_deleted()
                continue
            data, hints = b"", []
            with suppress(BlockingIOError):  # another program has read it, such as a copying tool
                data = os.read(self.pipe, _CAPACITY)
            for line in data.splitlines():
                # Other programs may write to the pipe, too.
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    hints.append(_decode(line))
            if hints and not self._closed:
                return hints
        with self._lock:
            if self.pipe >= 0:
                os.close(self.pipe)
            self.pipe = -1
        return []

    def _replace_deleted(self) -> None:
        """Make another pipe if this one was deleted: no sender finds it any more."""
        if self.is_listening:
            return
        try:
            pipe, address = make_pipe(self._path)
        except OSError:  # until the next attempt, waiting claims look by themselves
            return
        with self._lock:
            if not self._closed:
                os.close(self.pipe)
                self.pipe, self.address = pipe, address
                return
        os.close(pipe)  # a finalizer has closed this meanwhile, or another thread
        _remove(address)

    def close(self) -> None:
        """Stop listening, and leave no trace. The listening thread wakes, and closes the pipe."""
        with self._lock, suppress(BlockingIOError):  # a full pipe wakes it as well
            if not self._closed:
                self._closed = True
                os.write(self.pipe, b"\n")
        _remove(self.address)


def make_pipe(path: Path) -> tuple[int, str]:
    """Return the descriptor of a new pipe beside the file, and its path."""
    folder = folder_of(path)
    # Random, not the process id: in two containers both may be process 1.
    address = f"{folder}/{secrets.token_hex(4)}"
    file = os.stat(path)
    rights = stat.S_IMODE(file.st_mode) & 0o666
    for attempt in range(ATTEMPTS):
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                _share(folder, file, rights | (rights & 0o444) >> 2)  # readers may enter
            os.mkfifo(address, 0o600)
            return _open(address, file, rights), address
        except FileNotFoundError:  # another process has just removed the folder or the pipe
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _open(address: str, file: os.stat_result, rights: int) -> int:
    """Open a new pipe, and let those write to it who may write to the file."""
    pipe = os.open(address, os.O_RDWR | os.O_NONBLOCK)
    try:
        _share(address, file, rights)
    except BaseException:
        os.close(pipe)
        with suppress(OSError):
            os.unlink(address)
        raise
    return pipe


def _remove(address: str) -> None:
    """Remove a pipe, and its folder if no other process listens."""
    with suppress(OSError):
        os.unlink(address)
    with suppress(OSError):
        os.rmdir(os.path.dirname(address))


def _share(path: str, file: os.stat_result, mode: int) -> None:
    """Give a path the group of the store's file and a mode; root gives it the owner as well."""
    with suppress(PermissionError):  # not in that group: the rights of the others count
        os.chown(path, file.st_uid if os.geteuid() == 0 else -1, file.st_gid)
    os.chmod(path, mode)


def wakes_of(
    commands: Sequence[Command], outcomes: Sequence[object], ends: Sequence[str]
) -> dict[str, int]:
    """Return what others may wait for: from when on, by queue or by the end of a message.

    Args:
        commands: that were executed.
        outcomes: of them, in their order.
        ends: of messages, in their transaction.

    Returns:
        Times in Unix milliseconds, by the names of queues; 0 by the names of ends (`end_of`).
    """
    wakes: dict[str, int] = {}
    for command, reply in zip(commands, outcomes, strict=True):
        if isinstance(reply, (Outcomes, QueueSettings)) and reply.wake is not None:
            wakes[command.queue] = min(reply.wake, wakes.get(command.queue, reply.wake))
    wakes.update(dict.fromkeys(ends[:HINTED_ENDS], 0))
    return wakes


def send_hints(path: Path, wakes: Mapping[str, int], own: PipeNotifier | None) -> None:
    """Send hints to every other process that listens beside the file.

    Args:
        path: the file.
        wakes: as `wakes_of` returns them.
        own: the notifier of this process, which needs no hint; `None`: it has none.

    Raises:
        OSError: nothing listens.
    """
    folder = folder_of(path)
    hints = [_encode(hint) + b"\n" for hint in wakes.items()]
    for address in [f"{folder}/{name}" for name in os.listdir(folder)]:
        if own is None or address != own.address:
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
