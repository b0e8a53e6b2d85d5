"""The files of a store: whether they are still the same, after a fork, too; and the disk's room.

SQLite keeps the locks of a file once per process, for all connections to it. The child of a fork
inherits that list but not the locks: it would write beside other processes and break the file.
Engines leave their files before a fork; one in the middle of a long transaction cannot.
"""

import os
import shutil
import sqlite3
import weakref
from contextlib import suppress
from pathlib import Path

from bide.engines.sqlite.connection import is_of_handler, patiently, translate
from bide.model.errors import StoreCorrupt, StoreUnavailable
from bide.model.forks import in_child

Identity = tuple[int, int]
"""The device of a file, and its number there."""


def identity(path: Path) -> Identity | None:
    """Return what identifies a file; `None` if there is none."""
    try:
        status = path.stat()
    except OSError as error:  # gone, or out of reach: the error of opening it says which
        if is_of_handler(error):
            raise
        return None
    return status.st_dev, status.st_ino


_open: "weakref.WeakSet[Files]" = weakref.WeakSet()
"""The files that engines of this process have open, or are opening."""

_inherited: set[Identity] = set()
"""Files that were open in the parent of this process when it was forked."""


@in_child
def _after_fork_in_child() -> None:
    for files in _open:
        # A file that was being made has its identity only now.
        if file := files.file or identity(files.path):
            _inherited.add(file)
    _open.clear()


class Files:
    """A file that is going to be opened, with SQLite's log and the index of the log beside it.

    Args:
        path: its name.

    Raises:
        StoreUnavailable: it was open during the fork that made this process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = identity(path)
        if self.file in _inherited:
            raise StoreUnavailable(
                f"{path} was in use while this process was forked, by another thread or because "
                "Python did not notice the fork: SQLite's locks do not work here. Start this "
                "process again, or fork before the first command; in uWSGI set lazy-apps = true"
            )
        # SQLite keeps its files beside the file that a symbolic link names.
        self.real = Path(os.path.realpath(path))
        self._log, self._index = (
            self.real.with_name(f"{self.real.name}{end}") for end in ("-wal", "-shm")
        )
        self._beside: dict[Path, Identity | None] = {}
        """The log and its index, as they were when the file was opened; `None`: not there."""

    def opening(self) -> None:
        """Note that the file is about to be opened: the child of a fork meanwhile inherits it."""
        _open.add(self)

    def opened(self) -> None:
        """Note what is there now, after the file was opened."""
        # A file that was put in its place meanwhile is noticed by the next check.
        self.file = self.file or identity(self.path)
        self._beside = {path: identity(path) for path in (self._log, self._index)}

    def closed(self) -> None:
        """Note that the file was closed, or could not be opened."""
        _open.discard(self)

    def changed(self) -> Path | None:
        """Return which one has been deleted or replaced since it was opened; `None`: none has.

        The file itself, its log, or the index of its log: the first of these.
        """
        if identity(self.path) != self.file:
            return self.path
        for path, file in self._beside.items():
            if file and identity(path) != file:
                return path
        return None

    @property
    def log_size(self) -> int:
        """How many bytes the log has; 0 if there is none."""
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def lost(self, path: Path, connection: sqlite3.Connection) -> StoreCorrupt:
        """Return the error of a store whose log, or the index of its log, was deleted.

        Another process would not see what this one writes, and break the file.

        Args:
            path: what was deleted.
            connection: to the file.
        """
        if path == self._log:  # else a checkpoint could cut off what others have written
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return StoreCorrupt(
            f"{path} was deleted or replaced while {self.path.name} was in use: nothing more "
            f"is written, and what was confirmed is in the file or in {self._log.name}, or gets "
            "there when the last process ends. Stop all processes of this store, run bide audit, "
            "and start them again; that file belongs to the store"
        )

    def keep_log_from_successor(self, connection: sqlite3.Connection, timeout: float) -> None:
        """Write the log into the file that was moved away, and delete the log.

        SQLite would apply it to the file that has the name now, and break that one.

        Raises:
            StoreUnavailable: it cannot be deleted.
        """
        log = self._beside[self._log]
        if log is None or identity(self._log) != log:  # it went away together with the file
            return
        if identity(self.real) == self.file:  # only a symbolic link is another one
            return
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Another process that does the same is done now, or waits for this one.
            patiently(connection.execute, timeout, "BEGIN IMMEDIATE")
        try:
            if identity(self._log) == log:
                self._log.unlink()
                self._index.unlink(missing_ok=True)
        except OSError as error:
            if is_of_handler(error):
                raise
            raise translate(error, self.path, timeout) from error


RESERVE = 32 * 1024 * 1024
"""How many bytes of the disk are kept free for commands that delete and settle; at most a quarter
of the disk. SQLite writes to its log before it frees anything."""


def free_room(path: Path, reserve: float = 1.0) -> int | None:
    """Return how many bytes a store may grow by, `None` if the file system does not say.

    Args:
        path: the store's file.
        reserve: the part of the room for deleting that has to stay free.
    """
    try:
        disk = shutil.disk_usage(path)
        log = os.stat(f"{path}-wal").st_size
    except OSError:  # gone, or out of reach: the error of the command says which
        return None
    # The log may hold new pages alone: the file grows by so much at a checkpoint.
    room = disk.free - log - int(reserve * min(RESERVE, disk.total // 4))
    return room if disk.total else None
