"""What commands do to a message that a worker holds, and what the end of its lease does.

Those in `bide.engines.rules.decide.BY_LEASE` are called alike: with the record, the command, the
place of the message in the command, and the facts of the queue.
"""

from typing import Any, Literal

from msgspec.structs import replace

from bide.engines.rules.change import (
    Change,
    Facts,
    delayed,
    end_of,
    ended,
    expired,
    finished,
    ready,
    unchanged,
)
from bide.engines.rules.closing import settled
from bide.engines.rules.record import Record
from bide.model.commands import Ack, BuryCommand, Extend, Release, Renew, RetryCommand
from bide.model.message import LAPSED, REASON_LENGTH, RUN_ENDED, Failure, remember
from bide.model.replies import Outcome


def ack(record: Record, command: Ack, place: int, facts: Facts) -> Change:
    """Delete the message, or keep it for a while as one that was acknowledged.

    If it repeats, its run ends, and who claims it plans the next one.
    """
    result = command.results[place] if command.results else None
    if repeats(record, facts):
        run = record.run or ""
        ended_run = run if run.startswith(RUN_ENDED) else RUN_ENDED + run
        return _acked_run(record, facts.now, ended_run, result, facts)
    return _acked(record, result, facts)


def renew(record: Record, command: Renew, place: int, facts: Facts) -> Change:
    """Let the next run of a message take its place; end the message if it repeats no longer."""
    following = command.next[place]
    result = command.results[place] if command.results else None
    if following is None or not repeats(record, facts):
        if command.how == "acked":
            return _acked(record, result, facts)
        return _ended_run(record, command.how, facts, last=following is None)
    if command.how == "acked":
        return _acked_run(record, following.due, following.run, result, facts)
    after = _next_run(record, following.due, following.run)
    if command.how == "ended":
        return Change(record, after)
    counts = ("expired", "put") if command.how == "expired" else ()
    by = _failed_by(record) if command.how == "dead" else None
    ends = end_of(replace(record, since=None), command.how, by, facts)
    return Change(record, after, counts, ends)


def _ended_run(
    record: Record, how: Literal["dead", "expired", "ended"], facts: Facts, *, last: bool
) -> Change:
    """End a message with a run that was not acked; `last`: as its rule says.

    Else somebody has cancelled it meanwhile, and a dead letter of the run was put before.
    """
    if record.stopping is not None:
        return stopped(record, facts)
    last_run = replace(record, run=None, since=None)
    if not last or record.successor is not None or how == "ended":
        change = finished(last_run, "cancelled", None, facts)
        return replace(change, before=record, outcome=Outcome(record.id, True))
    if how == "expired":
        return replace(expired(last_run, facts), before=record)
    return replace(died(last_run, _failed_by(record), facts), before=record)


def repeats(record: Record, facts: Facts) -> bool:
    """Return whether another run follows that of a leased message."""
    if record.run is None or record.successor is not None:
        return False
    return facts.closed_until(record.group) is None


def _failed_by(record: Record) -> str | None:
    """Return who made the last attempt that failed."""
    return record.failures[-1].holder if record.failures else None


def _acked_run(record: Record, due: int, run: str, result: bytes | None, facts: Facts) -> Change:
    """Acknowledge a run; the next one is due at a time in Unix milliseconds."""
    delivered = replace(record, attempt=record.attempt + 1)
    ends = end_of(delivered, "acked", record.holder, facts, result)
    return Change(record, _next_run(record, due, run), ("acked", "put"), ends)


def _next_run(record: Record, due: int, run: str) -> Record:
    """Return a record that waits for its next run, as if it had just been put."""
    fresh: dict[str, Any] = {"attempt": 0, "failures": (), "asked": None}
    return delayed(record, due, run=run, expires=_whole_expires(record), **fresh)


def _whole_expires(record: Record) -> int | None:
    """Return how late the message may be: a retry has shortened that."""
    if record.expires is None or record.planned is None:
        return record.expires
    return record.expires + record.due - record.planned


def _acked(record: Record, result: bytes | None, facts: Facts) -> Change:
    """Delete the message, or keep it for a while as one that was acknowledged."""
    delivered = replace(record, attempt=record.attempt + 1)
    ends = end_of(delivered, "acked", record.holder, facts, result)
    if not facts.keep:
        return Change(record, None, ("acked",), ends, outcome=Outcome(record.id, True))
    after = ended(delivered, "acked", facts.now)
    return Change(record, after, ("acked",), ends, outcome=after.outcome(True, facts.now))


def retry(record: Record, command: RetryCommand, place: int, facts: Facts) -> Change:
    """Return the message to the queue, or make it a dead letter after its last attempt."""
    if record.stopping is not None:
        return stopped(record, facts)
    if command.release:
        return _returned(record, command, facts)
    failure = failed(record, command.reason, facts.now, facts)
    if failure.after is None or failure.after.state == "dead":
        return failure
    if failure.after.is_used_up:
        return Change(record, ready(failure.after), ("retried",))
    after = put_off(failure.after, facts.now + command.delay)
    return Change(record, after, ("retried",))


def _returned(record: Record, command: RetryCommand, facts: Facts) -> Change:
    """Return the message to the queue without counting an attempt."""
    released = record
    if command.reason:  # its worker could not begin, so the failure has no start
        unbegun = replace(record, since=None)
        released = with_failure(unbegun, record.attempt, command.reason, facts.now)
    if not command.delay:
        return Change(record, ready(released))
    return Change(record, put_off(released, facts.now + command.delay))


def bury(record: Record, command: BuryCommand, place: int, facts: Facts) -> Change:
    """Make the message a dead letter, or use up the attempts of its run."""
    if record.stopping is not None:
        return stopped(record, facts)
    failure = failed(record, command.reason, facts.now, facts, final=True)
    if failure.after is None or failure.after.state == "dead":
        return failure
    return Change(record, ready(failure.after), ("retried",))


def extend(record: Record, command: Extend, place: int, facts: Facts) -> Change:
    """Let the lease end at another time, and note how far the worker has come.

    The outcome says whether somebody has asked the worker to stop.
    """
    after = record
    ends_sooner = False  # then it is at an earlier place among the leased ones
    if command.lease is not None:
        until = facts.now + command.lease
        after = replace(record, rank=until, until=until, extended=record.extended + 1)
        ends_sooner = record.until is not None and until < record.until
    progress = command.progress[place] if command.progress else None
    if progress is not None:
        after = replace(after, progress=replace(progress, moment=facts.now))
    outcome = after.outcome(True, facts.now)
    if record.stopping is not None:
        outcome = replace(outcome, state="stopping")
    return Change(record, after, returned=ends_sooner, outcome=outcome)


def stop(record: Record, by: str | None, facts: Facts) -> Change:
    """Ask the worker of the message to stop; of several who ask, the first one is remembered.

    Any end but an ack counts as cancelled from now on. A successor is removed, and the message
    repeats no longer.
    """
    asked_by = record.stopping if record.stopping is not None else by or ""
    after = replace(record, stopping=asked_by, successor=None, run=None)
    outcome = replace(after.outcome(False, facts.now), state="stopping")
    return Change(record, after, outcome=outcome)


def stopped(record: Record, facts: Facts) -> Change:
    """Delete a message whose worker was asked to stop, and has not acked it."""
    delivered = replace(record, attempt=record.attempt + 1)
    change = finished(delivered, "cancelled", record.stopping or None, facts)
    return replace(change, before=record)  # the store has the record without this attempt


def release(record: Record, command: Release, place: int, facts: Facts) -> Change:
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
    if change.after is not None and change.after.state == "leased":  # it has attempts left
        change = Change(record, ready(change.after))
    counted = replace(change, counts=("lapsed", *change.counts))
    changes = settled(counted, facts)
    last_change = changes[-1]
    if last_change.after is not None and last_change.after.state != "dead":
        # It waits again, in a set that a scan under way may have passed.
        changes[-1] = replace(last_change, returned=True)
    return changes


def failed(
    record: Record, reason: str, moment: int, facts: Facts, *, final: bool = False
) -> Change:
    """Count a failed attempt. If none is left, or it is `final`, the message is dead.

    Else the record is still leased, with the failure: the caller of this says where it goes. One
    that repeats never dies here: its attempts are used up, and who claims it makes a dead letter.

    Args:
        record: of a leased message.
        reason: of the failure.
        moment: when it failed, in Unix milliseconds; of an expired lease that is before now.
        facts: of the queue.
        final: whether the message dies though it has attempts left.
    """
    attempted = with_failure(record, record.attempt + 1, reason, moment)
    if record.run is not None:
        used_up = replace(attempted, attempt=max(attempted.attempt, attempted.attempts))
        return Change(record, used_up if final else attempted)
    if not final and attempted.attempt < attempted.attempts:
        return Change(record, attempted)
    attempted = replace(attempted, since=None)  # the last failure has it
    return replace(died(attempted, record.holder or "", facts), before=record)


def died(record: Record, by: str | None, facts: Facts) -> Change:
    """Make the message a dead letter; `by`: who did, if known."""
    after = ended(record, "dead", facts.now)
    return Change(record, after, ("died",), end_of(record, "dead", by, facts))


def with_failure(record: Record, attempt: int, reason: str, moment: int) -> Record:
    """Return a record that remembers the failure of an attempt, and who made it."""
    short_reason = reason[:REASON_LENGTH]
    failure = Failure(attempt, moment, record.holder or "", short_reason, record.since)
    return replace(record, attempt=attempt, failures=remember(record.failures, failure))


def put_off(record: Record, due: int) -> Record:
    """Return a record that waits until another time; it expires when it would have."""
    planned = record.due if record.planned is None else record.planned
    expires = None if record.expires is None else record.expires - (due - record.due)
    return delayed(record, due, planned=planned, expires=expires)
