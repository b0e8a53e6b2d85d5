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
        """Keeps groups as they were before a command changes them; `None`: nothing is undone."""
        self.clear()

    def clear(self) -> None:
        """Forget all limits and groups."""
        self._queue.limited = 0
        self.limits = Limits()
        self.running = 0
        self.groups: dict[str, Group] = {}
        """By key."""
        self._heads: SortedList[Head] = SortedList()
        """In the order of serving: first those that compete now."""

    def restore(self, saved: Savepoint, queue: QueueRow) -> None:
        """Bring back the limits, and the tags of groups; line the records up again.

        Args:
            saved: what was there before the commands that are undone.
            queue: the row of the queue as it was then.
        """
        self._queue = queue
        groups = saved.groups
        self.limits, self.groups, self.running = saved.limits, groups, 0
        for key, group in saved.changed_groups.items():
            if group is None:  # there was none before
                groups.pop(key, None)
            else:
                groups[key] = group
        for group in groups.values():
            group.running, group.line = 0, SortedList()
        if self:
            self._fill()

    def begin_lines(self) -> None:
        """Line up the ready records of each group, and count its leased ones."""
        self._queue.limited = 1
        self._fill()

    def _fill(self) -> None:
        """Count leased records and line up ready ones; groups have neither yet."""
        for _, _, record in self._sets["leased"]:
            self._group(key_of(record.group)).running += 1
            self.running += 1
        for place in self._sets["ready"]:
            _, _, record = place
            self._group(key_of(record.group)).line.add(place)
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
            is_held_by_rate = self.reopens_for(group) + CREDIT > self.now
            if not (group.line or group.running or is_held_by_rate):
                del self.groups[group.key]

    def wake(self) -> None:
        """Let heads compete whose rate allows it again."""
        while (head := self._first_waiting()) is not None and head.competes_from <= self.now:
            self._stand(self.groups[head.key])

    def _first_waiting(self) -> Head | None:
        """Return the first head that waits for its rate."""
        return next(self._heads.irange((1,)), None)  # those that compete begin with 0

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
        """Give a group the head that it is to have, after a change of its line or its leases."""
        if group.head is not None:
            self._heads.remove(group.head)
        group.head = None
        if group.line and not self.is_full(group):
            rank, seq, _ = group.line[0]
            reopens = self.reopens_for(group)
            competes_from = reopens if reopens > self.now else 0
            group.head = Head(competes_from, rank // STRIPE, group.tag, rank, seq, group.key)
            self._heads.add(group.head)

    # Which message is served.

    def next(self) -> Record | None:
        """Return the record to serve now, if one may be served."""
        if not self.open or not self._heads:
            return None
        head: Head = self._heads[0]
        if head.competes_from > 0:
            return None
        record: Record
        _, _, record = self.groups[head.key].line[0]
        return record

    def opens(self) -> int | None:
        """Return when a record may be served, in microseconds; `None`: when a lease has ended."""
        if self.full or not self._heads:
            return None
        first_head: Head = self._heads[0]
        return max(self.now, self.reopens, first_head.competes_from)

    def ahead(self, record: Record, rank: int) -> int:
        """Return how many records of its group are in line before a rank."""
        group = self.groups.get(key_of(record.group))
        return 0 if group is None else int(group.line.bisect_left((rank, record.seq)))

    def _group(self, key: str) -> Group:
        """Return the group with a key: a new one if there is none."""
        if self.savepoint is not None:
            self.savepoint.save_group(key, self.groups.get(key))
        # A new group joins the next round.
        return self.groups.setdefault(key, Group(key, tag=self.limits.tag + 1))
