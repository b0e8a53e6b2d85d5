"""Claim: lease the records that are due, in the order of delivery."""

from functools import partial
from itertools import islice

from bide.engines.cursor import Budget
from bide.engines.memory.queue_state import QueueState
from bide.engines.memory.record import Record
from bide.model.commands import Claim
from bide.model.message import State, size_of
from bide.model.rank import PROMOTE, delayed_reach, ready_rank
from bide.model.replies import Claimed


def claim(queue: QueueState, command: Claim, now: int, exactly: float) -> Claimed:
    """Lease up to `count` records.

    Args:
        queue: it may be paused.
        command: the claim.
        now: the time in milliseconds.
        exactly: the same, with fractions.
    """
    if queue.paused:
        return Claimed([], 0, now)
    queue.lines.forget()
    reach = max(PROMOTE, command.count)
    died = queue.collect_lapsed(now, reach)
    budget = Budget(command.max_bytes)
    taken = (_take_turns if queue.lines else _take)(queue, command, now, reach, budget)
    # In a limited queue all that is due goes into a line before its turn can come.
    behind = bool(queue.lines) and queue.due_by(now) > 0
    if not taken:
        return Claimed([], 0, now, _next(queue, exactly), died, behind=behind)
    queue.token += 1
    messages = [record.message(queue.name, now) for record, _ in taken]
    freed = [freed for _, freed in taken] if queue.lines else []
    remembers = queue.ends.result_ttl > 0
    return Claimed(messages, queue.token, now, None, died, remembers, freed, behind)


_Taken = list[tuple[Record, int]]
"""Records, and when the last limit let each go."""


def _take(queue: QueueState, command: Claim, now: int, reach: int, budget: Budget) -> _Taken:
    """Lease due records in the order of delivery; expire late ones.

    What is not within the budget stays ready.
    """
    taken: list[Record] = []
    examined = 0
    full = False
    while len(taken) < command.count and examined < reach and not full:
        picked = _pick(queue, command.count - len(taken), now, reach)
        if not picked:
            break
        examined += len(picked)
        if queue.weighted:
            picked.sort(key=lambda r: (ready_rank(r.due, r.priority), r.seq))
        for record in picked:
            if queue.expired(record, now):
                continue
            if not full and budget.takes(size_of(record)):
                taken.append(record)
            else:
                full = True
                queue.ready(record)
    if queue.weighted:
        taken.sort(key=lambda r: (ready_rank(r.due, r.priority), r.seq))
    lease = _lease(queue, command, now)
    for record in taken:
        lease(record)
    return [(record, 0) for record in taken]


def _pick(queue: QueueState, count: int, now: int, reach: int) -> list[Record]:
    """Remove the next records from delayed, or from ready if priorities or a backlog matter."""
    if not queue.sets["ready"] and not (queue.weighted and queue.due_by(now) > count):
        first = list(islice(queue.upto("delayed", delayed_reach(now)), count))
        _leave_first(queue, "delayed", len(first))
        return first
    queue.promote(now, reach)
    first = [record for _, _, record in islice(queue.sets["ready"], count)]
    _leave_first(queue, "ready", len(first))
    return first


def _leave_first(queue: QueueState, state: State, count: int) -> None:
    """Remove the first records of a set; several times faster than one by one."""
    pop = queue.sets[state].pop
    for _ in range(count):
        pop(0)[2].state = None


def _take_turns(queue: QueueState, command: Claim, now: int, reach: int, budget: Budget) -> _Taken:
    """Lease due records of a limited queue, as its groups take turns."""
    count = command.count if command.slots is None else min(command.count, command.slots)
    queue.promote(now, reach)
    if count and queue.lines.open and queue.due_by(now):  # more than that
        for first in queue.lines.look_ahead(queue.groups):
            queue.ready(first)
    lease = _lease(queue, command, now)
    taken: _Taken = []
    for _ in range(reach):
        record = queue.lines.next() if len(taken) < count else None
        if record is None:
            break
        if queue.expired(record, now):
            continue
        if not budget.takes(size_of(record)):
            break
        taken.append((record, queue.lines.freed(record)))
        lease(record)
    return taken


def _lease(queue: QueueState, command: Claim, now: int) -> "partial[None]":
    """Return what leases a record to the caller of a claim."""
    until = now + command.lease
    return partial(queue.lease, token=queue.token + 1, holder=command.holder, now=now, until=until)


def _next(queue: QueueState, now: float) -> float | None:
    """Return in how many milliseconds a record may be claimed or a lease expires."""
    moments: list[float] = []
    if queue.lines:
        opens = queue.lines.opens()
        moments += [opens / 1000] if opens is not None else []
    elif queue.sets["ready"]:
        return 0
    moments += [records[0][2].due for records in (queue.sets["delayed"],) if records]
    moments += [until for until, _, _ in islice(queue.sets["leased"], 1)]
    return max(0, min(moments) - now) if moments else None
