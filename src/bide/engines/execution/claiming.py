"""Claims: which messages a worker gets, in the order of delivery."""

from typing import Any

from bide.engines.cursor import Budget
from bide.engines.rules.change import expired
from bide.engines.rules.leases import lapse
from bide.engines.rules.record import Record
from bide.engines.storage import QueueStore, StoredQueue
from bide.model import commands as cmd
from bide.model.message import size_of
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Died


def claim(store: QueueStore[Any], command: cmd.Claim) -> Claimed:
    """Lease up to `count` messages in the order of delivery, no more than the reply holds.

    Messages that are too late are set aside as expired. A claim examines `reach` messages at most,
    so that many expired ones do not block other callers for long.
    """
    budget = Budget(command.max_bytes)
    queue = store.open(command.queue)
    row, now, count = queue.row, queue.now, command.count
    if row.paused:
        return Claimed([], 0, now)
    reach, limited = max(PROMOTE, count), bool(row.limited)
    if limited:
        queue.lines.forget()
        queue.lines.wake()
    died = _end_lapsed(queue, reach)
    queue.promote(reach)
    taken: list[Record] = []
    late: list[Record] = []
    for record in queue.in_order(reach) if count else ():
        if record.is_late(now):
            late.append(record)
            if limited:
                queue.lines.leave(record)
            continue
        if not budget.takes(size_of(record)):
            break
        taken.append(record)
        if limited:
            queue.lines.leave(record, leased=True)
        if len(taken) == count:
            break
    if late:
        queue.apply([expired(record, queue.facts) for record in late])
    behind = limited and queue.is_behind()  # what is due is served from a line only
    if not taken:
        following = _next_claim(store, queue)
        return Claimed([], 0, now, following, died, limited=limited, behind=behind)
    row.token += 1
    until = now + command.lease
    queue.lease(taken, command.holder, until)
    messages = [record.claimed(row.name, command.holder, until) for record in taken]
    return Claimed(
        messages,
        row.token,
        now,
        died=died,
        results=row.result_ttl > 0,
        limited=limited,
        behind=behind,
    )


def _end_lapsed(queue: StoredQueue, reach: int) -> list[Died]:
    """End expired leases; return the messages that are dead now."""
    died = []
    for record in queue.lapsed(reach):
        changes = lapse(record, queue.facts)
        queue.apply(changes)
        after = changes[-1].after
        if after is not None and after.state == "dead":
            died.append(Died(record.id, after.attempt, record.holder or ""))
    return died


def _next_claim(store: QueueStore[Any], queue: StoredQueue) -> float | None:
    """Return in how many milliseconds there is something to claim or to collect."""
    moments: list[float] = [*queue.next_moments()]
    if queue.row.limited:
        opens = queue.lines.opens()
        moments += [opens / 1000] if opens is not None else []
    elif queue.row.ready:
        return 0
    return max(0, min(moments) - store.exactly) if moments else None
