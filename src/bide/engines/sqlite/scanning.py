"""Pages of the messages of a queue in a SQLite file, and of those that have ended.

See `bide.engines.cursor` and `bide.engines.ended_pages`.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from bide.engines.cursor import (
    BEGIN,
    Phase,
    Position,
    delayed_span,
    goes_by_set,
    phases_of,
    position,
)
from bide.engines.ended_pages import LOOKED_AT, EndPosition, EndSpan
from bide.engines.rules.record import Record
from bide.engines.sqlite.tables import (
    DAMAGED,
    SQL,
    bounds_of,
    end_of,
    readable_record,
)
from bide.model.commands import Scan
from bide.model.ended import Ended, Ending
from bide.model.errors import InvalidArgument
from bide.model.identity import range_of_ids
from bide.model.limits import MAX_NAME, MAX_RETURNED
from bide.model.message import STATES, State
from bide.model.rank import EVERYTHING

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


class QueueScanner:
    """Reads pages of a queue.

    Args:
        run: runs a statement in a transaction.
        queue: the id of the queue.
        now: the time in milliseconds.
    """

    def __init__(self, run: Callable[..., sqlite3.Cursor], queue: int, now: int) -> None:
        self._run, self._queue, self._now = run, queue, now

    def walk(self, scan: Scan) -> Iterator[tuple[Record, str]]:
        """Yield records to be shown, each with the cursor of the page that begins behind it."""
        phases = phases_of(scan)
        if phases[0].state is None and (scan.where is None or scan.where.group is None):
            begin = _BY_ID if scan.cursor in (None, BEGIN) else str(scan.cursor)
            if not begin.startswith(_BY_ID):
                raise InvalidArgument(
                    f"cursor={begin!r} is not from a scan of all messages; begin without one"
                )
            for row in self._by_id(scan, begin.removeprefix(_BY_ID)):
                yield readable_record(row, self._now), f"{_BY_ID}{row[1]}"
            return
        start = position(scan.cursor)
        if start.since is None and goes_by_set(scan):
            start = start._replace(since=self._last_return())
        for index in range(start.phase, len(phases)):
            after = start if index == start.phase else Position(index, since=start.since)
            for row in self._phase(phases[index], after, scan):
                record = readable_record(row, self._now)
                yield record, str(Position(index, record.rank, record.seq, start.since))

    def _by_id(self, scan: Scan, after: str) -> Iterable[tuple[Any, ...]]:
        """Return the rows of a scan behind an id, in the order of ids that the file has."""
        prefix = scan.prefix or ""
        # The index of ids has the order of UTF-8, unless the file was made with another encoding.
        if self._run(SQL.encoding).fetchone() == ("UTF-8",):
            first, last = range_of_ids(prefix, after)
            return self._run(SQL.scan_all, (self._queue, first, last or _BEHIND_IDS, scan.limit))
        rows = self._run(SQL.scan_all_unbounded, (self._queue, after))
        return islice((row for row in rows if row[1].startswith(prefix)), scan.limit)

    def _last_return(self) -> int:
        """Return the number of the last return in the store, 0 if there was none."""
        return int(self._run(SQL.last_return).fetchone()[0])

    def _phase(self, phase: Phase, after: Position, scan: Scan) -> Iterable[tuple[Any, ...]]:
        """Return the rows of one phase of a scan, behind a position."""
        bounds: dict[str, Any] = {
            "queue": self._queue,
            "rank": after.rank,
            "seq": after.seq,
            "limit": scan.limit,
            "reach": EVERYTHING,
            **bounds_of(scan.where),
        }
        if phase.state == "returned":
            bounds["rank"] = after.since
        elif phase.state == "rest":  # only if more have returned than are remembered
            if self._last_return() <= (after.since or 0) + MAX_RETURNED:
                return ()
        else:
            bounds["state"] = STATES.index(phase.state or "leased")
        if phase.state == "delayed":
            due = bounds["after"], bounds["before"]
            span = delayed_span(phase, after, due, self._now)
            bounds["rank"], bounds["seq"], bounds["reach"] = span
        return self._run(_SCANS.get(phase.state, SQL.scan_aside), bounds)

    def last_ends(self, span: EndSpan, how: Ending | None) -> Iterator[Ended | EndPosition]:
        """Yield ids with their last ends, in order: those of a span, and of a way to end."""
        bounds = {
            "queue": self._queue,
            "first": span.first,
            "before": span.before,
            "moment": span.behind.moment,
            "id": span.behind.id,
            "limit": LOOKED_AT,
        }
        for number, row in enumerate(self._run(SQL.last_ends, bounds), 1):
            id, moment, is_last, *end = row
            try:
                ended = Ended.of(id, end_of(end))
            except DAMAGED:
                ended = Ended.unreadable(id, moment)
            if is_last and how in (None, ended.how):
                yield ended
            if number == LOOKED_AT:
                yield EndPosition(moment, id)
