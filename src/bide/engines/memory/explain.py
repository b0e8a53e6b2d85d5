"""Explain: why a message is where it is."""

from itertools import islice

from bide.engines.memory.queue_state import QueueState
from bide.engines.memory.record import Record
from bide.model.rank import PROMOTE, delayed_reach, ready_rank
from bide.model.replies import AHEAD, Explained


def explain(queue: QueueState, id: str | None, now: int) -> Explained:
    """Look at a message, its lease, its place among others, and the pauses of its queue."""
    record = queue.records.get(id or "")
    if record is None:
        return Explained(now, queue.pauses)
    seen = record.message(queue.name, now)
    waits = seen.state == "ready"
    return Explained(
        now, queue.pauses, seen.state, seen.due, seen.planned, seen.priority, seen.attempt,
        seen.attempts, seen.failures[-1] if seen.failures else None,
        _ahead(queue, record, now) if waits else None,
        seen.holder, record.since, record.extended, seen.until, seen.ended,
        successor=None if record.successor is None else record.successor.at,
        limited=queue.lines.limited(record) if queue.lines and waits else None,
    )  # fmt: skip


def _ahead(queue: QueueState, record: Record, now: int) -> int:
    """Count the messages that are delivered before a ready record, up to `AHEAD` + 1.

    A claim that finds a backlog makes the first delayed ones that are due ready, `PROMOTE` of them,
    and then takes those of the highest priority. So these are looked at. In a limited queue those
    of the same group count.
    """
    mine = ready_rank(record.due, record.priority), record.seq
    due = list(islice(queue.upto("delayed", delayed_reach(now)), PROMOTE))
    if record.state == "delayed" and all(one is not record for one in due):
        return AHEAD + 1
    if queue.lines:
        due = [one for one in due if one.group == record.group]
        before = queue.lines.ahead(record, mine[0])
    else:
        before = queue.sets["ready"].bisect_left(mine)
    before += sum((ready_rank(one.due, one.priority), one.seq) < mine for one in due)
    return min(before, AHEAD + 1)
