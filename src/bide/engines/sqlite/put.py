"""Put: many messages, of many callers, in one go."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bide.engines.execution.changing import PART, WHOLE_PART
from bide.engines.rules.decide import decide_put
from bide.engines.rules.outcomes import outcomes_of
from bide.engines.rules.record import Record
from bide.engines.sqlite.queue_state import QueueState
from bide.engines.sqlite.tables import DEAD, SQL, json_text, row_of
from bide.model.commands import Command, Put
from bide.model.message import Item, State
from bide.model.replies import Outcome, Reply

if TYPE_CHECKING:
    from bide.engines.sqlite.session import Session


def together(command: Command) -> bool | None:
    """Return a key that is equal for consecutive puts that run as one; `None`: it is no such put.

    It is whether they store messages whose id does not exist: one that stores nothing new must not
    find what a later one stores.
    """
    if not isinstance(command, Put) or command.origin is not None:
        return None
    return command.on_conflict != "revive" and command.if_version is None


def put_all(session: "Session", puts: Sequence[Put], *, stores_new: bool) -> list[Reply]:
    """Execute consecutive puts that have the same key, those of each queue together."""
    queues: dict[str, list[Put]] = defaultdict(list)
    for command in puts:
        queues[command.queue].append(command)
    replies = {
        name: iter(_put_into(session.make(name), session, commands, stores_new))
        for name, commands in queues.items()
    }
    return [next(replies[command.queue]) for command in puts]


def _put_into(
    queue: QueueState, session: "Session", commands: Sequence[Put], stores_new: bool
) -> list[Reply]:
    """Store the new messages with one statement, then the others in the order of the puts."""
    now = session.now
    put = [(command, item) for command in commands for item in command.items]
    base = queue.number(SQL.last_seq)
    entries = [(seq, command, item) for seq, (command, item) in enumerate(put, base + 1)]
    new = [(seq, item, item.due(now)) for seq, _, item in entries] if stores_new else []
    rows = [row_of(seq, queue.row.id, item, due, now) for seq, item, due in new]
    if session.run_many(SQL.insert_message, rows).rowcount < len(rows):
        stored = {seq for (seq,) in session.run(SQL.seqs_after, (base,))}
        new = [one for one in new if one[0] in stored]
    outcomes = _place_new(queue, new)
    left = [entry for entry in entries if entry[0] not in outcomes]
    bodies = any(command.if_version is not None for command in commands)
    size = WHOLE_PART if bodies else PART
    for start in range(0, len(left), size):
        part = left[start : start + size]
        records = queue.load([item.id for _, _, item in part], bodies=bodies)
        for seq, command, item in part:
            outcomes[seq] = _put_again(queue, records, command, item)
    rest = (outcomes[seq] for seq, _, _ in entries)
    return [outcomes_of([next(rest) for _ in command.items]) for command in commands]


def _put_again(queue: QueueState, records: dict[str, Record], command: Put, item: Item) -> Outcome:
    """Put an item whose id exists, or that is not stored as a new message."""
    record = records.get(item.id)
    if record is None:
        return Outcome(item.id, False)
    decision = decide_put(record, command, item, queue.facts)
    queue.apply(decision.changes)
    after = decision.record_after(record)
    assert after is not None
    records[item.id] = after
    return decision.outcome


def _place_new(queue: QueueState, rows: Sequence[tuple[int, Item, int]]) -> dict[int, Outcome]:
    """Let messages that were just inserted wait, or be dead letters: (seq, item, due)."""
    row = queue.row
    outcomes: dict[int, Outcome] = {}
    for seq, item, due in rows:
        if item.died is None:
            state: State = "ready" if due <= queue.now else "delayed"
            outcomes[seq] = Outcome(item.id, True, state, due)
        else:
            queue.run(SQL.insert_aside, (seq, row.id, DEAD, item.died))
            row.dead += 1
            row.died += 1
            outcomes[seq] = Outcome(item.id, True, "dead", due, item.died)
    waiting = [(seq, due) for seq, item, due in rows if item.died is None]
    queue.run(SQL.delay, (json_text([seq for seq, _ in waiting]),))
    queue.count_hours([due for _, due in waiting])
    row.delayed += len(waiting)
    row.put += len(rows)
    row.weighted = int(row.weighted or any(item.priority for _, item, _ in rows))
    return outcomes
