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
from bide.engines.rules.closing import with_consequences
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
    """Return the change that ends a message that repeats, with a run that was not acked.

    If its rule has no further run, the message ends as the run did: dead or expired. Else the
    series has ended while the run was leased, by a cancel, a successor or a closed group. Then it
    counts as cancelled; if the run failed, the client has already put a dead letter of it.

    Args:
        record: of the message.
        how: the run ended; "ended": it had ended before, so the message ends without it.
        facts: of the queue.
        last: whether this was the last run of its rule.
    """
    if record.stopping is not None:
        return stopped(record, facts)
    # Without its run, the message can die or expire; its end is not that of an attempt.
    last_run = replace(record, run=None, since=None)
    series_was_ended = not last or record.successor is not None
    if series_was_ended or how == "ended":
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
    attempted = _attempted(record, command.reason, facts.now)
    if _has_died(attempted):
        return _died_attempting(record, attempted, facts)
    if attempted.is_used_up:  # the next claim ends this run and plans the next one
        return Change(record, ready(attempted), ("retried",))
    after = put_off(attempted, facts.now + command.delay)
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
    attempted = _attempted(record, command.reason, facts.now)
    if attempted.run is None:
        return _died_attempting(record, attempted, facts)
    used_up = replace(attempted, attempt=max(attempted.attempt, attempted.attempts))
    return Change(record, ready(used_up), ("retried",))


def extend(record: Record, command: Extend, place: int, facts: Facts) -> Change:
    """Let the lease end at another time, and note how far the worker has come.

    The outcome says whether the worker was asked to stop.
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
    """End the lease of any worker, or only that of the one that the command names."""
    is_meant = command.holder is None or record.holder == command.holder
    if record.state != "leased" or not is_meant:
        return unchanged(record, facts.now)
    if record.stopping is not None:
        return stopped(record, facts)
    attempted = _attempted(record, command.reason, facts.now)
    if _has_died(attempted):
        return _died_attempting(record, attempted, facts)
    return Change(record, ready(attempted), ("retried",))


def lapse(record: Record, facts: Facts) -> list[Change]:
    """End the lease of the message if it has expired; a successor takes its place.

    Returns no change if the message is not leased, or its lease is good.
    """
    if record.state != "leased" or record.until is None or record.until > facts.now:
        return []
    attempted = _attempted(record, LAPSED, record.until)
    if record.stopping is not None:
        change = stopped(record, facts)
        change = replace(change, counts=("lapsed", *change.counts))
    elif _has_died(attempted):
        change = _died_attempting(record, attempted, facts)
    else:
        change = Change(record, ready(attempted), ("lapsed",))
    changes = with_consequences(change, facts)
    last_change = changes[-1]
    if last_change.after is not None and last_change.after.state != "dead":
        # It waits again, in a set that a scan under way may have passed.
        changes[-1] = replace(last_change, returned=True)
    return changes


def _attempted(record: Record, reason: str, moment: int) -> Record:
    """Return a leased record with one more failed attempt; it is still leased.

    Args:
        record: of a leased message.
        reason: why the attempt failed.
        moment: when it failed, in Unix milliseconds: before now if the lease has expired.
    """
    return with_failure(record, record.attempt + 1, reason, moment)


def _has_died(attempted: Record) -> bool:
    """Return whether a failed attempt was the last one of its message.

    A message that repeats does not die here. With all attempts used up it is ready: the next claim
    puts a dead letter of this run and plans the next run.
    """
    return attempted.run is None and attempted.attempt >= attempted.attempts


def _died_attempting(record: Record, attempted: Record, facts: Facts) -> Change:
    """Make a dead letter of a message that was leased until its attempt failed.

    Args:
        record: in the store.
        attempted: the same with the failed attempt.
        facts: of the queue.
    """
    after = replace(attempted, since=None)  # the failure has the start of the attempt
    return replace(died(after, record.holder or "", facts), before=record)


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
