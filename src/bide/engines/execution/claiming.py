"""Claims: which messages a worker gets, in the order of delivery."""

from typing import Any

from bide.engines.execution.pausing import pause_of
from bide.engines.rules.change import Change, expired, finished
from bide.engines.rules.leases import lapse
from bide.engines.rules.record import Record
from bide.engines.storage import QueueStore, StoredQueue
from bide.model import commands as cmd
from bide.model.message import Message, size_of
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Died


def claim(store: QueueStore[Any], command: cmd.Claim) -> Claimed:
    """Lease up to `count` messages in the order of delivery, no more than the reply holds.

    Messages that are too late are set aside as expired, those in closed groups are cancelled. A
    claim examines `reach` messages at most, so that many of these do not block other callers for
    long.
    """
    queue = store.open(command.queue)
    row, now, count = queue.row, queue.now, command.count
    if row.paused:
        pause = pause_of(queue)
        if pause is not None:
            left_ms = None if pause.until is None else pause.until - store.now_exact
            return Claimed([], 0, now, left_ms)
        row.paused = 0  # it has ended by itself
    reach, limited = max(PROMOTE, count), bool(row.limited)
    if limited:
        queue.lines.forget()
        queue.lines.wake()
    died: list[Died] = []
    for record in queue.lapsed(reach):
        died += _end_lease(queue, record)
    queue.promote(reach)
    has_closed = row.closed > 0
    until = now + command.lease
    room = command.max_bytes
    taken: list[Record] = []
    messages: list[Message] = []
    unfit: list[Change] = []
    for record in queue.in_order(reach) if count else ():
        is_closed = has_closed and queue.facts.closed_until(record.group) is not None
        if is_closed or record.is_late(now):
            facts = queue.facts
            end = (
                finished(record, "cancelled", None, facts) if is_closed else expired(record, facts)
            )
            unfit.append(end)
            if limited:
                queue.lines.leave(record)
            continue
        message = record.claimed(row.name, command.holder, until)
        room -= size_of(message)
        if room < 0 and taken:  # the first message always fits
            break
        taken.append(record)
        messages.append(message)
        if limited:
            queue.lines.leave(record, leased=True)
        if len(taken) == count:
            break
    if unfit:
        queue.apply(unfit)
    behind = limited and queue.is_behind()  # what is due is served from a line only
    if not taken:
        following = _next_claim(store, queue)
        return Claimed([], 0, now, following, died, limited=limited, behind=behind)
    row.token += 1
    queue.lease(taken, command.holder, until)
    return Claimed(
        messages,
        row.token,
        now,
        died=died,
        results=row.result_ttl > 0,
        limited=limited,
        behind=behind,
    )


def _end_lease(queue: StoredQueue, record: Record) -> list[Died]:
    """End a lease that has expired; return the message if it is dead now, else nothing."""
    changes = lapse(record, queue.facts)
    queue.apply(changes)
    after = changes[-1].after
    if after is None or after.state != "dead":
        return []
    return [Died(record.id, after.attempt, record.holder or "")]


def _next_claim(store: QueueStore[Any], queue: StoredQueue) -> float | None:
    """Return in how many milliseconds a message is due, or a lease ends.

    0: something can be claimed now. `None`: nothing can before a change.
    """
    moments: list[float] = [*queue.next_moments()]
    if queue.row.limited:  # a ready message may have to wait for its group, or for a rate
        opens = queue.lines.opens()
        if opens is not None:  # in microseconds
            moments.append(opens / 1000)
    elif queue.row.ready:
        return 0
    return max(0, min(moments) - store.now_exact) if moments else None
