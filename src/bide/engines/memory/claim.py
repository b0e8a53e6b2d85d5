"""Claim: lease the records that are due, in the order of delivery."""

from itertools import islice

from bide.engines.cursor import Budget
from bide.engines.memory.queue_state import QueueState
from bide.engines.record import Record
from bide.model.commands import Claim
from bide.model.message import size_of
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed


def claim(queue: QueueState, command: Claim, now: int, exactly: float) -> Claimed:
    """Lease up to `count` records; of those that are looked at, expire the late ones.

    Args:
        queue: it may be paused.
        command: the claim.
        now: the time in milliseconds.
        exactly: the same, with fractions.
    """
    if queue.paused:
        return Claimed([], 0, now)
    limited, count = bool(queue.lines), command.count
    reach = max(PROMOTE, count)
    queue.lines.forget()
    died = queue.collect_lapsed([*islice(queue.upto("leased", now), reach)], now)
    queue.promote(now, reach)
    if limited and command.slots is not None:
        count = min(count, command.slots)
    if limited and count and queue.lines.open and queue.due_by(now):  # more than that
        for first in queue.lines.first_due(record for _, record in queue.all):
            queue.ready(first)
    budget = Budget(command.max_bytes)
    taken: list[Record] = []
    freed: list[int] = []
    for _ in range(reach):
        record = _next_record(queue) if len(taken) < count else None
        if record is None:
            break
        if queue.expired(record, now):
            continue
        if not budget.takes(size_of(record)):
            break
        if limited:
            freed.append(queue.lines.freed_at(record))
        taken.append(record)
        until = now + command.lease
        queue.lease(record, queue.token + 1, command.holder, now, until)
    # In a limited queue all that is due goes into a line before its turn can come.
    behind = limited and queue.due_by(now) > 0
    if not taken:
        return Claimed([], 0, now, _next_claim(queue, exactly), died, behind=behind)
    queue.token += 1
    messages = [record.message(queue.name, now) for record in taken]
    return Claimed(messages, queue.token, now, None, died, queue.result_ttl > 0, freed, behind)


def _next_record(queue: QueueState) -> Record | None:
    if queue.lines:
        return queue.lines.next()
    return next((record for _, _, record in queue.sets["ready"]), None)


def _next_claim(queue: QueueState, now: float) -> float | None:
    """Return in how many milliseconds a record may be claimed or a lease expires."""
    moments: list[float] = []
    if queue.lines:
        opens = queue.lines.opens()
        moments += [opens / 1000] if opens is not None else []
    elif queue.sets["ready"]:
        return 0
    moments += [record.due for _, _, record in islice(queue.sets["delayed"], 1)]
    moments += [until for until, _, _ in islice(queue.sets["leased"], 1)]
    return max(0, min(moments) - now) if moments else None
