"""A limited queue of the memory engine: see `bide.engines.limiter`."""

from sortedcontainers import SortedList

from bide.engines import limiter
from bide.engines.limiter import Limits, key_of
from bide.engines.memory.group import Group, Head, Place
from bide.engines.memory.savepoint import Savepoint
from bide.engines.queue_row import QueueRow
from bide.engines.rules.record import Record
from bide.model.message import State
from bide.model.rank import STRIPE
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
        self._heads: SortedList[Head] = SortedList()

    def restore(self, saved: Savepoint, queue: QueueRow) -> None:
        """Bring back the limits, and the tags of groups; line the records up anew."""
        self._queue = queue
        groups = saved.groups
        self.limits, self.groups, self.running = saved.limits, groups, 0
        for key, group in saved.changed_groups.items():
            if group is None:
                groups.pop(key, None)
            else:
                groups[key] = group
        for group in groups.values():
            group.running, group.line = 0, SortedList()
        if self:
            self._fill()

    def begin(self) -> None:
        """Count the leased records of each group, and line up the ready ones."""
        self._queue.limited = 1
        self._fill()

    def _fill(self) -> None:
        for _, _, record in self._sets["leased"]:
            self._group(key_of(record.group)).running += 1
            self.running += 1
        for place in self._sets["ready"]:
            self._group(key_of(place[2].group)).line.add(place)
        self.reopen()

    def reopen(self) -> None:
        """Give each group the head that it is to have."""
        self._heads = SortedList()
        for group in self.groups.values():
            group.head = None
            self._stand(group)

    def forget(self) -> None:
        """Forget idle groups whose rate does not hold them any more. A claim does so first."""
        for group in list(self.groups.values()):
            held = self.reopens_for(group) + CREDIT > self.now
            if not (group.line or group.running or held):
                del self.groups[group.key]

    def wake(self) -> None:
        """Let heads compete whose rate allows it again."""
        while (head := self._first_resting()) is not None and head[0] <= self.now:
            self._stand(self.groups[head[-1]])

    def _first_resting(self) -> Head | None:
        return next(self._heads.irange((1,)), None)

    # What happens to records.

    def enter(self, record: Record) -> None:
        """Put a record that is ready now into the line of its group."""
        group = self._group(key_of(record.group))
        group.line.add((record.rank, record.seq, record))
        self._stand(group)

    def leave(self, record: Record, *, leased: bool = False) -> None:
        """Remove a record from its line, if it is there; count it if it is `leased` now."""
        group = self._group(key_of(record.group))
        group.line.discard((record.rank, record.seq, record))
        if leased:
            self.serve(group)
        self._stand(group)

    def swap(self, before: Record, after: Record) -> None:
        """Let another record take the place of one in its line."""
        line = self._group(key_of(before.group)).line
        line.remove((before.rank, before.seq, before))
        line.add((after.rank, after.seq, after))

    def stop(self, record: Record) -> None:
        """Count a record that is not leased any more."""
        group = self._group(key_of(record.group))
        group.running -= 1
        self.running -= 1
        self._stand(group)

    def _stand(self, group: Group) -> None:
        """Give a group the head that it is to have."""
        if group.head is not None:
            self._heads.remove(group.head)
        group.head = None
        if group.line and not self.is_full(group):
            rank, seq, _ = group.line[0]
            reopens = self.reopens_for(group)
            competes_from = reopens if reopens > self.now else 0
            group.head = (competes_from, rank // STRIPE, group.tag, rank, seq, group.key)
            self._heads.add(group.head)

    # Which message is served.

    def next(self) -> Record | None:
        """Return the record to serve now, if one may be served."""
        if not (self.open and self._heads and self._heads[0][0] == 0):
            return None
        record: Record = self.groups[self._heads[0][-1]].line[0][2]
        return record

    def opens(self) -> int | None:
        """Return when a record may be served, in microseconds; `None`: when a lease has ended."""
        if self.full or not self._heads:
            return None
        competes_from: int = self._heads[0][0]
        return max(self.now, self.reopens, competes_from)

    def ahead(self, record: Record, rank: int) -> int:
        """Return how many records of its group are in line before a rank."""
        group = self.groups.get(key_of(record.group))
        return 0 if group is None else int(group.line.bisect_left((rank, record.seq)))

    def _group(self, key: str) -> Group:
        if self.savepoint is not None:
            self.savepoint.save_group(key, self.groups.get(key))
        return self.groups.setdefault(key, Group(key, tag=self.limits.tag + 1))
