"""A limited queue of the memory engine: the lines of its groups, and whose turn it is.

Each ready message stands in the line of its group, by rank. Groups take turns: a claim serves the
first message of the group with the smallest number, and gives the group the largest one. A group
whose line was empty enters right before the group that was served last, so it waits for at most
one message of each other group; several enter one behind the other. Messages without a group are a
group of their own, which has no limit of its own.
"""

from collections.abc import Iterable, Iterator

import msgspec
from sortedcontainers import SortedList

from bide.engines.memory.record import Record
from bide.model.rank import GAP, LOOK_GROUPS, LOOK_MESSAGES, LOOK_MOST, after_service, ready_rank
from bide.model.replies import Limited
from bide.model.times import CREDIT, LIMITS, served

_Place = tuple[int, int, Record]


class Group(msgspec.Struct, gc=False):
    """A group of a limited queue that has messages in line or leased, or whose rate holds it."""

    key: str
    """Its name behind "="; empty for messages without a group, which no limit of a group binds."""
    line: "SortedList[_Place]"
    running: int = 0
    turn: int = 0
    last: int = 0
    """When its last message counts as served (see `bide.model.times`), in microseconds."""
    freed: int = 0
    """When a lease of it ended last while it was full, in milliseconds."""


class Lines:
    """The limits of a queue, and if it has any the lines of its groups.

    The caller sets `now`, in microseconds, before each command.
    """

    def __init__(self) -> None:
        self.now = 0
        self.limit = self.rate = self.group_limit = self.group_rate = 0
        self._clear()

    def _clear(self) -> None:
        self.running = 0
        self._last = 0
        self._freed = 0
        self._turn = 0
        self._looked = ""  # the last group looked ahead at; empty: there were no more
        self._groups: dict[str, Group] = {}
        self._turns: SortedList[tuple[int, str]] = SortedList()  # of groups that have a line

    def __bool__(self) -> bool:
        """Whether the queue is limited."""
        return bool(self.limit or self.rate or self.group_limit or self.group_rate)

    def configure(
        self, limits: dict[str, int], ready: Iterable[Record], leased: Iterable[Record]
    ) -> bool:
        """Change limits; return whether one has changed.

        Args:
            limits: those to change.
            ready: all ready records of the queue, for a queue that was not limited before.
            leased: all leased ones.
        """
        before = [getattr(self, name) for name in LIMITS]
        was_limited, was_full = bool(self), self._full
        for name, value in limits.items():
            setattr(self, name, value)
        if [getattr(self, name) for name in LIMITS] == before:
            return False
        if not self:
            self._clear()
        elif not was_limited:
            for record in leased:
                self._group(record).running += 1
                self.running += 1
            for record in ready:
                self.enter(record)
        elif was_full and not self._full:
            self._freed = self.now // 1000
        return True

    def forget(self) -> None:
        """Forget idle groups whose rate does not hold them any more. A claim does so first."""
        for key, group in list(self._groups.items()):
            held = self._opens_for(group) + CREDIT > self.now
            if not (group.line or group.running or held):
                del self._groups[key]

    def look_ahead(self, records: Iterable[Record]) -> list[Record]:
        """Return the first due record of each group that has no line: see `bide.model.rank`.

        Args:
            records: all of the queue.
        """
        groups: dict[str, list[Record]] = {}
        for record in records:
            if record.group is not None and record.group > self._looked:
                groups.setdefault(record.group, []).append(record)
        found: list[Record] = []
        seen = 0
        self._looked = ""
        for count, name in enumerate(sorted(groups), 1):
            group = self._groups.get(f"={name}")
            if group is None or not group.line:
                records = groups[name]
                seen += min(len(records), LOOK_MOST + 1)
                due = [r for r in records if r.state == "delayed" and r.due <= self.now // 1000]
                if due and len(records) <= LOOK_MOST:
                    found.append(min(due, key=lambda r: (ready_rank(r.due, r.priority), r.seq)))
            if count == LOOK_GROUPS or seen >= LOOK_MESSAGES:
                self._looked = name
                break
        return sorted(found, key=lambda r: (r.rank, r.seq))

    # What happens to records.

    def enter(self, record: Record) -> None:
        """Put a record that is ready now into the line of its group."""
        group = self._group(record)
        if not group.line:
            self._turn += 1
            group.turn = self._turn
            self._turns.add((group.turn, group.key))
        group.line.add((record.rank, record.seq, record))

    def leave(self, record: Record) -> None:
        """Remove a record that is not ready any more."""
        group = self._group(record)
        group.line.remove((record.rank, record.seq, record))
        if not group.line:
            self._turns.remove((group.turn, group.key))

    def start(self, record: Record) -> None:
        """Count a record that is leased now, and give its group the last turn."""
        group = self._group(record)
        self._turn = after_service(self._turn)
        self._turns.discard((group.turn, group.key))
        group.turn = self._turn + GAP
        if group.line:
            self._turns.add((group.turn, group.key))
        group.running += 1
        self.running += 1
        self._last = served(self._last, self.rate, self.now)
        group.last = served(group.last, self.group_rate, self.now)

    def stop(self, record: Record) -> None:
        """Count a record that is not leased any more."""
        group = self._group(record)
        if self._full:
            self._freed = self.now // 1000
        if self._is_full(group):
            group.freed = self.now // 1000
        group.running -= 1
        self.running -= 1

    # Whose turn it is.

    def next(self) -> Record | None:
        """Return the record to serve now, if one may be served."""
        groups = self._served() if self.open else ()
        heads = (group.line[0][2] for group in groups if self._opens_for(group) <= self.now)
        return next(heads, None)

    def _served(self) -> Iterator[Group]:
        """Yield the groups that have a line and are not full, as they take turns.

        The rate may hold them.
        """
        groups = (self._groups[key] for _, key in self._turns)
        return (group for group in groups if not self._is_full(group))

    def freed(self, record: Record) -> int:
        """Return when the last limit let a record go that is to be served, in milliseconds; 0:
        none has held it since it was due."""
        group = self._group(record)
        opens = -(-max(self._opens, self._opens_for(group)) // 1000)
        freed = max(self._freed, group.freed, opens)
        return freed if freed > record.due else 0

    def opens(self) -> int | None:
        """Return when a record may be served, in microseconds; `None`: when a lease has ended."""
        if self._full:
            return None
        moments = [max(self.now, self._opens_for(group), self._opens) for group in self._served()]
        return min(moments, default=None)

    def limited(self, record: Record) -> Limited | None:
        """Return which limit holds a record back."""
        group = self._groups.get(_key(record)) or Group(_key(record), SortedList())
        if self._full:
            return Limited("limit", self.limit, self.running)
        if self._is_full(group):
            return Limited("group_limit", self.group_limit, group.running)
        opens = self._opens_for(group)
        if self._opens > max(self.now, opens):
            return Limited("rate", self.rate, self.running, -(-self._opens // 1000))
        if opens > self.now:
            return Limited("group_rate", self.group_rate, group.running, -(-opens // 1000))
        return None

    def ahead(self, record: Record, rank: int) -> int:
        """Return how many records of its group are in line before a rank."""
        group = self._groups.get(_key(record))
        return group.line.bisect_left((rank, record.seq)) if group is not None else 0

    @property
    def open(self) -> bool:
        """Whether the limits of the queue allow a message now."""
        return not self._full and self._opens <= self.now

    @property
    def _full(self) -> bool:
        return 0 < self.limit <= self.running

    @property
    def _opens(self) -> int:
        """From when the rate of the queue allows a message, in microseconds; 0: at any time."""
        return self._last + self.rate if self.rate else 0

    def _is_full(self, group: Group) -> bool:
        return bool(group.key) and 0 < self.group_limit <= group.running

    def _opens_for(self, group: Group) -> int:
        return group.last + self.group_rate if group.key and self.group_rate else 0

    # Groups.

    def _group(self, record: Record) -> Group:
        key = _key(record)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, SortedList())
        return group


def _key(record: Record) -> str:
    return "" if record.group is None else f"={record.group}"
