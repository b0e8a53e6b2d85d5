"""The tables of a store in a file: finding out their version, making them and migrating them."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bide.engines.sqlite.statements import migrations
from bide.model.errors import NotAStore, SchemaTooNew

APPLICATION_ID = 0x62696465  # "bide": how a file tells that it holds nothing but a store

PLAIN = ("queue", "store", "message", "pending", "lease", "aside", "due_hour")
"""The names of the tables up to version 3, when a file held nothing else."""

Run = Callable[..., Any]
"""Runs a statement on a connection, and returns a cursor."""


def is_current(run: Run, path: Path) -> bool:
    """Tell whether the tables are there in the version that this bide uses.

    Raises:
        NotAStore: tables of these names are there that bide did not make.
        SchemaTooNew: a newer bide made them.
    """
    return _version(run, path) == len(migrations())


def migrate(run: Run, path: Path) -> None:
    """Make or migrate the tables, in the transaction that is open.

    A file in which they are alone is marked as bide's, so that older versions of bide refuse it
    with the reason. In the file of an application they are tables like others.

    Raises:
        NotAStore, SchemaTooNew: as `is_current`.
    """
    steps = migrations()
    version = _version(run, path)
    owner, tables = run(
        "SELECT (SELECT application_id FROM pragma_application_id),"
        " (SELECT count(*) FROM sqlite_master)"
    ).fetchone()
    if 0 < version < 4:
        _rename(run)
    for script in steps[version:]:
        for statement in _split(script):
            run(statement)
    run(f"UPDATE bide_store SET version = {len(steps)}")
    if owner == APPLICATION_ID or not (tables or owner):
        run(f"PRAGMA application_id = {APPLICATION_ID}")
        run(f"PRAGMA user_version = {len(steps)}")


def recorded_version(run: Run, path: Path) -> int:
    """Return the version of the tables, 0 if there are none; it may be newer than this bide's.

    Raises:
        NotAStore: tables of these names are there that bide did not make.
    """
    # One statement, one snapshot: another process may be making the store at this moment.
    owner, version, ours, plain = run(
        "SELECT (SELECT application_id FROM pragma_application_id),"
        " (SELECT user_version FROM pragma_user_version),"
        " (SELECT count(*) FROM sqlite_master WHERE name = 'bide_store'),"
        " (SELECT count(*) FROM sqlite_master WHERE name = 'store')"
    ).fetchone()
    if ours:
        try:
            (version,) = run("SELECT version FROM bide_store").fetchone()
        except (sqlite3.OperationalError, TypeError):  # no such column, or no row
            raise NotAStore(
                f"{path} has a table bide_store that bide did not make; name another file"
            ) from None
    elif owner != APPLICATION_ID or not plain:
        return 0
    return int(version)


def _version(run: Run, path: Path) -> int:
    """Return the version of the tables, 0 if there are none."""
    known, version = len(migrations()), recorded_version(run, path)
    if version > known:
        raise SchemaTooNew(
            f"{path} was made by a newer bide (schema {version}, this one knows up to {known}); "
            "it was left as it is. Upgrade with: pip install --upgrade bide"
        )
    return version


def _rename(run: Run) -> None:
    """Give the tables and indexes of an older store the prefix."""
    names = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for name in names.intersection(PLAIN):
        run(f"ALTER TABLE {name} RENAME TO bide_{name}")
    indexes = run("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    for name, sql in indexes.fetchall():
        run(f"DROP INDEX {name}")
        run(sql.replace(f"INDEX {name} ", f"INDEX bide_{name} ", 1))


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
