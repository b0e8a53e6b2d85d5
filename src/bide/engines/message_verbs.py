"""What each command does to one message that it names, by its id or by its lease.

A message gets here if it has the version that the command asks for and, for commands that name
leases, the lease. `number` is its place in the command. A verb returns `True` if it has changed the
message, `False` if it may not, or an outcome that says more than where the message is now.
"""

from bide.engines.queue_rules import QueueRules
from bide.engines.record import Record
from bide.model import commands as cmd
from bide.model.replies import Outcome

Done = Outcome | bool

WAITING = ("delayed", "ready")


def cancel(queue: QueueRules, record: Record, command: cmd.Cancel, now: int, number: int) -> Done:
    """Delete a message that waits, or the successor of a leased one."""
    conditional = command.if_due is not None or command.if_version or command.versions
    if record.successor and not conditional:
        return record.drop_successor(now)
    if record.state not in WAITING or command.if_due not in (None, record.due):
        return False
    queue.finish(record, "cancelled", command.actor, now)
    return True


def reschedule(
    queue: QueueRules, record: Record, command: cmd.Reschedule, now: int, number: int
) -> Done:
    """Change the due time of a message that waits."""
    if record.state not in WAITING or command.if_due not in (None, record.due):
        return False
    queue.plan(record, now + command.delay if command.at is None else command.at)
    return True


def edit(queue: QueueRules, record: Record, command: cmd.Edit, now: int, number: int) -> Done:
    """Change fields of a message that no worker holds; a dead letter gets no due time."""
    due = command.due(now)
    if record.state == "dead" and (due is not None or record.in_transit):
        return False
    if record.state not in (*WAITING, "dead"):
        return False
    queue.edit(record, command, due)
    return True


def release(queue: QueueRules, record: Record, command: cmd.Release, now: int, number: int) -> Done:
    """End the lease of any worker."""
    if record.state != "leased":
        return False
    if queue.failed(record, command.reason, now, now):
        queue.count("retried")
        queue.ready(record)
    return True


def revive(queue: QueueRules, record: Record, command: cmd.Revive, now: int, number: int) -> Done:
    """Return a dead letter to the queue."""
    if record.state != "dead":
        return False
    record.attempt, asked = 0, record.message("", now).as_edited().due
    queue.plan(record, now + command.delay)
    record.asked = asked
    queue.count("revived")
    return True


def extend(queue: QueueRules, record: Record, command: cmd.Extend, now: int, number: int) -> Done:
    """Extend the lease."""
    queue.extend(record, now + command.lease)
    return True


def ack(queue: QueueRules, record: Record, command: cmd.Ack, now: int, number: int) -> Done:
    """Delete the message, or keep it for a while as one that was acknowledged."""
    queue.count("acked")
    record.attempt += 1
    result = command.results[number] if command.results else None
    queue.remember_end(record, "acked", record.holder, now, result)
    if queue.keep:
        queue.end(record, "acked", now)
        return True
    queue.remove(record)
    return Outcome(record.id, True)


def retry(queue: QueueRules, record: Record, command: cmd.Retry, now: int, number: int) -> Done:
    """Return the message to the queue, or make it a dead letter after its last attempt."""
    if command.release and not command.delay:
        queue.ready(record)
    elif command.release or queue.failed(record, command.reason, now, now):
        if not command.release:
            queue.count("retried")
        planned = record.due if record.planned is None else record.planned
        if record.expires is not None:
            record.expires -= now + command.delay - record.due
        queue.delay(record, now + command.delay)
        record.planned = planned
    return True


def bury(queue: QueueRules, record: Record, command: cmd.Bury, now: int, number: int) -> Done:
    """Make a leased message a dead letter."""
    queue.failed(record, command.reason, now, now, final=True)
    return True


def set_aside(queue: QueueRules, record: Record, command: cmd.Bury, now: int, number: int) -> Done:
    """Make a message that waits a dead letter."""
    if record.state not in WAITING:
        return False
    queue.set_aside(record, command.reason, now, command.actor)
    return True


def purge(queue: QueueRules, record: Record, command: cmd.Purge, now: int, number: int) -> Done:
    """Delete a dead letter."""
    if record.state != "dead":
        return False
    queue.finish(record, "purged", command.actor, now)
    return Outcome(record.id, True, due=record.due)
