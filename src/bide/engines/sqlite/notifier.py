"""The end of hints at which a process listens: a pipe beside the SQLite file.

The other end is `bide.engines.sqlite.hints`.
"""

import os
import secrets
import stat
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import msgspec

from bide.engines.sqlite.hints import folder_of
from bide.engines.waiting import readable
from bide.model.forks import in_child
from bide.model.times import UnixMs

ATTEMPTS = 20
"""How often to try to make a pipe while others remove the folder as they leave, or a pipe that is
not open yet: to them it is that of a dead process."""

CHECK = 1.0
"""Seconds of silence after which a process looks whether its pipe was deleted."""

_CAPACITY = 64 * 1024  # of a pipe

_decode = msgspec.json.Decoder(tuple[str, UnixMs]).decode


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
        _listening.add(self)

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
            self._close_pipe()
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
                self._close_pipe()
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

    def leave_to_parent(self) -> None:
        """In the child of a fork, stop listening: the pipe is that of the parent."""
        self._closed = True
        self._close_pipe()

    def _close_pipe(self) -> None:
        """Close the descriptor, if it is open."""
        pipe, self.pipe = self.pipe, -1  # first: a child of a fork closes what is noted here
        if pipe >= 0:
            os.close(pipe)


_listening: "weakref.WeakSet[PipeNotifier]" = weakref.WeakSet()
"""The notifiers of this process."""


@in_child
def _after_fork_in_child() -> None:
    """Close the pipes of the parent: as long as any process has one open, nobody removes it."""
    for notifier in _listening:
        notifier.leave_to_parent()
    _listening.clear()


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


def _open(address: str, store_file: os.stat_result, mode: int) -> int:
    """Return the descriptor of a new pipe; who may write to the store may write to it, too.

    If that fails, the pipe is removed.
    """
    pipe = os.open(address, os.O_RDWR | os.O_NONBLOCK)
    try:
        _share(address, store_file, mode)
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


def _share(path: str, store_file: os.stat_result, mode: int) -> None:
    """Give a path the group of the store's file and a mode; root gives it the owner as well."""
    with suppress(PermissionError):  # not in that group: the rights of the others count
        os.chown(path, store_file.st_uid if os.geteuid() == 0 else -1, store_file.st_gid)
    os.chmod(path, mode)
