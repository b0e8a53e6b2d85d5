"""Claim: lease the next due messages; on the way take back what lapsed and expire what is late."""

from collections.abc import Generator
from typing import Any

from bide.engines.cursor import Budget
from bide.engines.sqlite.limits import is_behind
from bide.engines.sqlite.records import Records
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import DELAYED, READY, SQL, MessageRow, QueueRow, json_text
from bide.model.commands import Claim
from bide.model.rank import EVERYTHING, LOOK_MOST, PROMOTE, delayed_reach, rank_when_ready
from bide.model.replies import Claimed

__all__ = ["claim"]


def claim(session: Session, command: Claim) -> Claimed:
    """Lease up to `count` messages in the order of delivery, no more than the reply holds.

    Messages that are too late are set aside as expired. A claim examines `reach` messages at most,
    so that many expired ones do not block other callers for long.
    """
    now, until = session.now, session.now + command.lease
    queue = session.open(command.queue)
    if queue.paused:
        return Claimed([], 0, now)
    lines = session.lines(queue) if queue.limited else None
    if lines is not None:
        lines.forget()
    reach = max(PROMOTE, command.count)
    records = Records(session, queue)
    lapsed = session.run(SQL.lapsed, (queue.id, now, reach)).fetchall() if queue.leased else []
    died = records.collect_lapsed(records.each([id for (id,) in lapsed]), now) if lapsed else []
    if lines is not None:
        lines.line_up(PROMOTE)
    # Messages become ready where their order is another one than that of their due times.
    state = READY if queue.ready or queue.weighted or lines is not None else DELAYED
    if state == READY:
        _promote(session, queue, reach)
    count = command.count
    if lines is not None and command.slots is not None:
        count = min(count, command.slots)
    good: list[MessageRow] = []
    late: list[MessageRow] = []
    freed: list[int] = []
    budget = Budget(command.max_bytes)
    rows = _in_order(session, queue, state, reach)
    if lines is not None:
        rows = _by_turn(session, queue, reach, looks_ahead=count > 0)
    while len(good) < count and (found := next(rows, None)) is not None:
        row, group = found
        if is_late := row.expires is not None and now > row.due + row.expires:
            late.append(row)
        elif budget.takes(row.size):
            good.append(row)
        else:
            break
        if lines is not None:
            freed += [] if is_late else [lines.freed_at(group, row.due)]
            lines.leave(group, row.rank, row.seq, leased=not is_late)
    rows.close()
    for record in records.each([row.id for row in late]):
        records.expired(record, now)
    grant = {"token": queue.token + 1, "since": now, "until": until, "holder": command.holder}
    seqs = json_text([row.seq for row in good])
    session.run(SQL.lease, {"queue": queue.id, "seqs": seqs, **grant})
    if lines is not None:
        session.run_many(SQL.drop_pending, [(queue.id, state, row.rank, row.seq) for row in good])
    elif good:
        rank, seq = max((row.rank, row.seq) for row in good)
        session.run(SQL.drop_first, {"queue": queue.id, "state": state, "rank": rank, "seq": seq})
    session.count_hours(queue, [row.due for row in good], -1)
    if state == DELAYED:
        queue.delayed -= len(good)
    else:
        queue.ready -= len(good)
    queue.leased += len(good)
    behind = lines is not None and is_behind(session, queue)
    if not good:
        return Claimed([], 0, now, _next_claim(session, queue), died, behind=behind)
    queue.token += 1
    messages = [row.read(command.queue, now, command.holder, until) for row in good]
    return Claimed(messages, queue.token, now, None, died, queue.result_ttl > 0, freed, behind)


def _promote(session: Session, queue: QueueRow, limit: int) -> None:
    """Make up to `limit` delayed messages that are due ready."""
    due = delayed_reach(session.now)
    last = session.run(SQL.nth_due, (queue.id, due, limit - 1)).fetchone() or (due, EVERYTHING)
    bounds = {"queue": queue.id, "rank": last[0], "seq": last[1]}
    if queue.limited and queue.delayed:
        session.lines(queue).enter(session.run(SQL.due_groups, bounds).fetchall())
    if moved := session.run(SQL.promote, bounds).rowcount:
        session.run(SQL.drop_first, {**bounds, "state": DELAYED})
        queue.delayed -= moved
        queue.ready += moved


Rows = Generator[tuple[MessageRow, str], None, None]
"""The next messages, and in a limited queue the keys of their groups."""


def _in_order(session: Session, queue: QueueRow, state: int, reach: int) -> Rows:
    due = EVERYTHING if state == READY else delayed_reach(session.now)
    for row in session.run(SQL.pick, (queue.id, state, due, reach)):
        yield MessageRow(*row), ""


def _by_turn(session: Session, queue: QueueRow, reach: int, *, looks_ahead: bool) -> Rows:
    """Yield messages as their groups take turns; the caller removes each from its line."""
    lines = session.lines(queue)
    if looks_ahead and lines.open and is_behind(session, queue):
        _look_ahead(session, queue)
    lines.wake()
    for _ in range(reach):
        if (group := lines.next()) is None:
            return
        yield MessageRow(*session.run(SQL.head, (queue.id, group.key)).fetchone()), group.key


def _look_ahead(session: Session, queue: QueueRow) -> None:
    """Make the first due message ready of each group that has no line: see `bide.model.rank`."""
    lines = session.lines(queue)
    groups = session.run(SQL.groups_after, {"queue": queue.id, "after": lines.row.looked})

    def messages_of(group: str) -> list[tuple[Any, ...]]:
        bounds = queue.id, group, LOOK_MOST + 1
        return session.run(SQL.of_one_group, bounds).fetchall()

    found = lines.look_ahead(groups, messages_of)
    groups.close()
    ready = [(rank_when_ready(rank), seq, group) for rank, seq, group in found]
    lines.enter([(group, rank, seq) for rank, seq, group in ready])
    session.run_many(SQL.drop_pending, [(queue.id, DELAYED, *one[:2]) for one in found])
    session.run_many(SQL.insert_pending, [(queue.id, READY, *one[:2]) for one in ready])
    queue.delayed -= len(found)
    queue.ready += len(found)


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
