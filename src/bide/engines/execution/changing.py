"""Commands that change messages or settings: they load records, ask the rules, and apply."""

from collections.abc import Iterable, Sequence
from typing import Any

from bide.engines.constants import PART, WHOLE_PART
from bide.engines.execution.pausing import pause_of, pause_or_resume
from bide.engines.rules.change import finished
from bide.engines.rules.decide import decide, decide_each
from bide.engines.rules.record import Record
from bide.engines.storage import QueueStore, StoredQueue
from bide.model import commands as cmd
from bide.model.command_parts import versions_of
from bide.model.ended import Ending
from bide.model.replies import (
    Affected,
    ClosedGroup,
    Deleted,
    GroupsClosed,
    Outcome,
    Outcomes,
    QueueSettings,
    Sizes,
)
from bide.model.times import LIMITS


def change_each(queue: StoredQueue, command: Any, names: Sequence[str | cmd.Lease]) -> Outcomes:
    """Change each message that a command names, if it has the version or the lease it must have.

    Args:
        queue: of the messages.
        command: what the rules of each message follow.
        names: the ids or leases that the command names.
    """
    if not queue.row.id:  # there is no such queue
        ids = [name if isinstance(name, str) else name.id for name in names]
        return Outcomes([Outcome(id, False) for id in ids])
    outcomes: list[Outcome] = []
    ended_lease = False
    has_versions = bool(versions_of(command))
    size = WHOLE_PART if has_versions else PART
    for first in range(0, len(names), size):
        part = names[first : first + size]
        ids = [name if isinstance(name, str) else name.id for name in part]
        records = queue.load(ids, bodies=has_versions)
        for decision in decide_each(records, command, part, first, queue.facts):
            queue.apply(decision.changes)
            outcomes.append(decision.outcome)
            ended_lease = ended_lease or decision.ends_lease
    return Outcomes.of(outcomes, reopening(queue) if ended_lease else ())


def reopening(queue: StoredQueue) -> list[int]:
    """Return when a limited queue may be claimed from again after the end of a lease.

    Returns one time in Unix milliseconds, or none if no claim needs to be woken.
    """
    if not queue.row.limited or pause_of(queue) is not None:
        return []
    opens_us = queue.lines.opens()  # microseconds, as the clock of the lines
    if opens_us is None:
        return []
    return [-(-opens_us // 1000) if opens_us > queue.lines.now else queue.now]  # rounded up


def ack(store: QueueStore[Any], command: cmd.Ack) -> Outcomes:
    """Ack messages: all at once if nothing but their deletion follows, else one by one."""
    queue = store.open(command.queue)
    if not queue.try_ack_all(command):
        return change_each(queue, command, command.leases)
    outcomes = [Outcome(lease.id, True) for lease in command.leases]
    return Outcomes(outcomes, min(reopening(queue), default=None))


def cancel(store: QueueStore[Any], command: cmd.Cancel) -> Outcomes | Affected:
    """Cancel messages by id or by a rule."""
    if command.where is None:
        return change_each(store.open(command.queue), command, command.ids)
    if command.dry_run:
        queue = store.look(command.queue)
        held_count = queue.count_held(command.where) if command.running else 0
        return Affected(queue.count_unheld(command.where) + held_count)
    queue = store.open(command.queue)
    records = queue.unheld(command.where, cmd.BULK + 1)  # one more says whether there are more
    affected = _finish_all(queue, records, "cancelled", command.actor)
    if affected.more or not command.running:
        return affected
    return _stop_all(queue, command.where, command.actor, affected.count)


def purge(store: QueueStore[Any], command: cmd.Purge) -> Outcomes | Affected:
    """Delete dead letters by id, or messages of a state that no worker holds."""
    queue = store.open(command.queue)
    if command.ids is not None:
        return change_each(queue, command, command.ids)
    records = queue.purgeable(command.state, command.before, cmd.BULK + 1)
    return _finish_all(queue, records, "purged", command.actor)


def bury(store: QueueStore[Any], command: cmd.BuryCommand) -> Outcomes:
    """Make dead letters of messages: by lease, then by id."""
    queue = store.open(command.queue)
    by_lease = change_each(queue, command, command.leases)
    by_id = change_each(queue, command, command.ids)
    # Only the end of a lease can make room for other messages of a limited queue.
    return Outcomes(by_lease.outcomes + by_id.outcomes, by_lease.wake)


def configure(store: QueueStore[Any], command: cmd.Configure) -> QueueSettings:
    """Change the settings that are given."""
    queue = store.make(command.queue)
    row = queue.row
    wake = pause_or_resume(queue, command)
    for name in ("keep", "history", "result_ttl"):
        if (value := getattr(command, name)) is not None:
            setattr(row, name, int(value))
    if command.overdue is not None:
        row.overdue = command.overdue
    limits_changed = queue.lines.configure(command)
    if limits_changed:
        wake = queue.now
    pause = pause_of(queue)
    limits = {name: getattr(queue.lines.limits, name) for name in LIMITS}
    return QueueSettings(
        paused=pause is not None,
        paused_until=None if pause is None else pause.until,
        keep=row.keep,
        wake=wake,
        history=row.history,
        result_ttl=row.result_ttl,
        overdue=row.overdue,
        **limits,
    )


def close_group(store: QueueStore[Any], command: cmd.CloseGroup) -> GroupsClosed:
    """Close a group; if it is closed, until the later of two times."""
    queue = store.make(command.queue)
    closed_until = queue.facts.closed_until(command.group)
    until = max(queue.now + command.keep, closed_until or 0)
    queue.close_group(command.group, until)
    return GroupsClosed([ClosedGroup(until, command.group)])


def reopen_group(store: QueueStore[Any], command: cmd.ReopenGroup) -> GroupsClosed:
    """Open a closed group."""
    queue = store.open(command.queue)
    until = queue.facts.closed_until(command.group)
    if until is None:
        return GroupsClosed([])
    queue.reopen_group(command.group)
    return GroupsClosed([ClosedGroup(until, command.group)])


def delete(store: QueueStore[Any], command: cmd.Delete) -> Deleted:
    """Delete a queue if it is empty."""
    queue = store.open(command.queue)
    sizes = queue.row.sizes(queue.due())
    if not queue.row.id or sizes != Sizes() or queue.row.kept:
        return Deleted(False, sizes, queue.row.kept)
    store.drop(queue)
    return Deleted(True)


def _stop_all(queue: StoredQueue, where: cmd.Where, by: str | None, count: int) -> Affected:
    """Ask the workers of leased messages to stop, as many as one command may.

    Args:
        queue: of the messages.
        where: the rule that they match.
        by: who asks; `None`: not known.
        count: how many messages the command has changed before.
    """
    stopping_ids: list[str] = []
    remaining = cmd.BULK - count  # how many workers may still be asked
    for record in queue.held(where, remaining + 1):
        if len(stopping_ids) == remaining:
            return Affected(count, more=True, stopping=stopping_ids)
        command = cmd.Cancel(queue.row.name, [record.id], running=True, actor=by)
        decision = decide(record, command, record.id, 0, queue.facts)
        queue.apply(decision.changes)
        if decision.outcome.state == "stopping":
            stopping_ids.append(record.id)
        else:  # its lease was over, so it was cancelled like one that no worker holds
            if decision.outcome.done:
                count += 1
            remaining -= 1
    return Affected(count, stopping=stopping_ids)


def _finish_all(
    queue: StoredQueue, records: Iterable[Record], how: Ending, by: str | None
) -> Affected:
    """Delete the first of some records, as many as one command may.

    Args:
        queue: of the records.
        records: to delete; one more than `BULK` says that there are more.
        how: they end.
        by: who ends them; `None`: not known.
    """
    count = 0
    for record in records:
        if count == cmd.BULK:
            return Affected(count, more=True)
        queue.apply([finished(record, how, by, queue.facts)])
        count += 1
    return Affected(count)
