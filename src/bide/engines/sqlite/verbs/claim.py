"""Claim: lease the next due messages; on the way take back what lapsed and expire what is late."""

from typing import Any, NamedTuple

from bide.engines.cursor import Budget
from bide.engines.sqlite.session import (
    DELAYED,
    EXPIRED,
    READY,
    Place,
    QueueRow,
    Session,
    as_failures,
    as_headers,
    size_of_row,
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


class _Grant(NamedTuple):
    """What all messages of one claim get."""

    token: int
    until: int
    holder: str


def claim(session: Session, command: Claim) -> Claimed:
    """Lease up to `count` messages."""
    now = session.now
    queue = session.open(command.queue)
    if queue is None or queue.paused:
        return Claimed([], 0, now)
    reach = max(PROMOTE, command.count)
    if queue.leased:
        _collect_lapsed(session, queue, reach)
    grant = _Grant(queue.token + 1, now + command.lease, command.holder)
    rows = _take(session, queue, command, reach, grant)
    if not rows:
        return Claimed([], 0, now, _next_claim(session, queue))
    queue.token += 1
    queue.leased += len(rows)
    if queue.weighted:
        rows.sort(key=lambda row: (ready_rank(row[4], row[5]), row[0]))
    return Claimed([_leased(command.queue, row, grant) for row in rows], queue.token, now)


def _leased(queue: str, row: _Row, grant: _Grant) -> Message:
    _, _, id, data, due, priority, attempt, attempts, expires, group, headers, failures = row
    is_json = isinstance(data, str)
    return Message(
        id, queue, data.encode() if is_json else data, is_json, due, priority, attempt + 1,
        attempts, "leased", expires, group, as_headers(headers) if headers else None,
        as_failures(failures) if failures else (), grant.holder, grant.until,
    )  # fmt: skip


def _collect_lapsed(session: Session, queue: QueueRow, limit: int) -> None:
    rows = session.run(SQL.lapsed, (queue.id, session.now, limit)).fetchall()
    if rows:
        session.take_back(queue, [Place(*row) for row in rows])


def _take(
    session: Session, queue: QueueRow, command: Claim, reach: int, grant: _Grant
) -> list[_Row]:
    """Lease up to `count` messages in the order of delivery, no more than the reply holds.

    Those that are too late are set aside as expired; a claim examines `reach` messages at most, so
    that a flood of them stops nobody for long.
    """
    taken: list[_Row] = []
    budget = Budget(command.max_bytes)
    examined = 0
    full = False
    while len(taken) < command.count and examined < reach and not full:
        left = command.count - len(taken)
        state, limit = _source(session, queue, left, reach)
        before = budget.left, budget.empty
        rows, full = _pick(session, (queue.id, state, limit, left), budget)
        if full and state == DELAYED and queue.weighted:  # the weightiest go first
            _promote(session, queue, reach, limit)
            budget.left, budget.empty = before
            full = False
            continue
        if not rows:
            break
        examined += len(rows)
        taken += _lease(session, queue, state, rows, grant)
    return taken


def _pick(session: Session, bounds: tuple[int, ...], budget: Budget) -> tuple[list[_Row], bool]:
    """Return the next messages of a set, and whether the reply has no room for more."""
    found = session.run(SQL.pick, bounds)
    rows: list[_Row] = []
    for row in found:
        size = size_of_row(row[2], row[3], row[10], row[11])
        if not _too_late(row, session.now) and not budget.takes(size):
            found.close()
            return rows, True
        rows.append(row)
    return rows, False


def _lease(
    session: Session, queue: QueueRow, state: int, rows: list[_Row], grant: _Grant
) -> list[_Row]:
    """Lease the first messages of a set but those that are too late, and return them.

    They stand together there, so that one statement leases them all and another takes them out.
    """
    seq, rank = rows[-1][:2]
    bounds = {"queue": queue.id, "state": state, "rank": rank, "seq": seq}
    late = [row[0] for row in rows if _too_late(row, session.now)]
    good = rows
    if late:
        session.end(queue, late, EXPIRED)
        queue.expired += len(late)
        good = [row for row in rows if not _too_late(row, session.now)]
        session.run_many(SQL.insert_lease, [(row[0], queue.id, *grant) for row in good])
    else:
        session.run(SQL.lease_picked, {**bounds, **grant._asdict()})
    session.run(SQL.drop_picked, bounds)
    session.count_hours(queue, [row[4] for row in rows], gone=True)
    if state == DELAYED:
        queue.delayed -= len(rows)
    else:
        queue.ready -= len(rows)
    return good


def _too_late(row: _Row, now: int) -> bool:
    due, expires = row[4], row[8]
    return expires is not None and now > due + expires


def _source(session: Session, queue: QueueRow, count: int, reach: int) -> tuple[int, int]:
    """Return the set to take from, and how far: ready where weights or a backlog matter."""
    due = delayed_reach(session.now)
    if not queue.ready and not (queue.weighted and _more_due_than(session, queue, count, due)):
        return DELAYED, due
    _promote(session, queue, reach, due)
    return READY, _EVERYTHING


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


def _next_claim(session: Session, queue: QueueRow) -> float | None:
    """Return in how many milliseconds there is something to claim or to collect."""
    if queue.ready:
        return 0
    moments = []
    if queue.delayed:
        moments.append(session.run(SQL.next_due, (queue.id,)).fetchone()[0])
    if queue.leased:
        moments.append(session.run(SQL.next_lapse, (queue.id,)).fetchone()[0])
    return max(0, min(moments) - session.exactly) if moments else None
