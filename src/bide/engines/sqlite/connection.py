"""Opening a SQLite file that is a store or holds one, and errors that explain what is wrong."""

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from bide.engines.sqlite.schema import is_current, migrate
from bide.model import errors
from bide.model.errors import StoreError, StoreFull, StoreUnavailable

Durability = Literal["full", "normal"]

OWNER_ONLY = 0o600
"""The permissions of a new file, unless the URL says otherwise: it holds bodies and secrets."""

PAUSE, LONG_PAUSE = 0.000_5, 0.005
"""Seconds to pause before looking again whether the store is free; the long pause after a second,
when another process seems to keep it."""

CACHE_KIB = 16 * 1024
"""The memory for pages of a file, for each connection, in KiB."""
LOG_BYTES = 64 * 1024 * 1024
"""To this size the log is cut after a long read transaction elsewhere has let it grow.

A longer log is copied into the file while no process writes: if several processes write without a
pause, the checkpoint after a commit never reaches the end of the log.
"""

CHECKPOINT_PAGES = 4_000
"""Pages of the log, of 4 KiB, between two checkpoints. A random load changes the same pages again
and again: the longer the log, the fewer times they are copied into the file."""


def connect(
    path: Path,
    durability: Durability,
    timeout: float,
    *,
    read_only: bool = False,
    mode: int = OWNER_ONLY,
) -> sqlite3.Connection:
    """Open the store in a file, making or migrating it where needed.

    Args:
        path: the file.
        durability: "full" confirms a change when the disk has it; "normal" may lose the last
            changes (never the file) in a power cut, not in a crash of a process.
        timeout: seconds to wait for other processes' writes.
        read_only: for a second connection that only reads.
        mode: the permissions of a new file and of the files that SQLite makes beside it, whatever
            the umask. A file that exists keeps its own.

    Raises:
        NotAStore: the file is not a SQLite database, or holds tables that are called like bide's.
        SchemaTooNew: a newer bide made it.
        StoreError: it cannot be opened, read, or written.
    """
    try:
        _refuse_bad_place(path)
        _create(path, mode)
        connection = sqlite3.connect(
            path, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, path, timeout)
            connection.execute(f"PRAGMA synchronous = {durability.upper()}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            connection.execute("PRAGMA temp_store = MEMORY")
            # Debian's SQLite writes zeros over deleted data: large bodies would cost twice as much
            connection.execute("PRAGMA secure_delete = FAST")
            if read_only:
                connection.execute("PRAGMA query_only = ON")
            else:  # writers wait by `patiently`
                connection.execute("PRAGMA busy_timeout = 0")
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        if is_of_handler(error):
            raise
        raise translate(error, path, timeout) from error
    return connection


def _refuse_bad_place(path: Path) -> None:
    """Refuse a path where no file can be, with an error that says what to do.

    Raises:
        StoreUnavailable: the path is a directory, or its parent is not one.
        StoreReadOnly: the process may not create a file in the directory.
    """
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a directory; name a file in it: {path / 'bide.db'}")
    if not path.parent.is_dir():
        raise StoreUnavailable(
            f"there is no directory {path.parent} to keep {path.name} in; make it (mkdir -p "
            f"{path.parent}) or name another place"
        )
    if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
        raise errors.StoreReadOnly(
            f"no file can be made in {path.parent}: this user may not write there, or the file "
            "system is mounted read-only; fix that, or name another place"
        )


def _create(path: Path, mode: int) -> None:
    """Create an empty file with these permissions, unless there is one.

    SQLite gives its log and its index beside it the same permissions.
    """
    file = os.path.realpath(path)  # a symbolic link may name a file that is still to be made
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY & mode)
    except FileExistsError:
        return
    os.close(descriptor)
    os.chmod(file, mode)  # the umask, which `os.open` respects, may have taken rights away


def _prepare(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Make or migrate the tables if needed, and set how the file is written."""
    current = is_current(connection.execute, path)
    # A copy made by VACUUM INTO or from a dump has left this mode; an application's file may have
    # never been in it.
    patiently(connection.execute, timeout, "PRAGMA journal_mode = WAL")
    if current:
        return
    with connection:  # this commits or rolls back
        connection.execute("BEGIN IMMEDIATE")
        if not is_current(connection.execute, path):  # else another process was faster
            migrate(connection.execute, path)


def patiently(
    run: Callable[..., sqlite3.Cursor], timeout: float, statement: str, parameters: Any = ()
) -> sqlite3.Cursor:
    """Run a statement that needs an exclusive lock, again and again while others have it.

    SQLite's own waiting sleeps longer and longer, up to 0.1 s: beside a process that writes without
    pause the others would wait for seconds. It also refuses some statements without waiting.

    Args:
        run: executes a statement.
        timeout: in seconds.
        statement: to be executed.
        parameters: of the statement.

    Raises:
        sqlite3.OperationalError: the store was busy for `timeout` seconds.
    """
    start: float | None = None  # read when it must wait: mostly it need not
    while True:
        try:
            return run(statement, parameters)
        except sqlite3.OperationalError as error:
            now = time.monotonic()
            start = now if start is None else start
            waited = now - start
            if not is_busy(error) or waited > timeout:
                raise
        time.sleep((PAUSE if waited < 1 else LONG_PAUSE) * (0.5 + random.random()))


def forget_statistics(connection: sqlite3.Connection) -> None:
    """Let SQLite plan for many messages, even if ANALYZE ran when there were one or two.

    With its statistics, SQLite would later read all messages instead of using an index.
    """
    with suppress(sqlite3.OperationalError):  # the store is busy: the next check is soon
        tables = "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"
        ours = "DELETE FROM sqlite_stat1 WHERE tbl GLOB 'bide_*'"
        if connection.execute(tables).fetchone() and connection.execute(ours).rowcount:
            connection.execute("ANALYZE sqlite_master")


def is_of_handler(error: Exception) -> bool:
    """Return whether a signal handler has raised an error of the file system.

    A time limit may be a `TimeoutError`. Those of the system have a number.
    """
    return isinstance(error, OSError) and error.errno is None


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Return whether SQLite refused because others have the lock."""
    # The low byte of an extended code is the primary one.
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def translate(error: Exception, path: Path, timeout: float) -> StoreError:
    """Return an error of SQLite or the file system as one that names the cause and the fix.

    Args:
        error: what was raised.
        path: of the store.
        timeout: how many seconds the command waited for other processes.
    """
    match _primary_code(error, path):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return errors.StoreBusy(
                f"another process, or an open transaction of this one, kept {path} locked for "
                f"{timeout:g} s; nothing was changed. Find it with: fuser {path} (a backup or an "
                f"open sqlite3 shell?), or wait longer with ?timeout={timeout * 2:g}s in the URL. "
                "Within a transaction on this file, pass its connection as within="
            )
        case sqlite3.SQLITE_READONLY:
            return errors.StoreReadOnly(
                f"{path} cannot be written to: check the permissions of the file and of its "
                "directory, and that the file system is not mounted read-only"
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(
                f"the disk that holds {path} is full; the command was not executed, what was "
                "confirmed before is safe. Free some space and try again; if there is some, the "
                "file may not grow (ulimit -f) or the disk fails"
            )
        case sqlite3.SQLITE_NOTADB:
            return errors.NotAStore(
                f"{path} is not a SQLite database; it was left as it is. Name another file; "
                "bide creates it"
            )
        case sqlite3.SQLITE_CORRUPT:
            return errors.StoreCorrupt(
                f"{path} is damaged, or it or its log {path.name}-wal was cut or deleted while it "
                f"was in use ({error}). Stop all workers and copy the files. If only the log was "
                "deleted, start them again; else put a backup in its place, or save what can be "
                "read, as the page on operations describes"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(
                f"{path} cannot be opened ({error}): check the permissions of the file and of the "
                "directories on the way to it, that its disk is there, the length of the path (504 "
                "bytes at most), and how many files this process may open (ulimit -n); the files "
                "of a store are for the user who made them, unless the URL that made them ends in "
                "?mode=0660"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"reading or writing {path} failed in the operating system ({error}, "
                f"{getattr(error, 'sqlite_errorname', 'no code')}); is the disk full, gone, or a "
                "network drive?"
            )
    return StoreError(f"SQLite refused to work on {path}: {error}")


def _primary_code(error: Exception, path: Path) -> int:
    """Return the code of SQLite that says best what was wrong; 0 if there is none."""
    extended_code = getattr(error, "sqlite_errorcode", 0) or 0
    # SQLite's error may quote bytes of a damaged page, which are no text.
    if extended_code == sqlite3.SQLITE_IOERR_SHORT_READ or isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    # There is no room for the index of the log; or a file is as large as it may be.
    if extended_code in (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE):
        return sqlite3.SQLITE_FULL
    code = sqlite3.SQLITE_CANTOPEN if isinstance(error, OSError) else extended_code & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN and os.access(path, os.R_OK):
        # Even a reader needs the log, which is made in the same folder.
        is_writable = os.access(path.resolve().parent, os.W_OK)
        return code if is_writable else sqlite3.SQLITE_READONLY
    return code
