"""Explain: why a message is where it is."""

from bide.engines.sqlite.rows import DELAYED, READY, Place, QueueRow, as_failures
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.statements import SQL
from bide.engines.sqlite.successors import successors
from bide.model.commands import Explain
from bide.model.rank import PROMOTE, delayed_rank, delayed_reach, ready_rank
from bide.model.replies import AHEAD, Explained, Pause

__all__ = ["explain"]


def explain(session: Session, command: Explain) -> Explained:
    """Look at a message, its lease, its place among others, and the pauses of its queue."""
    queue = session.look(command.queue)
    if queue is None:
        return Explained(session.now)
    pauses = [Pause(*row) for row in session.run(SQL.pauses, (queue.id,))]
    if queue.paused and not (pauses and pauses[-1].until is None):
        pauses.append(Pause(None))
    row = session.run(SQL.explain_one, (queue.id, command.id)).fetchone()
    if row is None:
        return Explained(session.now, pauses)
    *columns, planned, failures, extended = row
    place = Place(*columns)
    state = place.state(session.now)
    group = session.groups_of([place.seq])[place.seq] if queue.limited else None
    limited = session.lines(queue).limited(group) if queue.limited and state == "ready" else None
    successor = successors(session, queue, [place.id]).get(place.id)
    return Explained(
        session.now, pauses, state, place.due, planned, place.priority,
        place.attempt + (state == "leased"), place.attempts,
        as_failures(failures)[-1] if failures and failures != "[]" else None,
        _ahead(session, queue, place, group) if state == "ready" else None,
        place.holder, place.since, extended, place.until, place.ended,
        successor.at if successor is not None else None, limited=limited,
    )  # fmt: skip


def _ahead(session: Session, queue: QueueRow, place: Place, group: str | None) -> int:
    """Count the messages that are delivered before a ready one, up to `AHEAD` + 1.

    In a limited queue those of its group.
    """
    mine = ready_rank(place.due, place.priority), place.seq
    if queue.limited:
        before = session.lines(queue).ahead(group, *mine, AHEAD + 1)
    else:
        bounds = {"queue": queue.id, "rank": mine[0], "seq": mine[1], "limit": AHEAD + 1}
        before = len(session.run(SQL.ready_before, bounds).fetchall())
    reach = delayed_reach(session.now)
    due = session.run(SQL.first_due, (queue.id, DELAYED, reach, PROMOTE)).fetchall()
    here = delayed_rank(place.due, place.priority), place.seq
    is_far = len(due) == PROMOTE and here > due[-1]
    if is_far and session.run(SQL.is_pending, (queue.id, READY, *mine)).fetchone() is None:
        return AHEAD + 1
    if queue.limited and due:
        groups = session.groups_of([seq for _, seq in due])
        due = [(rank, seq) for rank, seq in due if groups[seq] == group]
    for rank, seq in due:
        before += (ready_rank(rank >> 8, 255 - (rank & 255)), seq) < mine
    return min(before, AHEAD + 1)
