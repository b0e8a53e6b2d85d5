"""The commands of one transaction: executed, with the queues that they name."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import cast

from bide.engines.sqlite.put import put_all, put_one, together
from bide.engines.sqlite.queue_state import SqliteQueue
from bide.engines.sqlite.tables import SQL, empty
from bide.engines.sqlite.transaction import Transaction
from bide.model.commands import Command, Put
from bide.model.replies import Outcomes, Reply, expect


class Session(Transaction):
    """Executes commands in an open transaction; `save` has to follow.

    Args:
        connection: to the file.
        now: the time in milliseconds, perhaps with fractions.
    """

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        super().__init__(connection, now)
        self._queues: dict[str, SqliteQueue] = {}

    def carry_out_new(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute commands; a simple put that is alone by one statement."""
        reply: Reply | None = None
        if len(commands) == 1 and type(commands[0]) is Put and not self._queues:
            reply = put_one(self.run, commands[0], self.now)
        return self.carry_out(commands) if reply is None else [reply]

    def carry_out(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute commands; consecutive puts of a kind together."""
        if len(commands) == 1:
            return [self._execute(commands[0])]
        replies: list[Reply] = []
        for stores_new, consecutive in groupby(commands, together):
            if stores_new is not None:
                replies += self._put_all(cast("list[Put]", [*consecutive]), stores_new=stores_new)
            else:
                replies += [self._execute(command) for command in consecutive]
        return replies

    def _execute(self, command: Command) -> Reply:
        """Execute one command."""
        if isinstance(command, Put) and command.origin is None:
            return self.put(command)
        # Here: a program may only put. In this form it takes a third of the time of `from ...`.
        import bide.engines.execution.commands as execution

        return execution.execute(self, command)

    # Queues.

    def look(self, name: str) -> SqliteQueue:
        """Return a queue as it is."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = SqliteQueue(self, name)
        return queue

    def open(self, name: str) -> SqliteQueue:
        """Return a queue that is going to be changed; first forget what was kept long enough."""
        queue = self.look(name)
        queue.forget()
        return queue

    def make(self, name: str) -> SqliteQueue:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self.open(name)
        if not queue.row.id:
            self.run(SQL.create_queue, (name, self.now))
            queue = self._queues[name] = SqliteQueue(self, name)
        return queue

    def drop(self, queue: SqliteQueue) -> None:
        """Delete the row of a queue that is empty."""
        tables = "limit", "group", "line", "hour", "pause", "forwarded", "ended", "closed"
        empty(self.run, queue.row.id, *tables)
        self.run(SQL.drop_queue, (queue.row.id,))
        del self._queues[queue.row.name]

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues, sorted."""
        return [name for (name,) in self.run(SQL.queue_names, {"prefix": prefix})]

    def save(self) -> None:
        """Write back what has changed in the rows of queues, with what single puts have added."""
        if self._single_puts is None:  # no row was read
            return
        for id, counts in self._single_puts.items():  # of queues whose rows were not read
            total = sum(counts.values())
            self.run(SQL.count_puts, (total, total, id))
            self._save_hours(id, counts)
        for queue in self._queues.values():
            queue.save_row()
            self._save_hours(queue.row.id, queue.changed_hours)
        if self.has_uncounted:
            self.run(SQL.balance)

    def _save_hours(self, queue: int, changes: Mapping[int, int]) -> None:
        """Write the changes to the counters of hours of a queue."""
        rows = [(queue, hour, count) for hour, count in changes.items() if count]
        if not rows:
            return
        self.run_many(SQL.count_hour, rows)
        if decreased := [(queue, hour) for queue, hour, count in rows if count < 0]:
            self.run_many(SQL.drop_hour, decreased)  # where the counter is 0 now

    # Puts.

    def put(self, command: Put) -> Outcomes:
        """Store messages."""
        (reply,) = self._put_all([command], stores_new=bool(together(command)))
        return expect(Outcomes, reply)

    def _put_all(self, puts: Sequence[Put], *, stores_new: bool) -> list[Reply]:
        """Execute consecutive puts together."""
        self.has_uncounted = self.has_uncounted or stores_new
        return put_all(self.make, puts, stores_new=stores_new)
