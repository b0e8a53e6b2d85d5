"""What a put does: with a new id, with one that exists, and as the successor of a message."""

from msgspec.structs import replace

from bide.engines.rules.change import Change, Facts, finished, unchanged
from bide.engines.rules.record import Record
from bide.model.commands import Put
from bide.model.message import Item
from bide.model.replies import Outcome


def refused(item: Item, facts: Facts) -> Outcome | None:
    """Return the outcome of an item that is not stored because its group is closed, else `None`."""
    until = facts.refuses_until(item)
    return None if until is None else Outcome(item.id, False, "closed", until=until)


def put(item: Item, seq: int, facts: Facts) -> Change:
    """Store a message whose id is new."""
    record = Record.of(item, item.due(facts.now), seq, facts.now)
    return Change(None, record, ("put",))


def put_again(record: Record, command: Put, item: Item, facts: Facts) -> Change:
    """Put a message whose id exists; its lease has not expired."""
    if record.state == "leased" and item.follows(command.on_conflict, command.if_version):
        return _followed(record, item, facts)
    replaceable = record.state in ("delayed", "ready", "dead")
    if not (replaceable and record.is_still(command.if_version)):
        return unchanged(record, facts.now)
    revives = command.on_conflict == "revive" and record.state == "dead"
    if command.on_conflict != "replace" and not revives:
        return unchanged(record, facts.now)
    return _replaced(record, command, item, facts)


def follow_with_successor(change: Change) -> list[Change]:
    """Return the change by which the successor of a message takes its place, if it has one.

    Args:
        change: it has ended the lease of the message.
    """
    held, after = change.before, change.after
    assert held is not None
    if held.successor is None or (after is not None and after.state == "leased"):
        return []
    item = held.successor
    assert item.at is not None
    # It is counted so that the counters add up with what has become of the message before it.
    counts: tuple[str, ...] = ()
    if after is None or after.state == "acked":  # that one has left the queue
        counts = ("put",)
    elif after.state == "dead":
        counts = ("revived",)
    successor = Record.of(item, item.at, held.seq, None)
    return [Change(after, successor, counts, renewed=True)]


def _followed(record: Record, item: Item, facts: Facts) -> Change:
    """Keep the item as the successor of a leased message; the newest one stays."""
    if (refusal := refused(item, facts)) is not None:
        return Change(record, record, outcome=refusal)
    successor = item.follow(record.successor, facts.now)
    after = replace(record, successor=successor)
    outcome = replace(after.outcome(True, facts.now), successor=successor.at)
    return Change(record, after, outcome=outcome)


def _replaced(record: Record, command: Put, item: Item, facts: Facts) -> Change:
    """Store the item in the place of a message that no worker holds.

    If its group is closed, what was to be revived is cancelled, and the others stay.
    """
    if (refusal := refused(item, facts)) is not None:
        if command.on_conflict == "revive":
            cancelled = finished(record, "cancelled", None, facts)
            return replace(cancelled, outcome=refusal)
        return Change(record, record, outcome=refusal)
    created = record.created
    if created is None and item.latest is not None:  # `latest` counts from now, here and later
        created = facts.now
    due = item.due(facts.now, record.created)
    after = Record.of(item, due, record.seq, created)
    counts = ("revived",) if record.state == "dead" and item.died is None else ()
    outcome = after.outcome(True, facts.now)
    return Change(record, after, counts, returned=True, renewed=True, outcome=outcome)
