"""A limited queue: the lines of its groups, and whose turn it is.

`bide.engines.memory.lines` says what is done here, and why. What changes in a transaction is kept
in rows here, and written before the tables are asked for the next turn, and at the end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from bide.engines.sqlite.rows import GroupRow, LimitRow
from bide.engines.sqlite.statements import SQL
from bide.model.rank import EVERYTHING, GAP, PROMOTE, after_service
from bide.model.replies import Limited
from bide.model.times import CREDIT, served

NONE, TURNS, RESTING, IDLE = range(4)

Run = Callable[..., Any]


def key_of(group: str | None) -> str:
    """Return the key of a group."""
    return "" if group is None else f"={group}"


class Lines:
    """The lines of one limited queue, in one transaction.

    Args:
        run: executes a statement.
        run_many: executes one several times.
        row: the limits of the queue.
        now: the time in microseconds.
    """

    def __init__(self, run: Run, run_many: Run, row: LimitRow, now: int) -> None:
        self._run, self._run_many = run, run_many
        self.row = row
        self.now = now
        self.running = 0
        """How many messages of the queue are leased; the caller sets it before it asks."""
        self._groups: dict[str, GroupRow] = {}
        self._changed: set[str] = set()
        self._saved = msgspec.structs.astuple(row)

    def begin(self, leased: Iterable[tuple[str | None, int]]) -> None:
        """Count how many messages of each group are leased, and line up the first ready ones."""
        for group, count in leased:
            self._changing(key_of(group)).running += count
        self.row.rank = self.row.seq = -1
        self.line_up(PROMOTE)

    # What happens to messages.

    def enter(self, places: Sequence[tuple[str | None, int, int]]) -> None:
        """Put messages that are ready now into the lines of their groups: (group, rank, seq)."""
        rows = [(self.row.queue, key_of(group), rank, seq) for group, rank, seq in places]
        if not rows:
            return
        self._run_many(SQL.insert_line, rows)
        for key, count in Counter(row[1] for row in rows).items():
            group = self._changing(key)
            if not group.waiting:
                self.row.turn += 1
                group.turn = self.row.turn
            group.waiting += count

    def line_up(self, limit: int) -> None:
        """Put up to `limit` messages into lines that were ready before the queue was limited."""
        row = self.row
        if row.rank is None:
            return
        found = self._run(SQL.unlined, (row.queue, row.rank, row.seq, limit)).fetchall()
        self.enter([(group, rank, seq) for group, rank, seq, lined in found if not lined])
        row.rank, row.seq = found[-1][1:3] if len(found) == limit else (None, None)

    def leave(self, key: str, rank: int, seq: int) -> None:
        """Remove a message that is not ready any more, if it stood in the line of this group."""
        if self._run(SQL.drop_line, (self.row.queue, key, rank, seq)).rowcount:
            self._changing(key).waiting -= 1

    def start(self, key: str) -> None:
        """Count a message that is leased now, and give its group the last turn."""
        row, mine = self.row, self._changing(key)
        row.turn = after_service(row.turn)
        mine.turn = row.turn + GAP
        mine.running += 1
        self.running += 1
        row.last = served(row.last, row.rate, self.now)
        mine.last = served(mine.last, row.group_rate, self.now)

    def stop(self, groups: Iterable[str | None]) -> None:
        """Count messages that are not leased any more, by their groups."""
        if self.full:
            self.row.freed = self.now // 1000
        for key, count in Counter(map(key_of, groups)).items():
            group = self._changing(key)
            if self._is_full(group):
                group.freed = self.now // 1000
            group.running -= count
            self.running -= count

    # Whose turn it is.

    def forget(self) -> None:
        """Forget idle groups whose rate does not hold them any more."""
        self.write()
        rate = self.row.group_rate
        rank = self.now - CREDIT - rate if rate else EVERYTHING
        bounds = {"queue": self.row.queue, "rank": rank, "limit": PROMOTE}
        if self._run(SQL.forget_groups, bounds).rowcount:
            self._groups.clear()

    def wake(self) -> None:
        """Let groups take turns whose rate allows it again."""
        self.write()
        rate = self.row.group_rate
        for group in self._standing(RESTING, self.now - rate if rate else EVERYTHING, PROMOTE):
            self._changing(group.key)
        self.write()

    def next(self) -> GroupRow | None:
        """Return the group whose first message may be served now."""
        return self._first(TURNS) if self.open else None

    def freed(self, key: str, due: int) -> int:
        """Return when the last limit let the first message of a group go, in milliseconds."""
        group = self._group(key)
        opens = -(-max(self._opens, self._opens_for(group)) // 1000)
        freed = max(self.row.freed, group.freed, opens)
        return freed if freed > due else 0

    def opens(self) -> int | None:
        """Return when a message may be served, in microseconds; `None`: when a lease has ended."""
        if self.full:
            return None
        self.wake()
        if self._first(TURNS) is not None:
            return max(self.now, self._opens)
        group = self._first(RESTING)
        return None if group is None else max(self._opens_for(group), self._opens)

    def limited(self, group: str | None) -> Limited | None:
        """Return which limit holds a message of a group back."""
        row, mine = self.row, self._group(key_of(group))
        if self.full:
            return Limited("limit", row.limit, self.running)
        if self._is_full(mine):
            return Limited("group_limit", row.group_limit, mine.running)
        opens = self._opens_for(mine)
        if self._opens > max(self.now, opens):
            return Limited("rate", row.rate, self.running, -(-self._opens // 1000))
        if opens > self.now:
            return Limited("group_rate", row.group_rate, mine.running, -(-opens // 1000))
        return None

    def ahead(self, group: str | None, rank: int, seq: int, limit: int) -> int:
        """Return how many messages of a group are in line before a place, up to a limit."""
        bounds = (self.row.queue, key_of(group), rank, seq, limit)
        return len(self._run(SQL.in_line_before, bounds).fetchall())

    def strays(self, ready: int, leased: Iterable[tuple[str | None, int]]) -> int:
        """Return how many messages and groups are not as they are to be, by a count of all.

        Args:
            ready: how many messages are ready.
            leased: how many messages of each group are.
        """
        self.write()
        groups = self._run(SQL.recount_groups, (self.row.queue,)).fetchall()
        lines = self._run(SQL.recount_lines, (self.row.queue,)).fetchall()
        in_line = {key: count for key, count, _ in lines}
        running = {key_of(group): count for group, count in leased}
        strays = sum(count - good for _, count, good in lines)
        if self.row.rank is None:
            strays += abs(ready - sum(in_line.values()))
        for key, counted, waiting in groups:
            strays += counted != running.pop(key, 0)
            strays += waiting != in_line.pop(key, 0)
        return int(strays + len(running) + len(in_line))

    def restand(self) -> None:
        """Let groups take turns that a changed limit holds no more: those with leases may be full.

        Groups that it holds now are found when their turn has come.
        """
        self.write()
        for group in self._standing(NONE, limit=EVERYTHING):
            self._changing(group.key)

    # The tables.

    def write(self) -> None:
        """Write the groups that have changed."""
        rows = []
        for key in self._changed:
            group = self._groups[key]
            standing = self._standing_of(group)
            rank = group.turn if standing == TURNS else group.last
            columns = msgspec.structs.astuple(group)
            rows.append((*columns, self.row.queue, standing, rank))
        self._changed.clear()
        if rows:
            self._run_many(SQL.save_group, rows)

    def save(self) -> None:
        """Write all that has changed."""
        self.write()
        values = msgspec.structs.astuple(self.row)
        if values != self._saved:
            self._run(SQL.save_limit, values)
            self._saved = values

    @property
    def open(self) -> bool:
        """Whether the limits of the queue allow a message now."""
        return not self.full and self._opens <= self.now

    @property
    def full(self) -> bool:
        """Whether no more messages may be leased."""
        return 0 < self.row.limit <= self.running

    @property
    def _opens(self) -> int:
        return self.row.last + self.row.rate if self.row.rate else 0

    def _is_full(self, group: GroupRow) -> bool:
        return bool(group.key) and 0 < self.row.group_limit <= group.running

    def _opens_for(self, group: GroupRow) -> int:
        return group.last + self.row.group_rate if group.key and self.row.group_rate else 0

    def _standing_of(self, group: GroupRow) -> int:
        if not group.waiting:
            return NONE if group.running else IDLE
        if self._is_full(group):
            return NONE
        return RESTING if self._opens_for(group) > self.now else TURNS

    def _group(self, key: str) -> GroupRow:
        group = self._groups.get(key)
        if group is None:
            row = self._run(SQL.load_group, (self.row.queue, key)).fetchone()
            group = self._groups[key] = GroupRow(*row) if row is not None else GroupRow(key)
        return group

    def _changing(self, key: str) -> GroupRow:
        self._changed.add(key)
        return self._group(key)

    def _first(self, standing: int) -> GroupRow | None:
        """Return the first group of a standing; those that stand there no more are put right."""
        self.write()
        for _ in range(PROMOTE):
            group = next(iter(self._standing(standing)), None)
            if group is None or self._standing_of(group) == standing:
                return group
            self._changing(group.key)
            self.write()
        return None

    def _standing(self, standing: int, reach: int = EVERYTHING, limit: int = 1) -> list[GroupRow]:
        """Return the first groups of a standing."""
        bounds = (self.row.queue, standing, reach, limit)
        rows = self._run(SQL.groups_standing, bounds).fetchall()
        return [self._groups.setdefault(row[0], GroupRow(*row)) for row in rows]
