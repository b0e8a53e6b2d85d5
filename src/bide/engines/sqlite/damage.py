"""Messages whose rows cannot be read, because another program has written to bide's tables."""

from collections.abc import Iterable
from typing import Any

from bide.engines.rules.leases import died
from bide.engines.rules.putting import follow_with_successor
from bide.engines.rules.record import Record
from bide.engines.sqlite.queue_state import SqliteQueue
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import (
    DAMAGED,
    DELAYED,
    READY,
    SQL,
    as_failures,
    json_text,
    record_of,
    shown_id,
    stored,
)
from bide.logs import logger
from bide.model.message import UNREADABLE, Failure
from bide.model.rank import (
    EVERYTHING,
    MAX_PRIORITY,
    PRIORITIES,
    PROMOTE,
    STRIPE,
    delayed_reach,
)

_log = logger("bide.sqlite")


def repair(session: Session, name: str) -> None:
    """Make dead letters of the messages that a claim would take and cannot read."""
    queue = session.look(name)
    id, run = queue.row.id, queue.run
    # In a limited queue, the first message of any line may be taken: so all are looked at.
    most = -1 if queue.row.limited else PROMOTE
    for state, reach in ((READY, EVERYTHING), (DELAYED, delayed_reach(session.now))):
        for row, record in _unreadable(run(SQL.pick, (id, state, reach, most))):
            # The rank is in another table, and says what these columns were.
            if state == READY:
                due, priority = record.rank % STRIPE, MAX_PRIORITY - record.rank // STRIPE
            else:
                due, priority = record.rank // PRIORITIES, MAX_PRIORITY - record.rank % PRIORITIES
            _bury(queue, row, record, due=due, priority=priority)
    for row, record in _unreadable(run(SQL.lapsed_whole, (id, session.now, PROMOTE))):
        _bury(queue, row, record, due=session.now, priority=0)
    if queue.row.limited:  # the group may be unreadable, and so the line unknown
        queue.lines.rebuild()


def _unreadable(rows: Iterable[Any]) -> list[tuple[Any, Record]]:
    """Return those of some rows that cannot be read, each with its columns as a record."""
    unreadable = []
    for row in rows:
        try:
            record = record_of(row)
            if record.until is not None:  # the lease that has expired becomes a failure
                lapse = Failure(record.attempt, record.until, record.holder or "", "", record.since)
                as_failures(json_text([lapse]))
        except DAMAGED:
            unreadable.append((row, Record(*row)))
    return unreadable


def _bury(queue: SqliteQueue, row: Any, record: Record, *, due: int, priority: int) -> None:
    """Make a dead letter of a message: its body is what its row says, all else is readable."""
    _log.error(
        "the row of message %r in queue %r cannot be read: it is a dead letter now, with what the "
        "row says as its body",
        record.id,
        queue.row.name,
    )
    id, failures = shown_id(record), json_text([Failure(0, queue.now, "", UNREADABLE)])
    queue.run(SQL.rewrite, (id, due, priority, stored(row), failures, record.seq))
    (readable,) = queue.load([id], bodies=False).values()
    change = died(readable, None, queue.facts)
    queue.apply([change, *follow_with_successor(change)])
