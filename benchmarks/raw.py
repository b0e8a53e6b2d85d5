"""Raw work that bide is held against; it needs no bide, so that it stands beside any tree."""

import sqlite3
from pathlib import Path

__all__ = ["BODY", "insert_one", "raw_store"]

BODY = "x" * 254  # 256 bytes with the quotes of its JSON

_INSERT = "INSERT INTO message (queue, id, due, body) VALUES (1, ?, ?, ?)"


def raw_store(path: Path) -> sqlite3.Connection:
    """Make a table with two indices, as a queue of one's own would have."""
    connection = sqlite3.connect(path / "raw.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE message (seq INTEGER PRIMARY KEY, queue INTEGER, id TEXT, due INTEGER, body)"
    )
    connection.execute("CREATE UNIQUE INDEX by_id ON message (queue, id)")
    connection.execute("CREATE INDEX by_due ON message (queue, due)")
    return connection


def insert_one(connection: sqlite3.Connection, id: str) -> None:
    """Store a message with a commit of its own."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_INSERT, (id, 1_800_000_000_000, BODY))
    connection.execute("COMMIT")
