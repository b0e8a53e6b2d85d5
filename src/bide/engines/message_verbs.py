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


def cancel(queue: QueueRules, record: Record, command: cmd.Cancel, number: int) -> Done:
    """Delete a message that waits, or the successor of a leased one."""
    conditional = command.if_due is not None or command.if_version or command.versions
    if record.successor and not conditional:
        return record.drop_successor(queue.now)
    if record.state not in WAITING or command.if_due not in (None, record.due):
        return False
    queue.finish(record, "cancelled", command.actor)
    return True


def reschedule(queue: QueueRules, record: Record, command: cmd.Reschedule, number: int) -> Done:
    """Change the due time of a message that waits."""
    if record.state not in WAITING or command.if_due not in (None, record.due):
        return False
    queue.plan(record, queue.now + command.delay if command.at is None else command.at)
    return True


def edit(queue: QueueRules, record: Record, command: cmd.Edit, number: int) -> Done:
    """Change fields of a message that no worker holds; a dead letter gets no due time."""
    due = command.due(queue.now)
    if record.state == "dead" and (due is not None or record.in_transit):
        return False
    if record.state not in (*WAITING, "dead"):
        return False
    queue.edit(record, command, due)
    return True


def release(queue: QueueRules, record: Record, command: cmd.Release, number: int) -> Done:
    """End the lease of any worker."""
    if record.state != "leased":
        return False
    if queue.failed(record, command.reason, queue.now):
        queue.row.retried += 1
        queue.ready(record)
    return True


def revive(queue: QueueRules, record: Record, command: cmd.Revive, number: int) -> Done:
    """Return a dead letter to the queue."""
    if record.state != "dead":
        return False
    record.attempt, asked = 0, record.message("", queue.now).as_edited().due
    queue.plan(record, queue.now + command.delay)
    record.asked = asked
    queue.row.revived += 1
    return True


def extend(queue: QueueRules, record: Record, command: cmd.Extend, number: int) -> Done:
    """Let the lease end at another time."""
    until = queue.now + command.lease
    if record.until is not None and until < record.until:
        queue.remember_return(record)
    queue.extend(record, until)
    return True


def ack(queue: QueueRules, record: Record, command: cmd.Ack, number: int) -> Done:
    """Delete the message, or keep it for a while as one that was acknowledged."""
    queue.row.acked += 1
    record.attempt += 1
    result = command.results[number] if command.results else None
    queue.remember_end(record, "acked", record.holder, result)
    if queue.row.keep:
        queue.end(record, "acked", queue.now)
        return True
    queue.remove(record)
    return Outcome(record.id, True)


def retry(queue: QueueRules, record: Record, command: cmd.Retry, number: int) -> Done:
    """Return the message to the queue, or make it a dead letter after its last attempt."""
    if command.release and not command.delay:
        queue.ready(record)
    elif command.release or queue.failed(record, command.reason, queue.now):
        queue.row.retried += not command.release
        due = queue.now + command.delay
        planned = record.due if record.planned is None else record.planned
        if record.expires is not None:
            record.expires -= due - record.due
        queue.delay(record, due)
        record.planned = planned
    return True


def bury(queue: QueueRules, record: Record, command: cmd.Bury, number: int) -> Done:
    """Make a leased message a dead letter."""
    queue.failed(record, command.reason, queue.now, final=True)
    return True


def set_aside(queue: QueueRules, record: Record, command: cmd.Bury, number: int) -> Done:
    """Make a message that waits a dead letter."""
    if record.state not in WAITING:
        return False
    record.fail(command.reason, queue.now)
    queue.die(record, command.actor)
    return True


def purge(queue: QueueRules, record: Record, command: cmd.Purge, number: int) -> Done:
    """Delete a dead letter."""
    if record.state != "dead":
        return False
    queue.finish(record, "purged", command.actor)
    return Outcome(record.id, True, due=record.due)
