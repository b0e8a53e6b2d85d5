"""How processes on one SQLite file wake each other: a datagram to each process that listens.

Each listening process binds a Unix datagram socket in the folder `<file>-bell` beside the file.
A process that puts a message for which others may wait sends a datagram to each socket there. A
hint that is lost (a full buffer, a file system without sockets) loses no message: waiting claims
look again by themselves now and then. The next sender removes the socket of a dead process.
"""

import logging
import os
import secrets
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

_LONGEST = 100  # what an address of a Unix socket can hold, on all systems
ATTEMPTS = 20
"""How often to try to bind a socket while others remove the folder as they leave."""

_log = logging.getLogger("bide.sqlite")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int]).decode


def folder_of(path: Path) -> str:
    """Return the folder of the sockets beside a file; it is there while a process listens."""
    return f"{path}-bell"


@contextmanager
def _short(folder: str) -> Iterator[str]:
    """Yield a name of the folder that is short enough for addresses of sockets in it.

    A long path is reached through a descriptor of the open folder, where the system has `/proc`.
    """
    if len(os.fsencode(folder)) + 9 <= _LONGEST:
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class SocketNotifier:
    """The listening end in one process."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self._listener = listener
        self._closed = self._listening = self._warned = False
        self._lock = threading.Lock()
        self.address = address

    @classmethod
    def open(cls, path: Path) -> "SocketNotifier | None":
        """Bind a socket beside the file; `None` where that cannot be done."""
        if not hasattr(socket, "AF_UNIX"):
            return None
        try:
            return cls(*_bind(path))
        except OSError as error:
            _warn(path, error)
            return None

    def renew(self, path: Path) -> None:
        """Bind another socket if the old one was deleted, so that others can ring again."""
        if self._closed or os.path.exists(self.address):
            return
        try:
            bound = _bind(path)
        except OSError as error:
            if not self._warned:
                _warn(path, error)
            self._warned = True
            return
        self._warned = False
        with self._lock:
            if self._closed:
                bound[0].close()
                with suppress(OSError):
                    os.unlink(bound[1])
                return
            old, self._listener = self._listener, bound[0]
            self.address = bound[1]
            if self._listening:
                with suppress(OSError):
                    old.shutdown(socket.SHUT_RD)  # wakes the listening thread, which closes it
            else:
                old.close()

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes; return all hints that have arrived."""
        with self._lock:
            if self._closed:
                return []
            self._listening = True
            listener = self._listener
        try:
            return self._hear(listener)
        finally:
            with self._lock:
                self._listening = False
                if self._closed:
                    self._listener.close()

    def _hear(self, listener: socket.socket) -> list[tuple[str, int]]:
        hints: list[tuple[str, int]] = []
        while len(hints) < 1000:
            listener.setblocking(not hints)
            try:
                data = listener.recv(4096)
            except BlockingIOError:
                return hints
            except OSError:  # of a socket of gevent's, when it was shut down meanwhile
                if listener is self._listener and not self._closed:
                    raise
                data = b""
            with self._lock:
                if listener is not self._listener:
                    listener.close()
                    listener = self._listener
            if self._closed:
                return []
            with suppress(msgspec.DecodeError):  # a datagram that bide did not send
                hints.append(_decode(data))
        return hints

    def decline(self, queue: str, wake: int) -> None:
        """Do nothing: every process has got the hint."""

    def close(self) -> None:
        """Stop listening, and leave no trace. The listening thread wakes and closes the socket."""
        with self._lock:
            self._closed = True
            if not self._listening:
                self._listener.close()
        with suppress(OSError):  # wakes the listener, even if the socket's file was deleted
            self._listener.shutdown(socket.SHUT_RD)
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
            folder, name = os.path.split(self.address)
            with _short(folder) as short:
                waker.sendto(b"", f"{short}/{name}")
        with suppress(OSError):
            os.unlink(self.address)
        with suppress(OSError):
            os.rmdir(os.path.dirname(self.address))


def _warn(path: Path, error: OSError) -> None:
    _log.warning(
        "no socket can be made in %s (%s): messages that other processes put are noticed with a "
        "delay of up to a second; use a shorter path, or a file system that has sockets",
        folder_of(path), error,
    )  # fmt: skip


def _bind(path: Path) -> tuple[socket.socket, str]:
    """Return a new socket beside the file, and its address."""
    folder = folder_of(path)
    # Random, not the process id: in two containers both may be process 1.
    name = secrets.token_hex(4)
    address = f"{folder}/{name}"
    file = os.stat(path)
    rights = stat.S_IMODE(file.st_mode) & 0o666
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        for attempt in range(ATTEMPTS):
            try:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
                    _share(folder, file, rights | (rights & 0o444) >> 2)  # readers may enter
                with _short(folder) as short:
                    listener.bind(f"{short}/{name}")
                break
            except FileNotFoundError:  # the last listener has just removed the folder
                if attempt == ATTEMPTS - 1:
                    raise
        _share(address, file, rights)
    except BaseException:
        listener.close()
        raise
    return listener, address


def _share(path: str, file: os.stat_result, mode: int) -> None:
    """Give a path the group of the store's file and a mode; root gives it the owner as well."""
    with suppress(PermissionError):  # not in that group: the rights of the others count
        os.chown(path, file.st_uid if os.geteuid() == 0 else -1, file.st_gid)
    os.chmod(path, mode)


def ring_all(path: Path, wakes: Mapping[str, int], own: SocketNotifier | None) -> bool:
    """Send hints to every process that listens beside the file; return whether there is one.

    This process itself needs no hint.

    Args:
        path: the file.
        wakes: the time from which something can be claimed, by queue.
        own: the notifier of this process.
    """
    folder = folder_of(path)
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    mine = os.path.basename(own.address) if own is not None else None
    others = [name for name in names if name != mine]
    if not others:
        return False
    hints = [_encode(hint) for hint in wakes.items()]
    with (
        suppress(FileNotFoundError),  # the last listener has gone, with the folder
        _short(folder) as short,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.setblocking(False)
        for name in others:
            address = f"{short}/{name}"
            try:
                for hint in hints:
                    sender.sendto(hint, address)
            except ConnectionRefusedError:  # its process is gone
                with suppress(OSError):
                    os.unlink(address)
            except OSError:  # a full buffer: its process has enough hints to look
                continue
    return True
