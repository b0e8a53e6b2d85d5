"""The tables of a store in a file: their version, making and migrating them, looking at them."""

import sqlite3
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bide.model.errors import NotAStore, SchemaTooNew

APPLICATION_ID = 0x62696465  # "bide": the mark of a file that has nothing but a store

STEPS = [
    resources.files("bide.engines.sqlite").joinpath(name).read_text("utf-8")
    for name in ("schema.sql", *(f"schema_{version}.sql" for version in range(2, 11)))
]
"""The first script makes the tables in version 1; the next one leads from 1 to 2, and so on."""

Run = Callable[..., Any]
"""Runs a statement on a connection, and returns a cursor."""


def is_current(run: Run, path: Path) -> bool:
    """Return whether the tables exist in the version that this bide uses.

    Raises:
        NotAStore: tables are there that bide did not make, or in a layout that is not known.
        SchemaTooNew: a newer bide made them.
    """
    known, version = len(STEPS), recorded_version(run, path)
    if version > known:
        raise SchemaTooNew(
            f"{path} was made by a newer bide (schema {version}, this one knows up to {known}); "
            "it was left as it is: upgrade bide here"
        )
    return version == known


def migrate(run: Run, path: Path) -> None:
    """Make or migrate the tables, in the transaction that is open; see `is_current`.

    A file in which they are alone is marked as bide's. In the file of an application they are
    tables like others.
    """
    (objects,) = run("SELECT count(*) FROM sqlite_master").fetchone()
    if not objects and not _owner(run):
        run(f"PRAGMA application_id = {APPLICATION_ID}")
    for script in STEPS[recorded_version(run, path) :]:
        for statement in script.split(";\n"):
            run(statement)
    run("UPDATE bide_store SET schema_version = ?", (len(STEPS),))


def recorded_version(run: Run, path: Path) -> int:
    """Return the version of the tables, 0 if there are none; it may be newer than this bide's.

    Raises:
        NotAStore: tables are there that bide did not make, or in a layout that is not known.
    """
    version = _stored_version(run)
    if version is not None:
        return version
    # One statement, one snapshot: another process may be making the store right now.
    objects, ours = run(
        "SELECT count(*), count(CASE name WHEN 'bide_store' THEN 1 END) FROM sqlite_master"
    ).fetchone()
    if not ours and not (objects and _owner(run) == APPLICATION_ID):
        return 0
    version = _stored_version(run)  # it has been made meanwhile
    if version is not None:
        return version
    raise NotAStore(
        f"{path} has tables of no layout that this bide knows; they were left as they are. If "
        "an unreleased bide made them, export each queue with the version that wrote it, and "
        "import into a new file; if it is another program's table bide_store, name another file"
    )


def _stored_version(run: Run) -> int | None:
    """Return the version of the tables as bide's own table says; `None`: it does not say."""
    try:
        (version,) = run("SELECT schema_version FROM bide_store").fetchone()
        return int(version)
    except sqlite3.OperationalError as error:
        if not str(error).startswith("no such "):  # table or column; else it is locked or damaged
            raise
    except (TypeError, ValueError):  # no row, or no number
        pass
    return None


def _owner(run: Run) -> int:
    """Return the mark of the program that a file belongs to; 0 if it has none."""
    return int(run("PRAGMA application_id").fetchone()[0])


def open_to_look(path: Path) -> sqlite3.Connection:
    """Open a file for reading, without leaving files of SQLite's behind."""
    path = path.resolve()
    # With a log, SQLite must read it, and uses files that are there. Without one it would make some
    # unless it is told that the file does not change.
    where = f"file:{quote(str(path))}?{'mode=ro' if has_log(path) else 'immutable=1'}"
    return sqlite3.connect(where, uri=True)


def has_log(path: Path) -> bool:
    """Return whether a log is beside a file: a process has it open, or died with it open."""
    return path.with_name(f"{path.name}-wal").exists()


def is_without_tables(path: Path) -> bool:
    """Return whether a database has no tables of bide, as that of an application may have none.

    False if it cannot be read: opening the store raises the reason.
    """
    try:
        connection = open_to_look(path)
        try:
            return recorded_version(connection.execute, path) == 0
        finally:
            connection.close()
    except (sqlite3.Error, NotAStore):
        return False
