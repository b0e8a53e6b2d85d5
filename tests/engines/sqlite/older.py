"""Stores as older versions of bide made them."""

import sqlite3
from pathlib import Path

from bide.engines.sqlite.schema import APPLICATION_ID, PLAIN
from bide.engines.sqlite.statements import migrations


def older(path: Path, version: int) -> None:
    """Give a store of today the layout that it had in version 1, 2 or 3."""
    new = sqlite3.connect(path)
    old = sqlite3.connect(path.with_name("older.db"))
    for script in migrations()[:version]:
        old.executescript(script.replace("bide_", ""))
    old.execute("DELETE FROM store")
    for table in PLAIN[: None if version > 1 else -1]:
        columns = ", ".join(
            f'"{name}"' for _, name, *_ in old.execute(f"PRAGMA table_info({table})")
        )
        rows = new.execute(f"SELECT {columns} FROM bide_{table}").fetchall()
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            old.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    old.execute(f"PRAGMA user_version = {version}")
    old.commit()
    old.close()
    new.close()
    path.with_name("older.db").rename(path)
