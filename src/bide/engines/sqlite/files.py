"""The files of a store in use: whether they are still the same, and what to do if they are not."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from bide.engines.sqlite.connection import patiently, translate
from bide.model.errors import StoreCorrupt, StoreUnavailable

Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """Return what tells a file from all others; `None` if there is none."""
    try:
        found = path.stat()
    except OSError:  # gone, or out of reach: opening it says which
        return None
    return found.st_dev, found.st_ino


class Files:
    """A file that is going to be opened, with SQLite's log and the index of the log beside it.

    Args:
        path: its name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = identity(path)
        # SQLite keeps its files beside the file that a symbolic link names.
        self.real = Path(os.path.realpath(path))
        self._log, self._index = (
            self.real.with_name(f"{self.real.name}{end}") for end in ("-wal", "-shm")
        )
        self._beside: dict[Path, Identity | None] = {}

    def opened(self) -> None:
        """Note what is there now, after the file was opened."""
        # A file that was put in its place meanwhile is noticed at the next look.
        self.file = self.file or identity(self._path)
        self._beside = {path: identity(path) for path in (self._log, self._index)}

    @property
    def moved(self) -> bool:
        """Whether another file bears the name now, or none."""
        return identity(self._path) != self.file

    def _is_lost(self, path: Path) -> bool:
        before = self._beside[path]
        return before is not None and identity(path) != before

    def refuse_lost(self, connection: sqlite3.Connection, timeout: float) -> None:
        """Write nothing more to a store whose log was deleted, or the index of its log.

        Another process would not see what this one writes, and break the file.

        Raises:
            StoreCorrupt: one was deleted.
        """
        if self._is_lost(self._log):
            try:
                busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise translate(error, self._path, timeout) from error
            lost = self._log
            saved = "written to the file when the last process ends" if busy else "in the file"
        elif self._is_lost(self._index):  # a checkpoint could cut off what others have written
            lost, saved = self._index, f"in {self._log.name}"
        else:
            return
        raise StoreCorrupt(
            f"{lost} was deleted or replaced while {self._path.name} was in use: what "
            f"was confirmed is {saved}, and nothing more is written. Stop all processes of this "
            "store, run bide audit, and start them again; that file belongs to the store"
        )

    def keep_log_from_successor(self, connection: sqlite3.Connection, timeout: float) -> None:
        """Let the log go into the file that was moved away, and delete it.

        SQLite would apply it to the file that bears the name now, and break that one.

        Raises:
            StoreUnavailable: it cannot be deleted.
        """
        before = self._beside[self._log]
        if before is None or identity(self._log) != before:
            return
        if identity(self.real) == self.file:  # only a symbolic link is another one
            return
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Another process that does the same is done now, or waits for this one.
            patiently(connection.execute, timeout, "BEGIN IMMEDIATE")
        try:
            if identity(self._log) == before:
                self._log.unlink()
                self._index.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"{self._path} was replaced while it was in use, and {self._log.name}, the log of "
                f"the file before it, cannot be deleted: {error.strerror}. Stop all processes of "
                "this store, delete the log, and start them again"
            ) from error
