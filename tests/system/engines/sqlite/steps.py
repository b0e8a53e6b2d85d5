"""How much SQLite has to do, in its own steps: a measure that no clock disturbs."""

from collections.abc import Callable

from bide.engines.sqlite import SqliteEngine
from bide.testing.engine_hooks import sqlite_connection


def steps_of(engine: SqliteEngine, work: Callable[[], object], every: int) -> int:
    """Return how many steps SQLite took for some work of an engine, in units of `every`."""
    connection = sqlite_connection(engine)
    assert connection is not None
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection.set_progress_handler(count, every)
    try:
        work()
    finally:
        connection.set_progress_handler(None, 0)
    return counted
