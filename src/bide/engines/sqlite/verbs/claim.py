"""Claim: lease the next due messages; on the way take back what lapsed and expire what is late."""

from bide.engines.cursor import Budget
from bide.engines.sqlite.rows import DELAYED, READY, MessageRow, Place, QueueRow, as_row
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.statements import SQL
from bide.engines.sqlite.verbs.turns import Grant, is_behind, promote, take_turns
from bide.model.commands import Claim
from bide.model.rank import EVERYTHING, PROMOTE, delayed_reach, ready_rank
from bide.model.replies import Claimed, Died

__all__ = ["claim"]


def claim(session: Session, command: Claim) -> Claimed:
    """Lease up to `count` messages."""
    now = session.now
    queue = session.open(command.queue)
    if queue is None or queue.paused:
        return Claimed([], 0, now)
    if queue.limited:
        session.lines(queue).forget()
    reach = max(PROMOTE, command.count)
    died = _collect_lapsed(session, queue, reach) if queue.leased else []
    grant = Grant(queue.token + 1, now, now + command.lease, command.holder)
    freed: list[int] = []
    if queue.limited:
        rows, freed = take_turns(session, queue, command, reach, grant)
    else:
        rows = _take(session, queue, command, reach, grant)
    behind = bool(queue.limited) and is_behind(session, queue)
    if not rows:
        return Claimed([], 0, now, _next_claim(session, queue), died, behind=behind)
    queue.token += 1
    queue.leased += len(rows)
    if queue.weighted and not queue.limited:
        rows.sort(key=lambda row: (ready_rank(row.due, row.priority), row.seq))
    messages = [row.read(command.queue, now, grant.holder, grant.until) for row in rows]
    return Claimed(messages, queue.token, now, None, died, queue.result_ttl > 0, freed, behind)


def _collect_lapsed(session: Session, queue: QueueRow, limit: int) -> list[Died]:
    rows = session.run(SQL.lapsed, (queue.id, session.now, limit)).fetchall()
    return session.take_back(queue, [Place(*row) for row in rows]) if rows else []


def _take(
    session: Session, queue: QueueRow, command: Claim, reach: int, grant: Grant
) -> list[MessageRow]:
    """Lease up to `count` messages in the order of delivery, no more than the reply holds.

    Those that are too late are set aside as expired; a claim examines `reach` messages at most, so
    that a flood of them stops nobody for long.
    """
    taken: list[MessageRow] = []
    budget = Budget(command.max_bytes)
    examined = 0
    full = False
    while len(taken) < command.count and examined < reach and not full:
        left = command.count - len(taken)
        state, limit = _source(session, queue, left, reach)
        before = budget.left, budget.empty
        good, late, full = _pick(session, (queue.id, state, limit, left), budget)
        if full and state == DELAYED and queue.weighted:  # the highest priority goes first
            promote(session, queue, reach, limit)
            budget.left, budget.empty = before
            full = False
            continue
        if not good and not late:
            break
        examined += len(good) + len(late)
        _lease(session, queue, state, good, late, grant)
        taken += good
    return taken


def _pick(
    session: Session, bounds: tuple[int, ...], budget: Budget
) -> tuple[list[MessageRow], list[MessageRow], bool]:
    """Return the next messages of a set, those too late, and whether the reply is full."""
    now = session.now
    found = session.run(SQL.pick, bounds)
    good: list[MessageRow] = []
    late: list[MessageRow] = []
    for row in map(as_row, found):
        if row.expires is not None and now > row.due + row.expires:
            late.append(row)
            continue
        if row.size > budget.left and not (budget.empty and not good):
            found.close()
            return good, late, True
        budget.left -= row.size
        good.append(row)
    budget.empty = budget.empty and not good
    return good, late, False


def _lease(
    session: Session,
    queue: QueueRow,
    state: int,
    good: list[MessageRow],
    late: list[MessageRow],
    grant: Grant,
) -> None:
    """Lease the first messages of a set; those that are too late become expired.

    They are next to each other, so one statement leases them all and another removes them.
    """
    last = max(good[-1:] + late[-1:], key=lambda row: (row.rank, row.seq))
    bounds = {"queue": queue.id, "state": state, "rank": last.rank, "seq": last.seq}
    if late:
        session.expire(queue, [row.seq for row in late])
        session.run_many(SQL.insert_lease, [(row.seq, queue.id, *grant) for row in good])
    else:
        session.run(SQL.lease_picked, {**bounds, **grant._asdict()})
    session.run(SQL.drop_picked, bounds)
    session.count_hours(queue, [row.due for row in good + late], gone=True)
    if state == DELAYED:
        queue.delayed -= len(good) + len(late)
    else:
        queue.ready -= len(good) + len(late)


def _source(session: Session, queue: QueueRow, count: int, reach: int) -> tuple[int, int]:
    """Return the set to take from, and how far: ready where weights or a backlog matter."""
    due = delayed_reach(session.now)
    if not queue.ready and not (queue.weighted and _more_due_than(session, queue, count, due)):
        return DELAYED, due
    promote(session, queue, reach, due)
    return READY, EVERYTHING


def _more_due_than(session: Session, queue: QueueRow, count: int, due: int) -> bool:
    return session.run(SQL.nth_due, (queue.id, due, count)).fetchone() is not None


def _next_claim(session: Session, queue: QueueRow) -> float | None:
    """Return in how many milliseconds there is something to claim or to collect."""
    moments: list[float] = []
    if queue.limited:
        lines = session.lines(queue)
        if lines.row.rank is not None:  # others may be served once they are in line
            return 0
        opens = lines.opens()
        moments += [opens / 1000] if opens is not None else []
    elif queue.ready:
        return 0
    if queue.delayed:
        moments.append(session.run(SQL.next_due, (queue.id,)).fetchone()[0])
    if queue.leased:
        moments.append(session.run(SQL.next_lapse, (queue.id,)).fetchone()[0])
    return max(0, min(moments) - session.exactly) if moments else None
