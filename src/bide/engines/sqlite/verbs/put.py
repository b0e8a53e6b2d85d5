"""Put: many messages, of many callers, in one go."""

from collections import defaultdict
from collections.abc import Sequence

from bide.engines.queue_rules import PART, outcomes_of
from bide.engines.sqlite.records import Records
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import DEAD, SQL, QueueRow, json_text, row_of
from bide.model.commands import Put
from bide.model.message import Item, State
from bide.model.replies import Outcome, Reply

__all__ = ["put"]


def stores_new(command: Put) -> bool:
    """Return whether a put stores messages whose id does not exist."""
    return command.on_conflict != "revive" and command.if_version is None


def put(session: Session, run: list[Put]) -> list[Reply]:
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
        row_of(seq, queue.id, item, due, now)
        for seq, (queue, command, item, due) in entries
        if stores_new(command)
    ]
    stored = {row[0] for row in rows}
    if session.run_many(SQL.insert_message, rows).rowcount < len(rows):
        stored = {seq for (seq,) in session.run(SQL.seqs_after, (base,))}
    new: dict[str, list[tuple[int, Item, int]]] = defaultdict(list)
    for seq, (queue, _, item, due) in entries:
        if seq in stored:
            new[queue.name].append((seq, item, due))
    outcomes: dict[int, Outcome] = {}
    for name, placed in new.items():
        outcomes.update(_place_new(session, queues[name], placed))
    left = [(seq, *entry) for seq, entry in entries if seq not in stored]
    for start in range(0, len(left), PART):
        part = left[start : start + PART]
        ids: dict[str, list[str]] = defaultdict(list)
        for _, queue, _, item, _ in part:
            ids[queue.name].append(item.id)
        records = {name: Records(session, queues[name]) for name in ids}
        for name, found in records.items():
            found.load(ids[name])
        for seq, queue, command, item, _ in part:
            found = records[queue.name]
            record = found.records.get(item.id)
            outcomes[seq] = (
                Outcome(item.id, False)
                if record is None
                else found.put_again(record, item, command, now)
            )
    rest = (outcomes[seq] for seq, _ in entries)
    return [outcomes_of([next(rest) for _ in command.items]) for command in run]


def _place_new(
    session: Session, queue: QueueRow, rows: Sequence[tuple[int, Item, int]]
) -> dict[int, Outcome]:
    """Let messages that were just inserted wait, or be dead letters: (seq, item, due)."""
    outcomes: dict[int, Outcome] = {}
    for seq, item, due in rows:
        if item.died is None:
            state: State = "ready" if due <= session.now else "delayed"
            outcomes[seq] = Outcome(item.id, True, state, due)
        else:
            session.run(SQL.insert_aside, (seq, queue.id, DEAD, item.died))
            queue.dead += 1
            queue.died += 1
            outcomes[seq] = Outcome(item.id, True, "dead", due, item.died)
    waiting = [(seq, due) for seq, item, due in rows if item.died is None]
    session.run(SQL.delay, (json_text([seq for seq, _ in waiting]),))
    session.count_hours(queue, [due for _, due in waiting])
    queue.delayed += len(waiting)
    queue.put += len(rows)
    queue.weighted = int(queue.weighted or any(item.priority for _, item, _ in rows))
    return outcomes
