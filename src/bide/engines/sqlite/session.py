"""One transaction: the rows of its queues, and what it has to count."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bide.engines.sqlite.limits import Lines
from bide.engines.sqlite.tables import (
    ACKED,
    EXPIRED,
    SQL,
    LimitRow,
    QueueRow,
    json_text,
)
from bide.model.message import EXPIRED_KEEP, FORGET
from bide.model.rank import delayed_reach

HOUR = 3_600_000

COUNTED = 1_000
"""How many due messages are counted one by one before the counters of hours are asked."""

ByHour = defaultdict[int, Counter[int]]
"""How many messages are due in each hour, by queue."""


class Session:
    """What the verbs of one batch share: the connection, the time, and the rows of queues."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.run = connection.execute
        self.run_many = connection.executemany
        self.now = int(now)
        self.exactly = now
        self._queues: dict[str, tuple[QueueRow, tuple[Any, ...]]] = {}
        self.ends: list[str] = []
        """The ends of messages that other processes may wait for."""
        self._lines: dict[int, Lines] = {}
        self._seq: int | None = None
        self._uncounted: ByHour | None = None
        self._hours: ByHour = defaultdict(Counter)

    # Queues.

    def look(self, name: str) -> QueueRow:
        """Return the row of a queue as it is."""
        if name in self._queues:
            return self._queues[name][0]
        row = self.run(SQL.load_queue, (name,)).fetchone()
        if row is None:
            return QueueRow(name=name)
        queue = QueueRow(*row)
        self._queues[name] = queue, queue.values()
        count = self._single_puts()[queue.id].total()
        queue.put += count
        queue.delayed += count
        return queue

    def open(self, name: str) -> QueueRow:
        """Return a queue that is going to be changed; first forget what was kept long enough."""
        queue = self.look(name)
        if queue.kept:
            self._forget(queue)
        if queue.ended:
            bounds = queue.id, self.now - queue.remembers, FORGET
            queue.ended -= self.run(SQL.forget_ends, bounds).rowcount
        return queue

    def make(self, name: str) -> QueueRow:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self.open(name)
        if not queue.id:
            self.run(SQL.create_queue, (name, self.now))
            queue = self.look(name)
        return queue

    def lines(self, queue: QueueRow) -> Lines:
        """Return the limits of a queue, and if it has any the lines of its groups."""
        lines = self._lines.get(queue.id)
        if lines is None:
            found = self.run(SQL.load_limit, (queue.id,)).fetchone()
            row = LimitRow(*found) if found else LimitRow(queue=queue.id)
            lines = Lines(self, queue, row, int(self.exactly * 1000))
            self._lines[queue.id] = lines
        lines.running = queue.leased
        return lines

    def drop_lines(self, queue: QueueRow) -> None:
        """Delete what a queue has because it was limited."""
        self._lines.pop(queue.id, None)
        self._empty(queue, "limit", "group", "line")

    def _empty(self, queue: QueueRow, *tables: str) -> None:
        for table in tables:
            self.run(f"DELETE FROM bide_{table} WHERE queue = ?", (queue.id,))

    def groups_of(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """Return the groups of messages."""
        return dict(self.run(SQL.groups_of, (json_text(seqs),)))

    def forget_queue(self, queue: QueueRow) -> None:
        """Delete the row of a queue that is empty."""
        self.drop_lines(queue)
        self._empty(queue, "due_hour", "pause", "forwarded", "ended")
        self.run(SQL.drop_queue, (queue.id,))
        del self._queues[queue.name]
        # A queue that is made next may get the same id.
        for counted in (self._hours, self._single_puts()):
            counted.pop(queue.id, None)

    def count_due(self, queue: QueueRow) -> int:
        """Count the delayed messages that are due.

        Either those or the ones that fall due later in this hour, whichever are fewer: the counters
        of hours have the rest.
        """
        if not queue.delayed:
            return 0
        hour = self.now // HOUR + 1
        reach, hour_end = delayed_reach(self.now), delayed_reach(hour * HOUR)
        most = COUNTED
        while (due := self.count_between(queue, -1, reach, most)) == most:
            coming = self.count_between(queue, reach, hour_end, most)
            if coming < most:
                until = sum(count for each, count in self.hours(queue).items() if each <= hour)
                return until - queue.ready - coming
            most *= 4
        return due

    def count_between(self, queue: QueueRow, after: int, until: int, most: int = -1) -> int:
        """Count the delayed messages between two ranks; stop at `most` of them."""
        bounds = queue.id, after, until, most
        return int(self.run(SQL.count_delayed, bounds).fetchone()[0])

    def save(self) -> None:
        """Write back what has changed in the rows of queues, with what single puts have added."""
        if not self._queues:
            return
        for lines in self._lines.values():
            lines.save()
        single = self._single_puts()
        for queue, before in self._queues.values():
            if (values := queue.values()) != before:
                self.run(SQL.save_queue, (*values, queue.id))
        known = {queue.id for queue, _ in self._queues.values()}
        others = [(n.total(), n.total(), id) for id, n in single.items() if id not in known]
        self.run_many(SQL.count_puts, others)
        for id, hours in single.items():
            self._hours[id].update(hours)
        rows = [
            (id, hour, count) for id, hours in self._hours.items() for hour, count in hours.items()
            if count
        ]  # fmt: skip
        self.run_many(SQL.count_hour, rows)
        self.run_many(SQL.drop_hour, [row[:2] for row in rows if row[2] < 0])
        self.run(SQL.balance)

    def _single_puts(self) -> ByHour:
        """Return how many messages the counters do not know of yet."""
        if self._uncounted is None:
            self._uncounted = defaultdict(Counter)
            for queue, hour, count in self.run(SQL.uncounted):
                self._uncounted[queue][hour] = count
        return self._uncounted

    def count_hours(self, queue: QueueRow, dues: Iterable[int], change: int = 1) -> None:
        """Count delayed and ready messages that came, or have gone, in the hours they are due."""
        hours = self._hours[queue.id]
        for due in dues:
            hours[-(-due // HOUR)] += change

    def hours(self, queue: QueueRow) -> Counter[int]:
        """Return how many delayed and ready messages are due in each hour, rounded up."""
        found = Counter(dict(self.run(SQL.hours, (queue.id,))))
        for changes in (self._single_puts(), self._hours):
            found.update(changes[queue.id])
        return found

    def next_seq(self, count: int) -> int:
        """Reserve `count` sequence numbers; return the one before the first."""
        if self._seq is None:
            self._seq = self.run(SQL.last_seq).fetchone()[0] or 0
        self._seq += count
        return self._seq - count

    def leave_lease(self, queue: QueueRow, seqs: Sequence[int]) -> None:
        """End the leases of messages."""
        if queue.limited:
            self.lines(queue).stop(self.groups_of(seqs).values())
        self.run(SQL.drop_leases, (json_text(seqs),))
        queue.leased -= len(seqs)

    def _forget(self, queue: QueueRow) -> None:
        ends = (ACKED, self.now - queue.keep), (EXPIRED, self.now - max(queue.keep, EXPIRED_KEEP))
        for state, before in ends:
            rows = self.run(SQL.forgettable, (queue.id, state, before, FORGET)).fetchall()
            self.run_many(SQL.drop_aside, rows)
            self.run_many(SQL.drop_message, rows)
            queue.kept -= len(rows)
