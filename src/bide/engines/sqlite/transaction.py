"""A transaction: what the queues of its commands share."""

import sqlite3

from bide.engines.sqlite.tables import SQL


class Transaction:
    """An open transaction of a SQLite file.

    Args:
        connection: to the file.
        now: the time in milliseconds, perhaps with fractions.
    """

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.run = connection.execute
        self.run_many = connection.executemany
        self.now = int(now)
        self.now_exact = now
        """The time with fractions of a millisecond."""
        self.ends: list[str] = []
        """The ends of messages that other processes may wait for, by `message_hint`."""
        self.has_uncounted = False
        """Whether there are messages with a higher number than the store has counted up to."""
        self._single_puts: dict[int, dict[int, int]] | None = None
        """By queue, what `single_puts` returns; `None`: it was not read."""

    def single_puts(self, queue: int, *, are_there: bool) -> dict[int, int]:
        """Return the messages that no counter of a queue knows of yet: how many, by hour.

        Each queue takes its own once, and counts them then.

        Args:
            queue: its id.
            are_there: whether there are some, in any queue.
        """
        if self._single_puts is None:
            self._single_puts = {}
            if are_there:
                self.has_uncounted = True
                for id, hour, count in self.run(SQL.uncounted):
                    self._single_puts.setdefault(id, {})[hour] = count
        return self._single_puts.pop(queue, {})
