"""A put of one message as one statement: the commonest command, and the one that is waited for.

A view of the connection's own, with a trigger instead of its inserts, does what the verb `put` does
in four statements. Whatever is not simple (an id that is taken, a queue that does not exist yet or
that remembers messages) makes it refuse, with nothing changed, and takes the common way.
"""

import sqlite3

from bide.engines.sqlite.connection import is_busy
from bide.engines.sqlite.statements import SQL
from bide.model.commands import Command, Put
from bide.model.replies import Outcome, Outcomes

__all__ = ["LonePuts"]


class LonePuts:
    """The short way to put one message, on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.execute(SQL.lone_view)
        connection.execute(SQL.lone_trigger)
        self._run = connection.execute
        self._queues: dict[str, int] = {}

    def put(self, command: Command, now: int) -> Outcomes | None:
        """Carry out a command that is one simple put; `None`, with nothing done, if it is not.

        Raises:
            sqlite3.Error: nothing was done, and the common way would fail as well.
        """
        if type(command) is not Put or len(command.items) != 1 or command.on_conflict == "revive":
            return None
        if command.if_version is not None:
            return None
        item = command.items[0]
        if item.headers is not None or item.attempt or item.failures:
            return None
        if item.died is not None:
            return None
        queue = self._queues.get(command.queue)
        if queue is None:
            self._remember(command.queue)
            return None
        due = now + item.delay if item.at is None else item.at
        data = item.data.decode() if item.json else item.data
        row: tuple[object, ...]
        row = queue, item.id, due, item.priority, item.attempts, data
        insert = SQL.lone_put
        if item.expires is not None or item.group is not None:
            row += item.expires, item.group
            insert = SQL.lone_put_grouped
        try:
            self._run(insert, row)
        except sqlite3.IntegrityError:  # the id is taken, or the trigger found it not simple
            return None
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return None  # others have the store: the common way waits
        return Outcomes([Outcome(item.id, True, "ready" if due <= now else "delayed", due)], due)

    def _remember(self, name: str) -> None:
        """Remember the queue for the next time. A queue that exists stays, as long as its file."""
        row = self._run(SQL.load_queue, (name,)).fetchone()
        if row is not None:
            self._queues[name] = row[0]
