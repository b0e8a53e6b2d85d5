"""Reading the messages and counters of a queue in a SQLite file, without a change."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from bide.engines.constants import COUNTED_SINGLY
from bide.engines.cursor import (
    BEGIN,
    Phase,
    Position,
    delayed_span,
    goes_by_set,
    phases_of,
    position,
)
from bide.engines.queue_row import QueueRow
from bide.engines.rules.change import Facts
from bide.engines.rules.record import Record
from bide.engines.sqlite.limits import SqliteLines
from bide.engines.sqlite.tables import (
    ACKED,
    DEAD,
    DELAYED,
    EXPIRED,
    READY,
    SQL,
    as_failures,
    as_item,
    bounds_of,
    shown,
)
from bide.engines.sqlite.transaction import Transaction
from bide.model.commands import Scan
from bide.model.ended import ENDINGS, KEPT_ENDS, End
from bide.model.errors import InvalidArgument
from bide.model.identity import range_of_ids
from bide.model.limits import MAX_NAME, MAX_RETURNED
from bide.model.message import STATES, State, stored_size
from bide.model.rank import EVERYTHING, STRIPE, delayed_reach
from bide.model.replies import AHEAD, FLOW, ClosedGroup, Flow, Pause, Sizes
from bide.model.times import HOUR_MS

_BY_ID = "id:"
"""The beginning of cursors of scans in the order of ids: the id of the last message follows."""

_BEHIND_IDS = "\U0010ffff" * MAX_NAME
"""A text that comes after any id."""

_SCANS: dict[State | Literal["returned", "rest"] | None, str] = {
    None: SQL.scan_group,
    "delayed": SQL.scan_pending,
    "ready": SQL.scan_pending,
    "leased": SQL.scan_leased,
    "returned": SQL.scan_returned,
    "rest": SQL.scan_rest,
}
"""The statement of each phase of a scan; other phases have `scan_aside`."""

_NOTHING_HAPPENED = (0,) * len(FLOW)
"""The counters of `Flow` in a row: it has only what this transaction adds."""


class QueueReader:
    """One queue: its row, and what reads of it without a change.

    Args:
        transaction: in which it is read.
        name: of the queue.
    """

    def __init__(self, transaction: Transaction, name: str) -> None:
        self.name, self.now = name, transaction.now
        self.run: Callable[..., sqlite3.Cursor] = transaction.run
        self.run_many: Callable[..., sqlite3.Cursor] = transaction.run_many
        self._transaction = transaction
        self._lines: SqliteLines | None = None
        self.values_before: tuple[Any, ...] = ()
        """What the table has of the row."""
        self._closings: dict[str, int | None] = {}
        """Until when the groups are closed that this transaction has looked up; `None`: open."""
        self.changed_hours: dict[int, int] = {}
        """The changes of this transaction to the counters of hours."""

    @cached_property
    def row(self) -> QueueRow:
        """The row of the queue, read when it is needed; with the id 0 if there is none."""
        values = self.run(SQL.load_queue, (self.name,)).fetchone()
        if values is None:
            row = QueueRow(name=self.name)
            self.values_before = row.values()
            return row
        row, self.values_before = QueueRow(*values[:-1]), values[2:-1] + _NOTHING_HAPPENED
        # `put_one` leaves the counters as they are; the last column says whether it has.
        if single_puts := self._transaction.single_puts(row.id, are_there=bool(values[-1])):
            self.changed_hours = single_puts
            row.put += sum(single_puts.values())
            row.delayed += sum(single_puts.values())
        if row.limited:  # they begin with the counts before any change
            self._lines = SqliteLines(self._transaction, row)
        return row

    @property
    def lines(self) -> SqliteLines:
        """The limits of the queue; those of a queue without limits allow everything."""
        if self._lines is None:
            self._lines = SqliteLines(self._transaction, self.row)
        return self._lines

    @property
    def facts(self) -> Facts:
        """What the rules need to know of the queue."""
        row = self.row
        if not row.closed:
            return Facts(self.now, row.keep, row.history, row.result_ttl)
        return Facts(self.now, row.keep, row.history, row.result_ttl, self._closes)

    def _closes(self, group: str) -> int | None:
        """Return until when a group is closed, in Unix milliseconds; `None`: it is open."""
        if group not in self._closings:
            row = self.run(SQL.closed_until, (self.row.id, group)).fetchone()
            self._closings[group] = None if row is None else int(row[0])
        return self._closings[group]

    def closed_groups(self, after: ClosedGroup, limit: int) -> list[ClosedGroup]:
        """Return the first closed groups after one, in the order in which they open."""
        if not self.row.closed:
            return []
        bounds = (self.row.id, after.until, after.group, limit)
        return [ClosedGroup(*row) for row in self.run(SQL.closed_groups, bounds)]

    def count_closed(self) -> int:
        """Count the groups that are closed now."""
        return self.number(SQL.count_closed, self.row.id, self.now) if self.row.closed else 0

    def number(self, statement: str, *parameters: Any) -> int:
        """Return the number that a statement selects."""
        return int(self.run(statement, parameters).fetchone()[0])

    def read(self, ids: Sequence[str]) -> Iterator[Record | None]:
        """Yield the records with some ids as they are, to be shown only."""
        for id in ids:
            row = self.run(SQL.by_id, (self.name, id)).fetchone()
            yield None if row is None else shown(row, self.now)

    def next_due(self, limit: int) -> list[tuple[int, int, str | None]]:
        """Return rank, sequence number and group of the first delayed records that are due."""
        bounds = (self.row.id, delayed_reach(self.now), limit)
        return self.run(SQL.first_due, bounds).fetchall()

    def ready_before(self, record: Record, rank: int) -> int:
        """Count the ready records before a rank; in a limited queue, those of the same group."""
        if self.row.limited:
            return self.lines.ahead(record, rank, AHEAD + 1)
        bounds = (self.row.id, rank, record.seq, AHEAD + 1)
        return len(self.run(SQL.ready_before, bounds).fetchall())

    def pauses(self) -> list[Pause]:
        """Return the last pauses of the queue."""
        return [Pause(*row) for row in self.run(SQL.pauses, (self.row.id,))]

    # Scans.

    def walk(self, scan: Scan) -> Iterator[tuple[Record, str]]:
        """Yield records to be shown, each with the cursor of the page that begins behind it."""
        phases = phases_of(scan)
        if phases[0].state is None and (scan.where is None or scan.where.group is None):
            begin = _BY_ID if scan.cursor in (None, BEGIN) else str(scan.cursor)
            if not begin.startswith(_BY_ID):
                raise InvalidArgument(
                    f"cursor={begin!r} comes from no scan of all; begin without one"
                )
            for row in self._by_id(scan, begin.removeprefix(_BY_ID)):
                yield shown(row, self.now), f"{_BY_ID}{row[1]}"
            return
        start = position(scan.cursor)
        if start.since is None and goes_by_set(scan):
            start = start._replace(since=self.last_return())
        for index in range(start.phase, len(phases)):
            after = start if index == start.phase else Position(index, since=start.since)
            for row in self._phase(phases[index], after, scan):
                record = shown(row, self.now)
                yield record, str(Position(index, record.rank, record.seq, start.since))

    def _by_id(self, scan: Scan, after: str) -> Iterable[tuple[Any, ...]]:
        """Return the rows of a scan behind an id, in the order of ids that the file has."""
        prefix = scan.prefix or ""
        # The index of ids has the order of UTF-8, unless the file was made with another encoding.
        if self.run(SQL.encoding).fetchone() == ("UTF-8",):
            first, last = range_of_ids(prefix, after)
            return self.run(SQL.scan_all, (self.row.id, first, last or _BEHIND_IDS, scan.limit))
        rows = self.run(SQL.scan_all_unbounded, (self.row.id, after))
        return islice((row for row in rows if row[1].startswith(prefix)), scan.limit)

    def last_return(self) -> int:
        """Return the number of the last return in the store, 0 if there was none."""
        return self.number(SQL.last_return)

    def _phase(self, phase: Phase, after: Position, scan: Scan) -> Iterable[tuple[Any, ...]]:
        """Return the rows of one phase of a scan, behind a position."""
        bounds: dict[str, Any] = {
            "queue": self.row.id,
            "rank": after.rank,
            "seq": after.seq,
            "limit": scan.limit,
            "reach": EVERYTHING,
            **bounds_of(scan.where),
        }
        if phase.state == "returned":
            bounds["rank"] = after.since
        elif phase.state == "rest":  # only if more have returned than are remembered
            if self.last_return() <= (after.since or 0) + MAX_RETURNED:
                return ()
        else:
            bounds["state"] = STATES.index(phase.state or "leased")
        if phase.state == "delayed":
            due = bounds["after"], bounds["before"]
            span = delayed_span(phase, after, due, self.now)
            bounds["rank"], bounds["seq"], bounds["reach"] = span
        return self.run(_SCANS.get(phase.state, SQL.scan_aside), bounds)

    # Counters.

    def flow(self) -> Flow:
        """Return the counters of what has happened; the row has what this transaction adds."""
        added = self.row.flow()
        counted = self.run(SQL.load_flow, (self.row.id,)).fetchone()
        if counted is None:
            return added
        return Flow(
            *[getattr(added, name) + count for name, count in zip(FLOW, counted, strict=True)]
        )

    def due(self) -> int:
        """Count the delayed records that are due.

        Either those or the ones that fall due later in this hour, whichever are fewer: the counters
        of hours have the rest.
        """
        if not self.row.delayed:
            return 0
        this_hour = self.now // HOUR_MS + 1  # rounded up, as the counters are named
        reach, hour_end = delayed_reach(self.now), delayed_reach(this_hour * HOUR_MS)
        most = COUNTED_SINGLY
        while (due := self._between(-1, reach, most)) == most:
            coming = self._between(reach, hour_end, most)
            if coming < most:
                hours = self._hours().items()
                until_hour_end = sum(count for hour, count in hours if hour <= this_hour)
                return until_hour_end - self.row.ready - coming
            most *= 4
        return due

    def _between(self, after: int, until: int, most: int = -1) -> int:
        """Count the delayed messages between two ranks; stop at `most` of them (-1: never)."""
        return self.number(SQL.count_delayed, self.row.id, after, until, most)

    def _hours(self) -> Counter[int]:
        """Return how many delayed and ready messages are due in each hour, rounded up."""
        hours = Counter(dict(self.run(SQL.hours, (self.row.id,))))
        hours.update(self.changed_hours)
        return hours

    def due_in(self, start: int, bucket: int, buckets: int) -> tuple[list[int], int]:
        """Count the records that are due after now, in each of some spans and after the last.

        Args:
            start: of the first span, in Unix milliseconds.
            bucket: the length of a span, in milliseconds.
            buckets: how many spans there are.
        """
        counted: Counter[int] = Counter()  # by the number of the span, from 0
        if bucket % HOUR_MS == 0:  # by the counters of hours, but for the hour that has begun
            hours, first = self._hours(), start // HOUR_MS + 1
            hours[first] = self._between(delayed_reach(self.now), delayed_reach(first * HOUR_MS))
            for hour, count in hours.items():  # hours before the first get numbers below 0
                counted[(hour - first) * HOUR_MS // bucket] += count
            later = sum(count for number, count in counted.items() if number >= buckets)
        else:
            bounds = {
                "queue": self.row.id,
                "start": start,
                "bucket": bucket,
                "first": delayed_reach(self.now),
                "last": delayed_reach(start + bucket * buckets),
            }
            counted.update(dict(self.run(SQL.forecast, bounds).fetchall()))
            later = self.row.delayed - self.due() - counted.total()
        return [counted[number] for number in range(buckets)], later

    def oldest(self, due: int) -> int | None:
        """Return the earliest due time of due records; `None`: none is due.

        Args:
            due: how many delayed records are due.
        """
        moments = [self.number(SQL.next_due, self.row.id)] if due else []
        # Of each priority, the ready record with the lowest rank is the oldest.
        first_rank = 0
        while row := self.run(SQL.oldest_ready, (self.row.id, first_rank)).fetchone():
            (rank,) = row
            moments.append(rank % STRIPE)
            first_rank = (rank // STRIPE + 1) * STRIPE
        return min(moments, default=None)

    def recount(self, due: int) -> tuple[Sizes, int]:
        """Count the records themselves, and those that are in no place or in two.

        Args:
            due: how many delayed records are due, and so count as ready.

        Returns:
            The records of each state; and the strays: records, counters and successors that do not
            fit together.
        """
        row, bounds = self.row, (self.row.id,)
        pending = dict(self.run(SQL.recount_pending, bounds).fetchall())
        leased = self.number(SQL.recount_leased, row.id)
        aside = dict(self.run(SQL.recount_aside, bounds).fetchall())
        total, strays = self.run(SQL.recount_messages, bounds).fetchone()
        delayed, ready = pending.get(DELAYED, 0), pending.get(READY, 0)
        if row.limited:
            strays += self.lines.strays(ready, self.run(SQL.leased_by_group, bounds))
        dead, kept = aside.get(DEAD, 0), aside.get(ACKED, 0) + aside.get(EXPIRED, 0)
        places = sum(pending.values()) + leased + sum(aside.values())
        strays += abs(places - total) + abs(kept - row.kept)
        successors, without_lease = self.run(SQL.recount_successors, bounds).fetchone()
        strays += abs(successors - row.successors) + without_lease
        strays += abs(self.number(SQL.count_closed, row.id, -1) - row.closed)
        differences = self._hours()  # what the counters of hours have more than there is
        differences.subtract(hour for (hour,) in self.run(SQL.recount_hours, bounds))
        strays += sum(map(abs, differences.values()))
        return Sizes(delayed - due, ready + due, leased, dead), strays

    def stored(self) -> int:
        """Add up the bytes of the records, their successors, and the ends that are remembered."""
        items = [as_item(text) for (text,) in self.run(SQL.all_successors, (self.row.id,))]
        records_size = self.number(SQL.stored, self.row.id)
        ends_size = self.number(SQL.stored_ends, self.row.id)
        return records_size + ends_size + sum(map(stored_size, items))

    def ends_of(self, id: str) -> list[End]:
        """Return how messages with an id ended, the newest first."""
        if not self.row.ended:
            return []
        bounds = {
            "queue": self.row.id,
            "id": id,
            "since": self.now - self.row.ends_kept,
            "fresh": self.now - self.row.result_ttl,
            "limit": KEPT_ENDS,
        }
        return [
            End(
                how=ENDINGS[how],
                moment=moment,
                by=by,
                due=due,
                attempt=attempt,
                since=since,
                failures=as_failures(failures) if failures else (),
                result=None if result is None else result.encode(),
            )
            for how, moment, by, due, attempt, since, failures, result in self.run(SQL.ends, bounds)
        ]
