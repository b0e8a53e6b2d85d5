"""Messages whose rows cannot be read, because another program has written to bide's tables."""

import logging
import sqlite3
from collections.abc import Iterable
from itertools import starmap

import msgspec

from bide.engines.sqlite.limits import rebuild
from bide.engines.sqlite.records import Records
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import (
    DELAYED,
    READY,
    SQL,
    MessageRow,
    QueueRow,
    json_text,
)
from bide.model.errors import BideError
from bide.model.message import UNREADABLE, Failure
from bide.model.rank import EVERYTHING, PROMOTE, delayed_reach

DAMAGED = (ValueError, TypeError, AttributeError, msgspec.MsgspecError)
"""What reading a row raises that another program has changed."""

_STRIPE = 1 << 42

_log = logging.getLogger("bide.sqlite")


def is_damage(error: BaseException) -> bool:
    """Return whether an error is of a row that another program has changed."""
    if isinstance(error, sqlite3.OperationalError):
        return "decode to UTF-8" in str(error)
    return isinstance(error, DAMAGED) and not isinstance(error, BideError)


def as_text(data: bytes) -> str:
    """Return the content of a text column, even if it is not UTF-8."""
    return data.decode(errors="surrogateescape")


def repair(session: Session, name: str) -> None:
    """Make dead letters of the messages that a claim would take and cannot read."""
    queue = session.look(name)
    most = -1 if queue.limited else PROMOTE  # the first message of any line may be taken
    for state, reach in ((READY, EVERYTHING), (DELAYED, delayed_reach(session.now))):
        pending = session.run(SQL.pick, (queue.id, state, reach, most))
        for row in _unreadable(queue, pending):
            due, behind = row.rank >> 8, row.rank & 255
            if state == READY:
                due, behind = row.rank % _STRIPE, row.rank // _STRIPE
            _bury(session, queue, row, due, 255 - behind)
    lapsed = session.run(SQL.lapsed_whole, (queue.id, session.now, PROMOTE))
    for row in _unreadable(queue, lapsed):
        queue.lapsed += 1
        _bury(session, queue, row, session.now, 0)
    if queue.limited:  # the group may be unreadable, and so the line unknown
        rebuild(session, queue)


def _unreadable(queue: QueueRow, rows: Iterable[tuple[object, ...]]) -> list[MessageRow]:
    found = []
    for row in starmap(MessageRow, rows):
        try:
            row.read(queue.name, 0)
        except DAMAGED:
            found.append(row)
    return found


def _bury(session: Session, queue: QueueRow, row: MessageRow, due: int, priority: int) -> None:
    """Make a dead letter of a message: its body is what its row says, all else is readable."""
    _log.error(
        "the row of message %r in queue %r cannot be read: it is a dead letter now, with what the "
        "row says as its body", row.id, queue.name,
    )  # fmt: skip
    failures = json_text([Failure(0, session.now, "", UNREADABLE)])
    session.run(SQL.rewrite, (row.shown_id, due, priority, row.stored, failures, row.seq))
    records = Records(session, queue)
    (record,) = records.load([row.shown_id])
    records.die(record, None, session.now)
    if record.successor is not None:
        records.succeed(record)
