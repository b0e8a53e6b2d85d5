"""The SQLite engine: one file, many processes, no server."""

from bide.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
