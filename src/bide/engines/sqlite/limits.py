"""A limited queue in a file: its limits, lines and heads.

See `bide.engines.limiter` for the rules and their reasons.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bide.engines.constants import PLACES
from bide.engines.limiter import Group, Limiter, Limits, key_of
from bide.engines.queue_row import QueueRow
from bide.engines.rules.record import Record
from bide.engines.sqlite.tables import Statements, empty, json_text, record_of
from bide.engines.sqlite.transaction import Transaction
from bide.model.rank import EVERYTHING, PROMOTE
from bide.model.times import CREDIT, LIMITS, MICROSECONDS

NO_HEAD, HEAD_COMPETES, HEAD_WAITS, IDLE_GROUP = range(len(PLACES))
"""Where a group is: see `PLACES`."""


class LimitRow(Limits, gc=False):
    """A row of the table `bide_limit`."""

    queue: int = 0


SQL = Statements("limits.sql", limits=", ".join(f'"{name}"' for name in LimitRow.__struct_fields__))
"""The statements of limited queues."""


class _MoreToCorrect(Exception):
    """After a change of the limits, more groups have another place than one command corrects."""


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
        """The same object as `limits`."""
        now_us = int(transaction.now_exact * MICROSECONDS)
        super().__init__(self.row, now_us)
        self.running = queue.leased
        self._groups: dict[str, Group] = {}
        """By key: the groups that this transaction has read."""
        self._saved = row
        """The limits as they are in the file; `None`: they are not there."""

    def clear(self) -> None:
        """Delete the limits and groups."""
        empty(self._run, self._queue.id, "limit", "group", "line")
        self._queue.limited = 0
        self.limits = self.row = LimitRow(queue=self._queue.id)
        self._groups.clear()
        self._saved = None

    def rebuild(self) -> None:
        """Make the lines again, from the messages of the queue."""
        before = self.row
        self.clear()
        for name in (*LIMITS, "tag", "last"):
            setattr(self.row, name, getattr(before, name))
        self.begin_lines()

    def begin_lines(self) -> None:
        """Line up the ready messages of each group, and count its leased ones."""
        self._queue.limited = 1
        self.running = self._queue.leased
        queue, next_round = self.row.queue, self.row.tag + 1
        self._run(SQL.fill_lines, (queue,))
        self._run(SQL.fill_groups, (next_round, queue))  # so all begin equal, as if new
        for name, count in self._run(SQL.leased_by_group, (queue,)).fetchall():
            group = self._group(key_of(name))
            group.running += count
            self._save(group)

    def reopen(self) -> None:
        """Give heads to groups that a changed limit holds no more.

        Those that it holds now are found when they come first.
        """
        for group in self._groups_at(NO_HEAD):
            self._save(group)

    def forget(self) -> None:
        """Forget idle groups whose rate does not hold them any more. A claim does so first."""
        rate = self.row.group_rate
        served_until = self.now - CREDIT - rate if rate else EVERYTHING
        idle = {"queue": self.row.queue, "served_until": served_until, "most": PROMOTE}
        if self._run(SQL.forget_groups, idle).rowcount:
            self._groups.clear()  # some of them may be those that were deleted

    def wake(self) -> None:
        """Let heads compete whose rate allows it again."""
        rate = self.row.group_rate
        served_until = self.now - rate if rate else EVERYTHING
        for group in self._groups_at(HEAD_WAITS, served_until, PROMOTE):
            self._save(group)

    # What happens to messages.

    def enter(self, places: Sequence[tuple[str | None, int, int]]) -> None:
        """Put messages that are ready now into the lines of their groups.

        Args:
            places: the group, the rank and the sequence number of each.
        """
        rows = [(self.row.queue, key_of(group), rank, seq) for group, rank, seq in places]
        self._run_many(SQL.insert_line, rows)
        for key in dict.fromkeys(key_of(group) for group, _, _ in places):
            self._save(self._group(key))

    def leave(self, record: Record, *, leased: bool = False) -> None:
        """Remove a message from its line, if it is there; count it if it is `leased` now."""
        group = self._group(key_of(record.group))
        self._run(SQL.drop_line, (self.row.queue, group.key, record.rank, record.seq))
        if leased:
            self.serve(group)
        self._save(group)

    def stop(self, groups: Iterable[str | None]) -> None:
        """Count messages that are not leased any more, by their groups."""
        for key, count in Counter(map(key_of, groups)).items():
            group = self._group(key)
            group.running -= count
            self.running -= count
            self._save(group)

    def stop_messages(self, seqs: Sequence[int]) -> None:
        """Count messages that are not leased any more, by their sequence numbers."""
        groups = self._run(SQL.groups_of, (json_text(seqs),))
        self.stop([group for (group,) in groups])

    # Which message is served.

    def next(self) -> Record | None:
        """Return the message to serve now, if one may be served."""
        if not self.open:
            return None
        for _ in range(PROMOTE):
            row = self._run(SQL.head, (self.row.queue,)).fetchone()
            if row is None:
                return None
            group = self._known(row[-len(Group.__struct_fields__) :])  # behind those of the message
            if self._place(group) != HEAD_COMPETES:  # a limit has changed
                self._save(group)
                continue
            record = record_of(row)
            if key_of(record.group) != group.key:
                raise ValueError(f"{record.id!r} is in the line of another group")
            return record
        return None

    def opens(self) -> int | None:
        """Return when a message may be served, in microseconds; `None`: when a lease has ended."""
        if self.full:
            return None
        self.wake()
        try:
            if self._first(SQL.first_head, HEAD_COMPETES) is not None:
                return max(self.now, self.reopens)
            group = self._first(SQL.first_resting, HEAD_WAITS)
        except _MoreToCorrect:
            return max(self.now, self.reopens)  # the next claim goes on
        return None if group is None else max(self.now, self.reopens_for(group), self.reopens)

    def ahead(self, record: Record, rank: int, limit: int) -> int:
        """Return how many messages of its group are in line before a rank, up to a limit."""
        bounds = (self.row.queue, key_of(record.group), rank, record.seq, limit)
        return len(self._run(SQL.in_line_before, bounds).fetchall())

    def strays(self, ready: int) -> int:
        """Count all messages and groups, and return how many are inconsistent.

        `ready` is the number of ready messages.
        """
        lines = self._run(SQL.recount_lines, (self.row.queue,)).fetchall()
        strays = sum(in_line - ready_in_line for _, in_line, ready_in_line in lines)
        strays += abs(ready - sum(in_line for _, in_line, _ in lines))
        keys_with_line = {key for key, _, _ in lines}
        leased = self._run(SQL.leased_by_group, (self.row.queue,))
        leased_by_key = {key_of(group): count for group, count in leased}
        for key, running, place, is_head in self._run(SQL.recount_groups, (self.row.queue,)):
            if running != leased_by_key.pop(key, 0):
                strays += 1
            if key in keys_with_line:
                keys_with_line.remove(key)
                has_head = place in (HEAD_COMPETES, HEAD_WAITS)
                may_have_none = self.is_full(Group(key, running))
                if not is_head or not (has_head or may_have_none):
                    strays += 1
        # What is left is leased or in line, and its group has no row.
        return int(strays + len(leased_by_key) + len(keys_with_line))

    # The tables.

    def save(self) -> None:
        """Write the limits, if they have changed; groups are written with each change."""
        values = msgspec.structs.astuple(self.row)
        if self and values != self._saved:
            self._run(SQL.save_limit, values)

    def _place(self, group: Group) -> int:
        """Return the place of a group that has a line."""
        if self.is_full(group):
            return NO_HEAD
        return HEAD_WAITS if self.reopens_for(group) > self.now else HEAD_COMPETES

    def _group(self, key: str) -> Group:
        """Return the group with a key: a new one if the file has none."""
        group = self._groups.get(key)
        if group is None:
            row = self._run(SQL.load_group, (self.row.queue, key)).fetchone()
            # A new group joins the next round.
            group = Group(key, tag=self.row.tag + 1) if row is None else Group(*row)
            self._groups[key] = group
        return group

    def _known(self, row: tuple[Any, ...]) -> Group:
        """Return a group that a statement has found; as this transaction knows it, if it does."""
        return self._groups.setdefault(row[0], Group(*row))

    def _save(self, group: Group) -> None:
        """Write a group, with the head that it is to have."""
        without_line = NO_HEAD if group.running else IDLE_GROUP
        queue, values = self.row.queue, msgspec.structs.astuple(group)
        places = without_line, self._place(group)
        self._run(SQL.save_group, (queue, *values, *places, queue, group.key))

    def _first(self, statement: str, place: int) -> Group | None:
        """Return the first group of a place; correct groups that have another one by now.

        Raises:
            _MoreToCorrect: these are more than one command may correct.
        """
        for _ in range(PROMOTE):
            row = self._run(statement, (self.row.queue,)).fetchone()
            if row is None:
                return None
            group = self._known(row)
            if self._place(group) == place:
                return group
            self._save(group)
        raise _MoreToCorrect

    def _groups_at(
        self, place: int, served_until: int = EVERYTHING, most: int = EVERYTHING
    ) -> list[Group]:
        """Return the groups at a place whose last delivery is not after a time.

        The group that has waited longest since its last delivery comes first.

        Args:
            place: one of `PLACES`; not `HEAD_COMPETES`, which has an order of its own.
            served_until: the time, in microseconds.
            most: how many groups.
        """
        rows = self._run(SQL.groups_at, (self.row.queue, place, served_until, most)).fetchall()
        return [self._known(row) for row in rows]
