"""The rows of an outbox: what they say, and the tables that they are in."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from bide.model import commands as cmd

__all__ = [
    "CHANNEL", "POSTGRES_TABLES", "SQLITE_TABLES", "TABLES", "Row", "Table", "held_until",
    "name_of", "split",
]  # fmt: skip

TABLES = ("bide_outbox", "bide_outbox_dead", "bide_outbox_name")
"""All tables of an outbox; the last one on SQLite only, where the forwarder makes it."""

CHANNEL = "bide_outbox"
"""On which PostgreSQL notifies the forwarder of a commit."""

POSTGRES_TABLES = """
CREATE TABLE IF NOT EXISTS bide_outbox (
  number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue   text NOT NULL,
  id      text NOT NULL,
  command text NOT NULL,                  -- JSON
  tried   boolean NOT NULL DEFAULT false  -- by an older bide: the store may have it
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE IF NOT EXISTS bide_outbox_dead (
  number  bigint PRIMARY KEY,
  queue   text NOT NULL,
  id      text NOT NULL,
  command text NOT NULL,
  reason  text NOT NULL,
  died    timestamptz NOT NULL DEFAULT now()
);
"""

SQLITE_TABLES = (
    """CREATE TABLE IF NOT EXISTS bide_outbox (
      number  INTEGER PRIMARY KEY AUTOINCREMENT,
      queue   TEXT NOT NULL,
      id      TEXT NOT NULL,
      command TEXT NOT NULL,             -- JSON
      tried   INTEGER NOT NULL DEFAULT 0 -- by an older bide: the store may have it
    )""",
    """CREATE TABLE IF NOT EXISTS bide_outbox_dead (
      number  INTEGER PRIMARY KEY,
      queue   TEXT NOT NULL,
      id      TEXT NOT NULL,
      command TEXT NOT NULL,
      reason  TEXT NOT NULL,
      died    TEXT NOT NULL DEFAULT (datetime('now'))
    )""",
)

_HELD = 4_000_000_000_000
_NUMBERS = 100_000_000_000

_decode: Callable[[str], cmd.Command] = msgspec.json.Decoder(cmd.Command).decode


def held_until(number: int) -> int:
    """Return the due time, after the year 2095, of a message that an older forwarder held back.

    It tells of which row the message is: that forwarder may have died before it went on.
    """
    return _HELD + number % _NUMBERS


def name_of(number: int) -> str:
    """Return what the name of a row begins with; greater for a greater number."""
    return f"{number:016x}"


class Row(msgspec.Struct, frozen=True):
    """A command on one message."""

    number: int
    """In the order of the commits, among the rows of one id."""
    queue: str
    id: str
    text: str
    tried: bool
    """Whether an older forwarder has noted that the store has its message."""

    @property
    def name(self) -> str:
        """The name by which the store remembers the row.

        A database that is restored from a backup, or that loses its last commits, gives numbers a
        second time: the rest of the name says that such a row is another one.
        """
        content = f"{self.queue}\0{self.id}\0{self.text}".encode()
        return f"{name_of(self.number)}-{hashlib.sha256(content).hexdigest()[:16]}"

    @property
    def command(self) -> cmd.Command:
        """What to do."""
        return _decode(self.text)


def split(commands: Sequence[cmd.Command]) -> Iterator[tuple[str, str, str]]:
    """Yield commands as rows: queue, id and text, one for each message."""
    for command in commands:
        parts: list[tuple[str, cmd.Command]]
        match command:
            case cmd.Put():
                parts = [
                    (item.id, cmd.Put(command.queue, [item], command.on_conflict))
                    for item in command.items
                ]
            case cmd.Cancel() | cmd.Reschedule():
                parts = [(id, msgspec.structs.replace(command, ids=[id])) for id in command.ids]
            case _:
                parts = [("", command)]
        for id, part in parts:
            yield command.queue, id, msgspec.json.encode(part).decode()


class Table(Protocol):
    """The outbox of one database, as the forwarder uses it."""

    name: str
    """The store tells outboxes apart by it."""

    def lead(self) -> AbstractContextManager[bool]:
        """Try to be the only forwarder, for the length of a block; tell whether it is so."""

    def read(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Return the oldest committed rows: at most so many, and none behind the first 8 MiB.

        Rows of the queues `without` are left out.

        They go to the store in few requests, of which a server bounds the bytes.
        """

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows that are done, durably: the store forgets them next."""

    def bury(self, number: int, reason: str) -> None:
        """Move a row to `bide_outbox_dead`."""

    def wait(self, seconds: float) -> None:
        """Wait until something may have been committed; at most so long."""

    def wake(self) -> None:
        """End a wait, from another thread."""

    def close(self) -> None:
        """Leave the database."""
