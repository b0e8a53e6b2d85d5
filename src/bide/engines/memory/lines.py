"""A limited queue of the memory engine: the lines of its groups, and whose turn it is.

Each ready message is in the line of its group, by rank. Groups take turns: a claim serves the
first message of the group with the smallest number, and gives the group the largest one. A group
whose line was empty enters right before the group that was served last, so it waits for at most
one message of each other group; several enter one behind the other. Messages without a group are a
group of their own, which has no limit of its own.
"""

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedList

from bide.engines import limiter
from bide.engines.limiter import Limits, key_of
from bide.engines.memory.group import Group, Place
from bide.engines.memory.savepoint import Savepoint
from bide.engines.queue_row import QueueRow
from bide.engines.rules.record import Record
from bide.model.message import State
from bide.model.rank import LOOK_MOST
from bide.model.times import CREDIT


class MemoryLines(limiter.Limiter):
    """The limits of a queue, and if it has any the lines of its groups.

    The caller sets `now`, in microseconds, before each command.
    """

    def __init__(self, sets: dict[State, "SortedList[Place]"], queue: QueueRow) -> None:
        super().__init__(Limits(), 0)
        self._sets, self._queue = sets, queue
        self.savepoint: Savepoint | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all limits and groups."""
        self._queue.limited = 0
        self.limits = Limits()
        self.running = 0
        self.groups: dict[str, Group] = {}
        self._turns: SortedList[tuple[int, str]] = SortedList()  # of groups that have a line

    def restore(self, saved: Savepoint, queue: QueueRow) -> None:
        """Bring back the limits, and the turns of groups; line the records up anew."""
        self._queue = queue
        groups = saved.groups
        self.limits, self.groups, self.running = saved.limits, groups, 0
        for key, group in saved.changed_groups.items():
            if group is None:
                groups.pop(key, None)
            else:
                groups[key] = group
        self._turns = SortedList()
        if not self:
            return
        for group in groups.values():
            group.running, group.line = 0, SortedList()
        for _, _, record in self._sets["leased"]:
            groups[key_of(record.group)].running += 1
            self.running += 1
        for place in self._sets["ready"]:
            groups[key_of(place[2].group)].line.add(place)
        self._turns.update((group.turn, key) for key, group in groups.items() if group.line)

    def begin(self) -> None:
        """Count the leased records of each group, and line up the ready ones."""
        self._queue.limited = 1
        for _, _, record in self._sets["leased"]:
            self._group(key_of(record.group)).running += 1
            self.running += 1
        for _, _, record in self._sets["ready"]:
            self.enter(record)

    def forget(self) -> None:
        """Forget idle groups whose rate does not hold them any more. A claim does so first."""
        for key, group in list(self.groups.items()):
            held = self.reopens_for(group) + CREDIT > self.now
            if not (group.line or group.running or held):
                del self.groups[key]

    def first_due(self, records: Iterable[Record]) -> list[Record]:
        """Return the first due record of each group that has no line, as `look_ahead` does.

        Args:
            records: all of the queue.
        """
        groups: dict[str, list[tuple[int | None, int, Record]]] = {}
        for record in records:
            if record.group is not None and record.group > self.limits.looked:
                rank = record.rank if record.state == "delayed" else None
                groups.setdefault(record.group, []).append((rank, record.seq, record))
        names = ((name, bool(self._line_of(name))) for name in sorted(groups))
        return [
            first[2] for first in self.look_ahead(names, lambda name: groups[name][: LOOK_MOST + 1])
        ]

    # What happens to records.

    def enter(self, record: Record) -> None:
        """Put a record that is ready now into the line of its group."""
        group = self._group(key_of(record.group))
        if not group.line:
            self.limits.turn += 1
            group.turn = self.limits.turn
            self._turns.add((group.turn, group.key))
        group.line.add((record.rank, record.seq, record))

    def leave(self, record: Record, *, leased: bool = False) -> None:
        """Remove a record that is not ready any more, if it is in line.

        If it is `leased` now, its group gets the last turn.
        """
        group = self._group(key_of(record.group))
        group.line.discard((record.rank, record.seq, record))
        self._turns.discard((group.turn, group.key))
        if leased:
            self.lease(group)
        if group.line:
            self._turns.add((group.turn, group.key))

    def swap(self, before: Record, after: Record) -> None:
        """Let another record take the place of one in its line."""
        line = self._group(key_of(before.group)).line
        line.remove((before.rank, before.seq, before))
        line.add((after.rank, after.seq, after))

    def stop(self, record: Record) -> None:
        """Count a record that is not leased any more."""
        self.end_leases(self._group(key_of(record.group)))

    # Whose turn it is.

    def next(self) -> Record | None:
        """Return the record to serve now, if one may be served."""
        groups = self._served() if self.open else ()
        heads = (group.line[0][2] for group in groups if self.reopens_for(group) <= self.now)
        return next(heads, None)

    def _served(self) -> Iterator[Group]:
        """Yield the groups that have a line and are not full, as they take turns.

        The rate may hold them.
        """
        groups = (self.groups[key] for _, key in self._turns)
        return (group for group in groups if not self.is_full(group))

    def opens(self) -> int | None:
        """Return when a record may be served, in microseconds; `None`: when a lease has ended."""
        if self.full:
            return None
        moments = [max(self.now, self.reopens_for(group), self.reopens) for group in self._served()]
        return min(moments, default=None)

    def ahead(self, record: Record, rank: int) -> int:
        """Return how many records of its group are in line before a rank."""
        return int(self._line_of(record.group).bisect_left((rank, record.seq)))

    def _line_of(self, group: str | None) -> "SortedList[Place]":
        waiting = self.groups.get(key_of(group))
        return SortedList() if waiting is None else waiting.line

    def _group(self, key: str) -> Group:
        if self.savepoint is not None:
            self.savepoint.save_group(key, self.groups.get(key))
        return self.groups.setdefault(key, Group(key))
