"""Which rule a command follows, for each message that it names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bide.engines.rules import leases, unheld
from bide.engines.rules.change import WAITING, Change, Facts
from bide.engines.rules.closing import with_consequences
from bide.engines.rules.putting import put, put_again, refused
from bide.engines.rules.record import Record
from bide.model import commands as cmd
from bide.model.command_parts import version_at, versions_of
from bide.model.message import Item
from bide.model.replies import Outcome

Rule = Callable[[Record, Any, int, Facts], Change]
"""What a command does to one message that it names; `place` says which of those it names."""

BY_LEASE: dict[type[cmd.Command], Rule] = {
    cmd.Ack: leases.ack,
    cmd.Renew: leases.renew,
    cmd.RetryCommand: leases.retry,
    cmd.BuryCommand: leases.bury,
    cmd.Extend: leases.extend,
}
BY_ID: dict[type[cmd.Command], Rule] = {
    cmd.Cancel: unheld.cancel,
    cmd.Reschedule: unheld.reschedule,
    cmd.Postpone: unheld.postpone,
    cmd.Edit: unheld.edit,
    cmd.Release: leases.release,
    cmd.Revive: unheld.revive,
    cmd.Purge: unheld.purge,
    cmd.BuryCommand: unheld.set_aside,
}
"""The rules of commands that name messages: by their leases, and by their ids."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What becomes of one message that a command names."""

    changes: list[Change]
    """In this order: the end of a lease that has expired, what the command does, and what follows
    from that (see `with_consequences`)."""
    outcome: Outcome
    """What the caller is told."""
    ends_lease: bool = False
    """Whether the command ends the lease of a worker."""

    def record_after(self, before: Record | None) -> Record | None:
        """Return the record after all changes."""
        return self.changes[-1].after if self.changes else before


def decide(
    record: Record | None, command: Any, name: str | cmd.Lease, place: int, facts: Facts
) -> Decision:
    """Return what a command does to one message that it names.

    Args:
        record: of the message; `None`: there is none.
        command: the command.
        name: the id or the lease with which the command names the message.
        place: the place of the name in the command.
        facts: of the queue.
    """
    lapses = [] if record is None else leases.lapse(record, facts)
    current = lapses[-1].after if lapses else record
    if current is None:
        id = name if isinstance(name, str) else name.id
        if record is not None and _has_asked_for_end(record, command):
            return Decision(lapses, Outcome(id, True, due=record.due))
        return Decision(lapses, Outcome(id, False))
    if not _is_named(current, command, name, place):
        return Decision(lapses, current.outcome(False, facts.now))
    rules = BY_ID if isinstance(name, str) else BY_LEASE
    change = rules[type(command)](current, command, place, facts)
    steps = with_consequences(change, facts)
    final_record, outcome = steps[-1].after, steps[-1].outcome
    if outcome is None:
        assert final_record is not None
        outcome = final_record.outcome(True, facts.now)
    if outcome.done and final_record is not None and final_record.state in WAITING:
        # It may be at an earlier place now, which a scan under way may have passed.
        steps[-1] = replace(steps[-1], returned=True)
    return Decision(lapses + steps, outcome, change.ends_lease)


def decide_new(item: Item, seq: int, facts: Facts) -> Decision:
    """Return what a put does with an item whose id is new.

    Args:
        item: to be stored, unless its group is closed.
        seq: the sequence number of its record.
        facts: of the queue.
    """
    if (refusal := refused(item, facts)) is not None:
        return Decision([], refusal)
    change = put(item, seq, facts)
    assert change.after is not None
    return Decision([change], change.after.outcome(True, facts.now))


def decide_put(record: Record, command: cmd.Put, item: Item, facts: Facts) -> Decision:
    """Return what a put does to the message that has the id of its item."""
    lapses = leases.lapse(record, facts)
    current = lapses[-1].after if lapses else record
    if current is not None:
        change = put_again(current, command, item, facts)
        assert change.outcome is not None
        return Decision([*lapses, change], change.outcome)
    # The end of its lease has deleted the message, since its worker was asked to stop.
    if not command.stores_new:
        return Decision(lapses, Outcome(item.id, False))
    new = decide_new(item, record.seq, facts)
    return Decision([*lapses, *new.changes], new.outcome)


def decide_each(
    records: Mapping[str, Record],
    command: Any,
    names: Sequence[str | cmd.Lease],
    first: int,
    facts: Facts,
) -> list[Decision]:
    """Return what a command does to messages that it names, one after the other.

    Args:
        records: those that are there, by id.
        command: the command.
        names: of the messages; one that is named twice is changed twice.
        first: the place of the first name in the command.
        facts: of the queue.
    """
    changed_records: dict[str, Record | None] = {}
    decisions = []
    for place, name in enumerate(names, first):
        id = name if isinstance(name, str) else name.id
        record = changed_records[id] if id in changed_records else records.get(id)
        decision = decide(record, command, name, place, facts)
        changed_records[id] = decision.record_after(record)
        decisions.append(decision)
    return decisions


def _has_asked_for_end(record: Record, command: Any) -> bool:
    """Return whether a command cancels a message that the end of its lease has cancelled just now.

    The worker was asked to stop, by this caller or another one. Versions are of messages that are
    there, so a command that names one has come too late.
    """
    if not isinstance(command, cmd.Cancel) or versions_of(command):
        return False
    return record.stopping is not None and command.if_due in (None, record.due)


def _is_named(record: Record, command: Any, name: str | cmd.Lease, place: int) -> bool:
    """Return whether a message has the lease, or the version, that the command asks for."""
    if not isinstance(name, str):
        return name.token == record.token
    version = version_at(command, place)
    return version is None or record.is_still(version)
