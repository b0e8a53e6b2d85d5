"""Claim: lease the next due messages; on the way take back what lapsed and expire what is late."""

from collections.abc import Sequence
from typing import Any

from bide.engines.sqlite.session import (
    DELAYED,
    EXPIRED,
    LEASED,
    READY,
    Place,
    QueueRow,
    Session,
    as_message,
)
from bide.engines.sqlite.statements import SQL
from bide.model.commands import Claim
from bide.model.message import Message
from bide.model.rank import PROMOTE, delayed_reach, ready_rank
from bide.model.replies import Claimed

__all__ = ["claim"]

_EVERYTHING = 1 << 62

_Row = tuple[Any, ...]
"""seq, rank, id, data, due, priority, attempt, attempts, expires, group, headers, failures"""


def claim(session: Session, command: Claim) -> Claimed:
    """Lease up to `count` messages."""
    now = session.now
    queue = session.open(command.queue)
    if queue is None or queue.paused:
        return Claimed([], 0, now)
    reach = max(PROMOTE, command.count)
    if queue.leased:
        _collect_lapsed(session, queue, reach)
    rows = _take(session, queue, command.count, reach)
    if not rows:
        return Claimed([], 0, now, _next_claim(session, queue))
    queue.token += 1
    queue.leased += len(rows)
    until = now + command.lease
    leases = [(row[0], queue.id, queue.token, until, command.holder) for row in rows]
    session.run_many(SQL.insert_lease, leases)
    messages = [_leased(command, row, until, now) for row in rows]
    return Claimed(messages, queue.token, now)


def _leased(command: Claim, row: _Row, until: int, now: int) -> Message:
    return as_message(command.queue, (*row[2:], LEASED, command.holder, until, None), now)


def _collect_lapsed(session: Session, queue: QueueRow, limit: int) -> None:
    rows = session.run(SQL.lapsed, (queue.id, session.now, limit)).fetchall()
    if rows:
        session.take_back(queue, [Place(*row) for row in rows])


def _take(session: Session, queue: QueueRow, count: int, reach: int) -> list[_Row]:
    """Take up to `count` messages out of their sets in the order of delivery.

    Those that are too late are set aside as expired; a claim examines `reach` messages at most, so
    that a flood of them stops nobody for long.
    """
    taken: list[_Row] = []
    examined = 0
    while len(taken) < count and examined < reach:
        picked = _pick(session, queue, count - len(taken), reach)
        if not picked:
            break
        examined += len(picked)
        late = [row[0] for row in picked if _too_late(row, session.now)]
        if late:
            session.end(queue, late, EXPIRED)
            queue.expired += len(late)
            picked = [row for row in picked if not _too_late(row, session.now)]
        taken += picked
    return taken


def _too_late(row: _Row, now: int) -> bool:
    due, expires = row[4], row[8]
    return expires is not None and now > due + expires


def _pick(session: Session, queue: QueueRow, count: int, reach: int) -> list[_Row]:
    """Take the next messages out of delayed, or out of ready where weights or a backlog matter."""
    due = delayed_reach(session.now)
    if not queue.ready and not (queue.weighted and _more_due_than(session, queue, count, due)):
        rows = _drop(session, queue, DELAYED, due, count)
        queue.delayed -= len(rows)
        if queue.weighted:
            rows.sort(key=lambda row: (ready_rank(row[4], row[5]), row[0]))
        return rows
    _promote(session, queue, reach, due)
    rows = _drop(session, queue, READY, _EVERYTHING, count)
    queue.ready -= len(rows)
    return rows


def _more_due_than(session: Session, queue: QueueRow, count: int, due: int) -> bool:
    return session.run(SQL.nth_due, (queue.id, due, count)).fetchone() is not None


def _promote(session: Session, queue: QueueRow, limit: int, due: int) -> None:
    last = session.run(SQL.nth_due, (queue.id, due, limit - 1)).fetchone() or (due, _EVERYTHING)
    bounds = {"queue": queue.id, "rank": last[0], "seq": last[1]}
    moved = session.run(SQL.promote, bounds).rowcount
    if moved:
        session.run(SQL.drop_picked, {**bounds, "state": DELAYED})
        queue.delayed -= moved
        queue.ready += moved


def _drop(session: Session, queue: QueueRow, state: int, reach: int, limit: int) -> list[_Row]:
    """Take the first messages out of a set; they stand together there, so it is one statement."""
    rows: Sequence[_Row] = session.run(SQL.pick, (queue.id, state, reach, limit)).fetchall()
    if rows:
        seq, rank = rows[-1][:2]
        bounds = {"queue": queue.id, "state": state, "rank": rank, "seq": seq}
        session.run(SQL.drop_picked, bounds)
    return list(rows)


def _next_claim(session: Session, queue: QueueRow) -> int | None:
    """Return in how many milliseconds there is something to claim or to collect."""
    if queue.ready:
        return 0
    moments = []
    if queue.delayed:
        moments.append(session.run(SQL.next_due, (queue.id,)).fetchone()[0])
    if queue.leased:
        moments.append(session.run(SQL.next_lapse, (queue.id,)).fetchone()[0])
    return max(0, min(moments) - session.now) if moments else None
