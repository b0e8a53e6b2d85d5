"""Reading the messages and counters of a queue in a SQLite file, without a change."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bide.engines.constants import COUNTED_SINGLY
from bide.engines.queue_row import QueueRow
from bide.engines.rules.change import Facts
from bide.engines.rules.record import Record
from bide.engines.sqlite.tables import (
    ACKED,
    DEAD,
    DELAYED,
    EXPIRED,
    READY,
    SQL,
    as_item,
    end_of,
    readable_record,
)
from bide.engines.sqlite.transaction import Transaction
from bide.model.commands import Scan
from bide.model.ended import KEPT_ENDS, End, Ended, Ending
from bide.model.message import stored_size
from bide.model.rank import STRIPE, delayed_reach
from bide.model.replies import AHEAD, FLOW, ClosedGroup, Flow, Pause, Sizes
from bide.model.times import HOUR_MS

if TYPE_CHECKING:
    from bide.engines.ended_pages import EndPosition, EndSpan
    from bide.engines.sqlite.limits import SqliteLines

_NOTHING_HAPPENED = (0,) * len(FLOW)
"""The counters of `Flow` in a row: it has only what this transaction adds."""


class QueueReader:
    """One queue: its row, and what reads of it. `SqliteQueue` adds the changes.

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
        """What the table has of the row: `SqliteQueue.save_row` writes it if it has changed."""
        self._closings: dict[str, int | None] = {}
        """Until when the groups are closed that this transaction has looked up; `None`: open."""
        self.changed_hours: dict[int, int] = {}
        """What the counters of hours in the table lack, by hour: single puts of before, and what
        this transaction changes."""

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
            self._lines = self._limits_of(row)
        return row

    @property
    def lines(self) -> "SqliteLines":
        """The limits of the queue; those of a queue without limits allow everything."""
        if self._lines is None:
            self._lines = self._limits_of(self.row)
        return self._lines

    def _limits_of(self, row: QueueRow) -> "SqliteLines":
        from bide.engines.sqlite.limits import SqliteLines  # here: most queues have no limits

        return SqliteLines(self._transaction, row)

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
            yield None if row is None else readable_record(row, self.now)

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

    def walk(self, scan: Scan) -> Iterator[tuple[Record, str]]:
        """Yield records to be shown, each with the cursor of the page that begins behind it."""
        from bide.engines.sqlite.scanning import QueueScanner  # here: most programs scan nothing

        return QueueScanner(self.run, self.row.id, self.now).walk(scan)

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
        this_hour = self.now // HOUR_MS
        reach = delayed_reach(self.now)
        hour_end = delayed_reach((this_hour + 1) * HOUR_MS - 1)
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
        """Return how many delayed and ready messages are due in each hour."""
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
            hours, first = self._hours(), start // HOUR_MS
            hour_end = delayed_reach((first + 1) * HOUR_MS - 1)
            hours[first] = self._between(delayed_reach(self.now), hour_end)
            for hour, count in hours.items():  # hours before the first get numbers below 0
                counted[(hour - first) * HOUR_MS // bucket] += count
            later = sum(count for number, count in counted.items() if number >= buckets)
        else:
            bounds = {
                "queue": self.row.id,
                "start": start,
                "bucket": bucket,
                "first": delayed_reach(self.now),
                "last": delayed_reach(start + bucket * buckets - 1),
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
        # A rank is a number for the priority, times STRIPE, plus the due time. So the first ready
        # record of each priority is its oldest one.
        first_rank = 0
        while row := self.run(SQL.oldest_ready, (self.row.id, first_rank)).fetchone():
            priority_number, due_time = divmod(row[0], STRIPE)
            moments.append(due_time)
            first_rank = (priority_number + 1) * STRIPE
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
            strays += self.lines.strays(ready)
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
        return [end_of(row) for row in self.run(SQL.ends, bounds)]

    def last_ends(self, span: "EndSpan", how: Ending | None) -> "Iterator[Ended | EndPosition]":
        """Yield ids with their last ends, in order: those of a span, and of a way to end."""
        from bide.engines.sqlite.scanning import QueueScanner  # here: most programs list nothing

        if not self.row.ended:
            return iter(())
        return QueueScanner(self.run, self.row.id, self.now).last_ends(span, how)
