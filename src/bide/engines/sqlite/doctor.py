"""What endangers a store that is a file: its place, its permissions, its condition."""

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, parse_qs

from bide.engines.findings import (
    Check,
    Finding,
    Unreadable,
    findings,
    of_messages,
    other_version,
    too_large,
)
from bide.engines.sqlite import file_of
from bide.engines.sqlite.schema import (
    STEPS,
    has_log,
    is_without_tables,
    open_to_look,
    recorded_version,
)
from bide.engines.sqlite.tables import DAMAGED, as_failures, as_headers
from bide.model.ended import ENDINGS
from bide.model.errors import NotAStore, StoreUnavailable

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "fuse.s3fs")
_MEMORY = ("tmpfs", "ramfs")

UNREADABLE_ROWS = """
SELECT id FROM bide_message WHERE typeof(due) <> 'integer' OR typeof(priority) <> 'integer'
  OR typeof(attempt) <> 'integer' OR typeof(attempts) <> 'integer' OR typeof(id) <> 'text'
  OR typeof(expires) NOT IN ('null', 'integer') OR typeof("group") NOT IN ('null', 'text')
  OR typeof(data) NOT IN ('text', 'blob') OR typeof(headers) NOT IN ('null', 'text')
  OR (typeof(data) = 'text' AND NOT json_valid(data))
  OR (headers IS NOT NULL AND NOT are_headers(CAST(headers AS BLOB)))
  OR (failures <> '' AND NOT are_failures(CAST(failures AS BLOB)))
"""
"""Selects the ids of messages that cannot be read, by functions that `_damage` adds."""

UNREADABLE_ENDS = f"""
SELECT id FROM bide_ended
WHERE typeof(how) <> 'integer' OR how NOT BETWEEN 0 AND {len(ENDINGS) - 1}
  OR typeof(moment) <> 'integer' OR typeof(due) <> 'integer' OR typeof(attempt) <> 'integer'
  OR typeof(since) NOT IN ('null', 'integer') OR typeof("by") NOT IN ('null', 'text')
  OR (failures <> '' AND NOT are_failures(CAST(failures AS BLOB)))
  OR NOT json_valid(coalesce(result, '[]'))
"""
"""The same of messages of whose ends that is so."""

LITTLE_ROOM = 256 << 20
"""Bytes: with less free space a store may stop soon."""


def examine(parts: SplitResult, longest: float) -> Sequence[Finding]:
    """Check the file and its surroundings.

    Raises:
        StoreUnavailable: there is no such file, or it has no tables of bide.
        NotAStore: it is not a SQLite database, or bide did not make its tables.
    """
    path = file_of(parts).resolve()
    if not path.exists():
        raise StoreUnavailable(f"there is no store at {path} yet: make it with bide init")
    if is_without_tables(path):
        raise StoreUnavailable(
            f"there is no store at {path} yet: this file has no tables of bide; make them with "
            "bide init, or name another file"
        )
    return [*_surroundings(path, parse_qs(parts.query)), *_soundness(path, longest)]


def _mounts() -> list[tuple[str, str]]:
    """Return the mount points and their kinds of file system, where the system says so."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(" ") for line in lines]
    return [(entry[1].replace("\\040", " "), entry[2]) for entry in fields if len(entry) > 2]


def _surroundings(path: Path, options: dict[str, list[str]]) -> list[Finding]:
    """Check the place of the file, its permissions, and how it is written."""
    mounts = [(point, kind) for point, kind in _mounts() if path.is_relative_to(point)]
    # The innermost; of several at one point the last, which covers the others: an automounted drive
    # has two.
    innermost = max(reversed(mounts), key=lambda mount: len(mount[0]), default=("", ""))
    _, file_system = innermost
    status, folder_mode = path.stat(), stat.S_IMODE(path.parent.stat().st_mode)
    free, size = shutil.disk_usage(path.parent).free, status.st_size
    writes_ahead = _writes_ahead(path)
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    modes = {file: stat.S_IMODE(file.stat().st_mode) for file in files if file.exists()}
    checks: list[Check] = [
        (
            file_system in _NETWORK,
            "danger",
            f"{path} is on a network drive ({file_system})",
            "locks may not hold between machines: messages are delivered twice, the file breaks",
            "move it to a local disk, or use PostgreSQL or Redis for several machines",
        ),
        (
            file_system in _MEMORY,
            "danger",
            f"{path} is in memory ({file_system})",
            "all messages are lost when the machine restarts",
            "move it to a disk",
        ),
        (
            status.st_nlink > 1,
            "warning",
            f"{path} has {status.st_nlink} names (hard links)",
            "processes that open it by different names do not see each other's changes: messages "
            "are lost, and the file may break",
            "let all use one name, and remove the others; symbolic links are harmless",
        ),
        *(
            (
                bool(mode & 0o007),
                "danger" if mode & 0o002 else "warning",
                f"{file} is open to all users of this machine (mode {mode:04o})",
                "others read the bodies of messages" + (", or change them" * bool(mode & 0o002)),
                f"chmod o-rwx {file}",
            )
            for file, mode in modes.items()
        ),
        (
            # With the sticky bit, as of /tmp, users may delete only files of their own.
            bool(folder_mode & 0o002) and not folder_mode & stat.S_ISVTX,
            "danger",
            f"all users may change the folder {path.parent} (mode {folder_mode:04o})",
            "others delete or replace the store",
            f"chmod o-w {path.parent}",
        ),
        (
            not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)),
            "danger",
            f"this user may not write to {path} and its folder",
            "nothing can be put, claimed or acked",
            "run bide as the owner, open the store with ?mode=0660 for a group, or mount the file "
            "system writable",
        ),
        (
            free < max(LITTLE_ROOM, size // 4),
            "danger" if free < LITTLE_ROOM else "warning",
            f"the disk of {path} has {free >> 20} MB left, the store has {size >> 20} MB",
            "once the disk is full, puts, claims and acks fail",
            "free some space, or move the store",
        ),
        (
            not writes_ahead,
            "danger",
            f"another program changed how {path} is written (no journal_mode=wal)",
            "readers and writers block each other; a crash may lose what was confirmed",
            "let only bide open the file; opening it with bide sets it right",
        ),
        (
            "normal" in options.get("durability", ()),
            "warning",
            "durability=normal",
            "when the power fails, the last messages that were confirmed are lost",
            "leave the option out",
        ),
    ]
    return findings(*checks)


def _writes_ahead(path: Path) -> bool:
    """Return whether changes are written to a log first (WAL).

    Raises:
        NotAStore: it is not a SQLite database.
    """
    not_a_database = NotAStore(f"{path} is not a SQLite database")
    if has_log(path):
        # Reading the file ourselves would end the locks that SQLite holds on it in this process.
        with closing(open_to_look(path)) as connection:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                    raise not_a_database from error
                return True  # it is damaged, which is said elsewhere
        return bool(mode == "wal")
    with path.open("rb") as file:  # SQLite tells it only of files with a log
        head = file.read(20)
    if not head.startswith(b"SQLite format 3\0"):
        raise not_a_database
    return head[18:20] == b"\2\2"  # the versions of the format to write and to read: 2 is WAL


def _soundness(path: Path, longest: float) -> Iterator[Finding]:
    """Check pages and rows, without leaving files of SQLite's behind."""
    until = time.monotonic() + longest  # in seconds
    known_version = len(STEPS)
    connection = open_to_look(path)
    connection.text_factory = lambda text: text.decode(errors="backslashreplace")
    connection.set_progress_handler(lambda: time.monotonic() > until, 1_000)
    try:
        faults = [text for (text,) in connection.execute("PRAGMA quick_check(3)") if text != "ok"]
        version = known_version if faults else recorded_version(connection.execute, path)
        damage = _damage(connection) if not faults and version == known_version else ()
        of_rows = list(of_messages(damage, longest, str(path), "rows", "tables"))
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            yield too_large(str(path), longest)
            return
        faults, of_rows, version = [str(error)], [], known_version
    finally:
        connection.close()
    if version != known_version:
        yield other_version(f"of {path} ", version, known_version, "this bide opens it")
    if faults:
        yield Finding(
            "danger",
            f"{path} is damaged ({'; '.join(' '.join(text.split()) for text in faults)})",
            "messages cannot be read, and workers end",
            "stop all workers and save what is readable: see the documentation, operations",
        )
    yield from of_rows


def _damage(connection: sqlite3.Connection) -> Iterator[Unreadable]:
    """Yield what cannot be read.

    Raises:
        TimeoutError: the time of the connection has ended.
    """
    for name, decode in (("are_headers", as_headers), ("are_failures", as_failures)):
        connection.create_function(name, 1, partial(_is_readable, decode), deterministic=True)
    try:
        for query, is_end in ((UNREADABLE_ROWS, False), (UNREADABLE_ENDS, True)):
            for (id,) in connection.execute(query):
                yield Unreadable(repr(id), is_end)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise TimeoutError from error
        raise


def _is_readable(decode: Callable[[bytes], object], text: bytes) -> bool:
    """Tell whether a text of a row can be read."""
    try:
        decode(text)
    except DAMAGED:
        return False
    return True
