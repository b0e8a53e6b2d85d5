"""Stores to measure on: bide's in a new file, and a plain table with two indices beside it."""

import random
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bide
from benchmarks.raw import BODY, raw_store
from bide.model.identity import new_ids

__all__ = [
    "BODY",
    "IDLE_SECONDS",
    "RATE",
    "SECONDS",
    "WEEK",
    "folder",
    "queue_in",
    "random_dues",
    "raw_store",
    "raw_write",
]

WEEK = 7 * 86_400

RATE, SECONDS = 200, 8
"""How many messages a second are put for another process, and for how long."""

IDLE_SECONDS = 10
"""How long another process waits for what is far off."""


@contextmanager
def folder() -> Iterator[Path]:
    """Give a folder on the disk that is here, and remove it with what is in it."""
    with tempfile.TemporaryDirectory(prefix="bide-bench-", dir=Path.cwd()) as path:
        yield Path(path)


def queue_in(path: Path, name: str = "work") -> bide.Queue:
    """Open a queue on a file of its own."""
    return bide.Queue(name, f"sqlite:///{path / 'bide.db'}")


def raw_write(connection: sqlite3.Connection, dues: Sequence[int]) -> None:
    """Store a message for each due moment with one commit."""
    rows = [(id, due, BODY) for id, due in zip(new_ids(len(dues)), dues, strict=True)]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO message (queue, id, due, body) VALUES (1, ?, ?, ?)", rows)
    connection.execute("COMMIT")


def random_dues(count: int, start: float, span: float = WEEK) -> list[float]:
    """Return due moments at random in a span, the same at each run."""
    chance = random.Random(count)
    return [start + chance.random() * span for _ in range(count)]
