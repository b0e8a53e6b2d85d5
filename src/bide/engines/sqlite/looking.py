"""Looking at a file that may be a store, without making it one."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from bide.engines.sqlite.schema import recorded_version
from bide.model.errors import NotAStore


def open_to_look(path: Path) -> sqlite3.Connection:
    """Open a file for reading, without leaving files of SQLite's behind."""
    path = path.resolve()
    in_use = path.with_name(f"{path.name}-wal").exists()
    where = f"file:{quote(str(path))}?{'mode=ro' if in_use else 'immutable=1'}"
    return sqlite3.connect(where, uri=True)


def is_without_tables(path: Path) -> bool:
    """Tell whether a database has no tables of bide, as that of an application may have none.

    False for what cannot be looked at: whoever opens the store says why.
    """
    try:
        connection = open_to_look(path)
        try:
            return recorded_version(connection.execute, path) == 0
        finally:
            connection.close()
    except (sqlite3.Error, NotAStore):
        return False
