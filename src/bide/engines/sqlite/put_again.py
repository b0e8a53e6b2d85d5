"""Put messages one by one: those whose ids may exist, and those that are not stored as new ones."""

from collections.abc import Sequence

from bide.engines.constants import PART, WHOLE_PART
from bide.engines.rules.decide import decide_new, decide_put
from bide.engines.rules.record import Record
from bide.engines.sqlite.queue_state import SqliteQueue
from bide.model.commands import Put
from bide.model.message import Item
from bide.model.replies import Outcome


def put_others(
    queue: SqliteQueue, commands: Sequence[Put], base: int, outcomes: dict[int, Outcome]
) -> None:
    """Put the items that are not stored as new messages, and add their outcomes.

    Args:
        queue: of the commands.
        commands: consecutive puts.
        base: the sequence number before that of the first item: each item has one of its own.
        outcomes: by sequence number, those of the items that were stored as new messages.
    """
    pairs = [(command, item) for command in commands for item in command.items]
    others = [
        (seq, command, item)
        for seq, (command, item) in enumerate(pairs, base + 1)
        if seq not in outcomes
    ]
    bodies = any(command.if_version is not None for command in commands)
    size = WHOLE_PART if bodies else PART
    for start in range(0, len(others), size):
        part = others[start : start + size]
        records = queue.load([item.id for _, _, item in part], bodies=bodies)
        for seq, command, item in part:
            outcomes[seq] = _put_singly(queue, records, command, item, seq)


def _put_singly(
    queue: SqliteQueue, records: dict[str, Record], command: Put, item: Item, seq: int
) -> Outcome:
    """Put an item whose id may exist, or that is not stored as a new message.

    `records` has those of the part by id; what changes here, the next item sees there.
    """
    record = records.get(item.id)
    if record is not None:
        decision = decide_put(record, command, item, queue.facts)
    elif command.stores_new:
        decision = decide_new(item, seq, queue.facts)
    else:
        return Outcome(item.id, False)
    queue.apply(decision.changes)
    after = decision.record_after(record)
    if after is None:  # it was refused, or the end of its lease has deleted the message
        records.pop(item.id, None)
    else:
        records[item.id] = after
    return decision.outcome
