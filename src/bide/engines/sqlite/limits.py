"""A limited queue: its limits, the lines of its groups, and whose turn it is.

See `bide.engines.memory.lines` for the rules and their reasons.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from bide.engines.limiter import Group, Limiter, key_of
from bide.engines.queue_row import QueueRow
from bide.engines.rules.record import Record
from bide.engines.sqlite.tables import SQL, LimitRow, empty
from bide.engines.sqlite.transaction import Transaction
from bide.model.rank import EVERYTHING, PROMOTE
from bide.model.times import CREDIT, LIMITS

NONE, TURNS, RESTING, IDLE = range(4)


class GroupRow(Group, gc=False):
    """A row of the table `bide_group`, but for its place among others."""

    waiting: int = 0


class SqliteLines(Limiter):
    """The limits of a queue in one transaction, and if it has any the lines of its groups.

    Args:
        transaction: in which the queue is read and changed.
        queue: its row.
    """

    def __init__(self, transaction: Transaction, queue: QueueRow) -> None:
        self._run, self._run_many, self._queue = transaction.run, transaction.run_many, queue
        row = self._run(SQL.load_limit, (queue.id,)).fetchone() if queue.limited else None
        self.row = LimitRow(*row) if row else LimitRow(queue=queue.id)
        super().__init__(self.row, int(transaction.exactly * 1000))
        self.running = queue.leased
        self._groups: dict[str, GroupRow] = {}
        self._saved = row

    def clear(self) -> None:
        """Delete the limits and groups."""
        empty(self._run, self._queue.id, "limit", "group", "line")
        self._queue.limited = 0
        self.limits = self.row = LimitRow(queue=self._queue.id)
        self._groups.clear()
        self._saved = None

    def rebuild(self) -> None:
        """Make the lines again, from the messages of the queue; its groups take new turns."""
        before = self.row
        self.clear()
        for name in (*LIMITS, "last"):
            setattr(self.row, name, getattr(before, name))
        self.begin()

    def begin(self) -> None:
        """Count the leased messages of each group, and line up the first ready ones."""
        self._queue.limited, self.running = 1, self._queue.leased
        for name, count in self._run(SQL.leased_by_group, (self.row.queue,)):
            group = self._group(key_of(name))
            group.running += count
            self._save(group)
        self.row.rank = self.row.seq = -1
        self.line_up(PROMOTE)

    # What happens to messages.

    def enter(self, places: Sequence[tuple[str | None, int, int]]) -> None:
        """Put messages that are ready now into the lines of their groups: (group, rank, seq)."""
        rows = [(self.row.queue, key_of(group), rank, seq) for group, rank, seq in places]
        self._run_many(SQL.insert_line, rows)
        for key, count in Counter(row[1] for row in rows).items():
            group = self._group(key)
            if not group.waiting:
                self.row.turn += 1
                group.turn = self.row.turn
            group.waiting += count
            self._save(group)

    def line_up(self, limit: int) -> None:
        """Put up to `limit` messages into lines that were ready before the queue was limited."""
        row = self.row
        if row.rank is None:
            return
        places = self._run(SQL.unlined, (row.queue, row.rank, row.seq, limit)).fetchall()
        self.enter([(group, rank, seq) for group, rank, seq, lined in places if not lined])
        row.rank, row.seq = places[-1][1:3] if len(places) == limit else (None, None)

    def leave(self, record: Record, *, leased: bool = False) -> None:
        """Remove a message that is not ready any more, if it is in line.

        If it is `leased` now, its group gets the last turn.
        """
        group = self._group(key_of(record.group))
        place = self.row.queue, group.key, record.rank, record.seq
        dropped = self._run(SQL.drop_line, place).rowcount
        group.waiting -= dropped
        if leased:
            self.lease(group)
        if dropped or leased:
            self._save(group)

    def stop(self, groups: Iterable[str | None]) -> None:
        """Count messages that are not leased any more, by their groups."""
        for key, count in Counter(map(key_of, groups)).items():
            group = self._group(key)
            self.end_leases(group, count)
            self._save(group)

    # Whose turn it is.

    def forget(self) -> None:
        """Forget idle groups whose rate does not hold them any more."""
        rate = self.row.group_rate
        rank = self.now - CREDIT - rate if rate else EVERYTHING
        bounds = {"queue": self.row.queue, "rank": rank, "limit": PROMOTE}
        if self._run(SQL.forget_groups, bounds).rowcount:
            self._groups.clear()

    def wake(self) -> None:
        """Let groups take turns whose rate allows it again."""
        rate = self.row.group_rate
        for group in self._standing(RESTING, self.now - rate if rate else EVERYTHING, PROMOTE):
            self._save(group)

    def next(self) -> GroupRow | None:
        """Return the group whose first message may be served now."""
        return self._first(TURNS) if self.open else None

    def opens(self) -> int | None:
        """Return when a message may be served, in microseconds; `None`: when a lease has ended."""
        if self.full:
            return None
        self.wake()
        if self.row.rank is not None or self._first(TURNS) is not None:
            return max(self.now, self.reopens)
        group = self._first(RESTING)
        return None if group is None else max(self.reopens_for(group), self.reopens)

    def ahead(self, record: Record, rank: int, limit: int) -> int:
        """Return how many messages of its group are in line before a rank, up to a limit."""
        bounds = (self.row.queue, key_of(record.group), rank, record.seq, limit)
        return len(self._run(SQL.in_line_before, bounds).fetchall())

    def strays(self, ready: int, leased: Iterable[tuple[str | None, int]]) -> int:
        """Count all messages and groups, and return how many are inconsistent.

        Args:
            ready: the number of ready messages.
            leased: the number of leased messages, by group.
        """
        groups = self._run(SQL.recount_groups, (self.row.queue,)).fetchall()
        lines = self._run(SQL.recount_lines, (self.row.queue,)).fetchall()
        in_line = {key: count for key, count, _ in lines}
        running = {key_of(group): count for group, count in leased}
        strays = sum(count - good for _, count, good in lines)
        if self.row.rank is None:
            strays += abs(ready - sum(in_line.values()))
        for key, counted, waiting, standing in groups:
            strays += counted != running.pop(key, 0)
            strays += waiting != in_line.pop(key, 0)
            comes = standing in (TURNS, RESTING) or self.is_full(GroupRow(key, counted))
            strays += waiting > 0 and not comes
        return int(strays + len(running) + len(in_line))

    def restand(self) -> None:
        """Let groups take turns that a changed limit holds no more: those with leases may be full.

        Groups that it holds now are found when their turn has come.
        """
        for group in self._standing(NONE, limit=EVERYTHING):
            self._save(group)

    # The tables.

    def save(self) -> None:
        """Write the limits, if they have changed; groups are written with each change."""
        values = msgspec.structs.astuple(self.row)
        if self and values != self._saved:
            self._run(SQL.save_limit, values)

    def _standing_of(self, group: GroupRow) -> int:
        if not group.waiting:
            return NONE if group.running else IDLE
        if self.is_full(group):
            return NONE
        return RESTING if self.reopens_for(group) > self.now else TURNS

    def _group(self, key: str) -> GroupRow:
        group = self._groups.get(key)
        if group is None:
            row = self._run(SQL.load_group, (self.row.queue, key)).fetchone()
            group = self._groups[key] = GroupRow(*row) if row is not None else GroupRow(key)
        return group

    def _save(self, group: GroupRow) -> None:
        standing = self._standing_of(group)
        rank = group.turn if standing == TURNS else group.last
        values = msgspec.structs.astuple(group)
        self._run(SQL.save_group, (*values, self.row.queue, standing, rank))

    def _first(self, standing: int) -> GroupRow | None:
        """Return the first group of a standing; correct groups that have another one by now."""
        for _ in range(PROMOTE):
            group = next(iter(self._standing(standing)), None)
            if group is None or self._standing_of(group) == standing:
                return group
            self._save(group)
        return None

    def _standing(self, standing: int, reach: int = EVERYTHING, limit: int = 1) -> list[GroupRow]:
        """Return the first groups of a standing."""
        bounds = (self.row.queue, standing, reach, limit)
        rows = self._run(SQL.groups_standing, bounds).fetchall()
        return [self._groups.setdefault(row[0], GroupRow(*row)) for row in rows]
