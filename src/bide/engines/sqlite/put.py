"""Put: many messages, of many callers, in one go."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bide.engines.queue_rules import PART, outcomes_of
from bide.engines.sqlite.queue_state import QueueState
from bide.engines.sqlite.tables import DEAD, SQL, json_text, row_of
from bide.model.commands import Command, Put
from bide.model.message import Item, State
from bide.model.replies import Outcome, Reply

if TYPE_CHECKING:
    from bide.engines.sqlite.session import Session


def together(command: Command) -> bool | None:
    """Return a key that is equal for consecutive puts that run as one; `None`: it is no such put.

    A put that stores nothing new must not find what a later one stores.
    """
    return _stores_new(command) if isinstance(command, Put) and command.origin is None else None


def _stores_new(command: Put) -> bool:
    """Return whether a put stores messages whose id does not exist."""
    return command.on_conflict != "revive" and command.if_version is None


def put_all(session: "Session", run: list[Put]) -> list[Reply]:
    """Store the messages of consecutive puts: the new ones with one statement, then the others.

    Those whose id exists follow one by one, in the order of the puts.
    """
    now = session.now
    # Made once: making a queue forgets what was kept long enough, and an id that is refused here
    # must still be there for its outcome below.
    queues = {name: session.make(name) for name in dict.fromkeys(one.queue for one in run)}
    base = session.next_seq(sum(len(command.items) for command in run))
    put = ((queues[one.queue], one, item, item.due(now)) for one in run for item in one.items)
    entries = list(enumerate(put, base + 1))
    rows = [
        row_of(seq, queue.row.id, item, due, now)
        for seq, (queue, command, item, due) in entries
        if _stores_new(command)
    ]
    stored = {row[0] for row in rows}
    if session.run_many(SQL.insert_message, rows).rowcount < len(rows):
        stored = {seq for (seq,) in session.run(SQL.seqs_after, (base,))}
    new: dict[str, list[tuple[int, Item, int]]] = defaultdict(list)
    for seq, (queue, _, item, due) in entries:
        if seq in stored:
            new[queue.row.name].append((seq, item, due))
    outcomes: dict[int, Outcome] = {}
    for name, placed in new.items():
        outcomes.update(_place_new(queues[name], placed))
    left = [(seq, *entry) for seq, entry in entries if seq not in stored]
    for start in range(0, len(left), PART):
        part = left[start : start + PART]
        ids: dict[str, list[str]] = defaultdict(list)
        for _, queue, _, item, _ in part:
            ids[queue.row.name].append(item.id)
        for name in ids:
            queues[name].load(ids[name])
        for seq, queue, command, item, _ in part:
            record = queue.records.get(item.id)
            outcomes[seq] = (
                Outcome(item.id, False)
                if record is None
                else queue.put_again(record, item, command)
            )
    rest = (outcomes[seq] for seq, _ in entries)
    return [outcomes_of([next(rest) for _ in command.items]) for command in run]


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
