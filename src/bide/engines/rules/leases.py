"""What commands do to a message that a worker holds, and what the end of its lease does."""

from msgspec.structs import replace

from bide.engines.rules.change import (
    Change,
    Facts,
    delayed,
    end_of,
    ended,
    finished,
    ready,
    unchanged,
)
from bide.engines.rules.putting import succeed
from bide.engines.rules.record import Record
from bide.model.commands import Ack, BuryCommand, Extend, Release, RetryCommand
from bide.model.message import LAPSED, REASON_LENGTH, Failure, remember
from bide.model.replies import Outcome


def ack(record: Record, command: Ack, number: int, facts: Facts) -> Change:
    """Delete the message, or keep it for a while as one that was acknowledged."""
    delivered = replace(record, attempt=record.attempt + 1)
    result = command.results[number] if command.results else None
    ends = end_of(delivered, "acked", record.holder, facts, result)
    if not facts.keep:
        return Change(record, None, ("acked",), ends, outcome=Outcome(record.id, True))
    after = ended(delivered, "acked", facts.now)
    return Change(record, after, ("acked",), ends, outcome=after.outcome(True, facts.now))


def retry(record: Record, command: RetryCommand, number: int, facts: Facts) -> Change:
    """Return the message to the queue, or make it a dead letter after its last attempt."""
    if record.stopping is not None:
        return stopped(record, facts)
    if command.release:
        released = record
        if command.reason:
            unbegun = replace(record, since=None)
            released = with_failure(unbegun, record.attempt, command.reason, facts.now)
        if not command.delay:
            return Change(record, ready(released))
        return Change(record, _postponed(released, facts.now + command.delay))
    failure = failed(record, command.reason, facts.now, facts)
    if failure.after is None or failure.after.state == "dead":
        return failure
    after = _postponed(failure.after, facts.now + command.delay)
    return Change(record, after, ("retried",))


def bury(record: Record, command: BuryCommand, number: int, facts: Facts) -> Change:
    """Make the message a dead letter."""
    if record.stopping is not None:
        return stopped(record, facts)
    return failed(record, command.reason, facts.now, facts, final=True)


def extend(record: Record, command: Extend, number: int, facts: Facts) -> Change:
    """Let the lease end at another time, and note how far the worker has come.

    The outcome says whether somebody has asked the worker to stop.
    """
    after, sooner = record, False
    if command.lease is not None:
        until = facts.now + command.lease
        after = replace(record, rank=until, until=until, extended=record.extended + 1)
        sooner = record.until is not None and until < record.until
    progress = command.progress[number] if command.progress else None
    if progress is not None:
        after = replace(after, progress=replace(progress, moment=facts.now))
    outcome = after.outcome(True, facts.now)
    if record.stopping is not None:
        outcome = replace(outcome, state="stopping")
    return Change(record, after, returned=sooner, outcome=outcome)


def stop(record: Record, by: str | None, facts: Facts) -> Change:
    """Ask the worker of the message to stop; of several who ask, the first one is remembered.

    Any end but an ack counts as cancelled from now on. A successor is removed.
    """
    stopping = record.stopping if record.stopping is not None else by or ""
    after = replace(record, stopping=stopping, successor=None)
    outcome = replace(after.outcome(False, facts.now), state="stopping")
    return Change(record, after, outcome=outcome)


def stopped(record: Record, facts: Facts) -> Change:
    """Delete a message whose worker was asked to stop, and has not acked it."""
    delivered = replace(record, attempt=record.attempt + 1)
    change = finished(delivered, "cancelled", record.stopping or None, facts)
    return replace(change, before=record)


def release(record: Record, command: Release, number: int, facts: Facts) -> Change:
    """End the lease of any worker."""
    if record.state != "leased":
        return unchanged(record, facts.now)
    if record.stopping is not None:
        return stopped(record, facts)
    failure = failed(record, command.reason, facts.now, facts)
    if failure.after is None or failure.after.state == "dead":
        return failure
    return Change(record, ready(failure.after), ("retried",))


def lapse(record: Record, facts: Facts) -> list[Change]:
    """End the lease of the message if it has expired; a successor takes its place.

    Returns no change if the message is not leased, or its lease is good.
    """
    if record.state != "leased" or record.until is None or record.until > facts.now:
        return []
    if record.stopping is not None:
        change = stopped(record, facts)
    else:
        change = failed(record, LAPSED, record.until, facts)
    if change.after is not None and change.after.state == "leased":
        change = Change(record, ready(change.after))
    counted = replace(change, counts=("lapsed", *change.counts))
    changes = [counted, *succeed(counted)]
    last = changes[-1]
    if last.after is not None and last.after.state != "dead":
        changes[-1] = replace(last, returned=True)
    return changes


def failed(
    record: Record, reason: str, moment: int, facts: Facts, *, final: bool = False
) -> Change:
    """Count a failed attempt. If none is left, or it is `final`, the message is dead.

    Else the record is as it was, with the failure: its caller says where it goes.
    """
    tried = with_failure(record, record.attempt + 1, reason, moment)
    if not final and tried.attempt < tried.attempts:
        return Change(record, tried)
    tried = replace(tried, since=None)  # the last failure has it
    return replace(died(tried, record.holder or "", facts), before=record)


def died(record: Record, by: str | None, facts: Facts) -> Change:
    """Make the message a dead letter."""
    after = ended(record, "dead", facts.now)
    return Change(record, after, ("died",), end_of(record, "dead", by, facts))


def with_failure(record: Record, attempt: int, reason: str, moment: int) -> Record:
    """Return a record that remembers the failure of an attempt, and who made it."""
    kept = reason[:REASON_LENGTH]
    failure = Failure(attempt, moment, record.holder or "", kept, record.since)
    return replace(record, attempt=attempt, failures=remember(record.failures, failure))


def _postponed(record: Record, due: int) -> Record:
    """Return a record that a worker has returned, due later; it expires when it would have."""
    planned = record.due if record.planned is None else record.planned
    expires = None if record.expires is None else record.expires - (due - record.due)
    return delayed(record, due, planned=planned, expires=expires)
