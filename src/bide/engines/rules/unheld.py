"""What commands do to a message that no worker holds.

Each of these rules is called with the record, the command, the place of the message in the command,
and the facts of the queue.
"""

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from bide.engines.rules.change import (
    WAITING,
    Change,
    Facts,
    delayed,
    ended,
    finished,
    ready,
    unchanged,
)
from bide.engines.rules.leases import put_off, stop, with_failure
from bide.engines.rules.record import Record
from bide.model.command_parts import NewTime
from bide.model.commands import BuryCommand, Cancel, Edit, Postpone, Purge, Reschedule, Revive
from bide.model.replies import Outcome


def cancel(record: Record, command: Cancel, place: int, facts: Facts) -> Change:
    """Delete a message that waits. A leased one stays, but nothing follows it any more.

    With `running`, the worker of a leased message is asked to stop as well. Without, the outcome
    tells which of these was removed: a successor (its due time), or the next run ("ending").
    """
    if command.running and record.state == "leased" and command.if_due in (None, record.due):
        return stop(record, command.actor, facts)
    # A version or due time is about the message itself, not about what follows it.
    has_condition = command.if_due is not None or command.if_version or command.versions
    if record.successor is not None and not has_condition:
        after = replace(record, successor=None, run=None)
        outcome = replace(after.outcome(False, facts.now), successor=record.successor.at)
        return Change(record, after, outcome=outcome)
    if record.state == "leased" and record.run is not None and not has_condition:
        after = replace(record, run=None)
        outcome = replace(after.outcome(False, facts.now), state="ending")
        return Change(record, after, outcome=outcome)
    if record.state not in WAITING or command.if_due not in (None, record.due):
        return unchanged(record, facts.now)
    return finished(record, "cancelled", command.actor, facts)


def reschedule(record: Record, command: Reschedule, place: int, facts: Facts) -> Change:
    """Change the due time of a message that waits."""
    if record.state not in WAITING or command.if_due not in (None, record.due):
        return unchanged(record, facts.now)
    due = facts.now + command.delay if command.at is None else command.at
    return Change(record, _planned(record, due))


def postpone(record: Record, command: Postpone, place: int, facts: Facts) -> Change:
    """Let a message that waits be due at another time, and expire when it would have."""
    due_now = command.if_dues[place] if command.if_dues else record.due
    if record.state not in WAITING or record.due != due_now:
        return unchanged(record, facts.now)
    priority = record.priority if command.priority is None else command.priority
    after = put_off(replace(record, priority=priority), command.dues[place])
    if after.planned == after.due:  # it is due as planned
        after = replace(after, planned=None)
    return Change(record, after)


def edit(record: Record, command: Edit, place: int, facts: Facts) -> Change:
    """Change fields of a message that waits or is dead. A dead letter gets no due time."""
    new_time = command.times[place] if command.times else NewTime()
    due = command.due(facts.now) if new_time.due is None else new_time.due
    if not _may_be_edited(record, command, due):
        return unchanged(record, facts.now)
    after = record if due is None else _planned(record, due)
    after = replace(after, **_edited_fields(after, command, new_time))
    # The priority may have changed, which is a part of the rank.
    if after.state == "delayed":
        after = delayed(after, after.due, planned=after.planned)
    elif after.state == "ready":
        after = ready(after)
    return Change(record, after)


def _may_be_edited(record: Record, command: Edit, due: int | None) -> bool:
    """Return whether an edit that sets a due time, if any, may change a record."""
    is_as_seen = command.if_due in (None, record.due)
    if record.state == "dead":
        # A move has taken a copy of what is in transit: the change would be lost.
        return is_as_seen and due is None and not record.in_transit
    return is_as_seen and record.state in WAITING


def _edited_fields(record: Record, command: Edit, new_time: NewTime) -> dict[str, Any]:
    """Return the fields that an edit changes, with their values; the record has its due time."""
    fields: dict[str, Any] = command.options  # a new dict each time
    if fields.get("expires") is not None and record.planned is not None:
        # The sender counts it from the planned time, a record from `due`, which may be later.
        fields["expires"] -= record.due - record.planned
    if command.data is not UNSET:
        fields |= {"data": command.data, "json": command.json}
    if record.state in WAITING and _begins_anew(record, command):
        fields |= {"attempt": 0, "failures": ()}
    if new_time.rule is not None:
        fields["rule"] = new_time.rule
    if new_time.run is not None:
        fields["run"] = new_time.run
    return fields


def _begins_anew(record: Record, command: Edit) -> bool:
    """Return whether an edit lets the message have all its attempts again.

    That is so with another rule and another run, and if it repeats no longer and has none left: it
    is delivered once more.
    """
    if command.run is None:
        return record.is_used_up
    is_another = command.rule != record.rule and command.run != record.run
    return isinstance(command.run, str) and is_another


def revive(record: Record, command: Revive, place: int, facts: Facts) -> Change:
    """Return a dead letter to the queue."""
    if record.state != "dead":
        return unchanged(record, facts.now)
    asked_due = record.message("", facts.now).as_edited().due
    after = _planned(record, facts.now + command.delay)
    return Change(record, replace(after, attempt=0, asked=asked_due), ("revived",))


def set_aside(record: Record, command: BuryCommand, place: int, facts: Facts) -> Change:
    """Make a message that waits a dead letter, without counting an attempt."""
    if record.state not in WAITING:
        return unchanged(record, facts.now)
    failed_record = with_failure(record, record.attempt, command.reason, facts.now)
    # It has not failed, nor ended: a move takes it to another store.
    return Change(record, ended(failed_record, "dead", facts.now))


def purge(record: Record, command: Purge, place: int, facts: Facts) -> Change:
    """Delete a dead letter."""
    if record.state != "dead":
        return unchanged(record, facts.now)
    change = finished(record, "moved" if command.moved else "purged", command.actor, facts)
    return replace(change, outcome=Outcome(record.id, True, due=record.due))


def _planned(record: Record, due: int) -> Record:
    """Return a record that waits until `due`, and may be late by as much as its put allowed."""
    expires = record.expires  # a retry has shortened it by the time from `planned` to `due`
    if expires is not None and record.planned is not None:
        expires += record.due - record.planned
    return delayed(record, due, expires=expires, asked=None)
