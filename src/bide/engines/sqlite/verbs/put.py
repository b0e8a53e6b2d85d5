"""Put: many messages, of many callers, in one go."""

from collections import defaultdict

from bide.engines.sqlite.session import Session
from bide.engines.sqlite.successors import clear, follow, insert, place_new
from bide.engines.sqlite.tables import ACKED, DEAD, EXPIRED, SQL, QueueRow, row_of
from bide.engines.sqlite.verbs.edit import told
from bide.model.commands import Put
from bide.model.message import Item
from bide.model.replies import Outcome, Reply

__all__ = ["put"]


def stores_new(command: Put) -> bool:
    """Tell whether a put stores messages where there are none."""
    return command.on_conflict != "revive" and command.if_version is None


def put(session: Session, run: list[Put]) -> list[Reply]:
    """Store the messages of consecutive puts: the new ones with one statement, then the others.

    Those whose id exists follow one after the other, as they were put.
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
        queues[name].put += len(placed)
        outcomes.update(place_new(session, queues[name], placed))
    for seq, (queue, command, item, _) in entries:
        if seq not in stored:
            outcomes[seq] = _put_again(session, queue, command, item)
    rest = (outcomes[seq] for seq, _ in entries)
    return [told([next(rest) for _ in command.items]) for command in run]


def _put_again(session: Session, queue: QueueRow, command: Put, item: Item) -> Outcome:
    """Put a message whose id exists, or has to exist."""
    now, version = session.now, command.if_version
    place = session.locate(queue, [item.id]).get(item.id)
    if place is None:
        return Outcome(item.id, False)
    if place.token is not None and item.follows(command.on_conflict, version):
        return follow(session, queue, item, place)
    if (
        command.on_conflict == "keep"
        or (command.on_conflict == "revive" and place.aside != DEAD)
        or (version is not None and session.version(queue, item.id) != version)
        or place.token is not None
        or place.aside in (ACKED, EXPIRED)
    ):
        return place.outcome(False, now)
    clear(session, queue, place)
    created = now if not place.created and item.latest is not None else place.created
    due = item.due(now, place.created or None)
    return insert(session, queue, item, place.seq, due, created)
