"""Put: many messages, of many callers, in one go."""

from collections.abc import Iterator, Sequence

from bide.engines.sqlite.rows import (
    ACKED,
    DEAD,
    EXPIRED,
    Place,
    QueueRow,
    is_plain,
    json_text,
    plain_row,
    row_of,
)
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.statements import SQL
from bide.engines.sqlite.successors import follow, insert
from bide.model.commands import Put
from bide.model.message import Item
from bide.model.replies import Outcome, Outcomes, Reply

__all__ = ["put"]


def put(session: Session, run: list[Put]) -> list[Reply]:
    """Store the messages of consecutive puts."""
    replies: list[Reply] = []
    keeps: list[Put] = []
    for command in run:
        if command.on_conflict == "keep":
            keeps.append(command)
        else:
            replies += _keep(session, keeps)
            keeps = []
            replies.append(_replace(session, command))
    return replies + _keep(session, keeps)


def _keep(session: Session, run: list[Put]) -> list[Reply]:
    """Store all messages of all commands with one statement; then find those whose id exists."""
    if not run:
        return []
    now = session.now
    # Made once: making a queue forgets what was kept long enough, and an id that is refused here
    # must still be there for its outcome below.
    queues = [session.make(command.queue) for command in run]
    base = seq = session.next_seq(sum([len(command.items) for command in run]))
    dues: list[int] = []
    plain = True
    for command in run:
        for item in command.items:
            dues.append(now + item.delay if item.at is None else item.at)
            plain = plain and is_plain(item)
    # Most are plain, and SQLite's driver takes its time over each NULL.
    insert, row = (SQL.insert_plain, plain_row) if plain else (SQL.insert_message, row_of)
    rest = iter(dues)
    rows = [
        row(seq := seq + 1, queue.id, item, next(rest), now)
        for queue, command in zip(queues, run, strict=True)
        for item in command.items
    ]
    stored: set[int] | None = None
    if session.run_many(insert, rows).rowcount < len(rows):
        stored = {seq for (seq,) in session.run(SQL.seqs_after, (base,))}
    replies: list[Reply] = []
    first = 0
    for queue, command in zip(queues, run, strict=True):
        mine = dues[first : first + len(command.items)]
        replies.append(_answer(session, queue, command.items, mine, base + first, stored))
        first += len(mine)
    session.run(SQL.delay_new, (base,))
    return replies


def _answer(
    session: Session,
    queue: QueueRow,
    items: list[Item],
    dues: list[int],
    base: int,
    stored: set[int] | None,
) -> Outcomes:
    """Count what was stored, and tell of each message where it stands now.

    Args:
        session: of the batch.
        queue: of the messages.
        items: of one command.
        dues: when they are due.
        base: the sequence number before the first.
        stored: the sequence numbers of those that are new; `None`: all are.
    """
    now = session.now
    known = [] if stored is None else [
        item.id for seq, item in enumerate(items, base + 1) if seq not in stored
    ]  # fmt: skip
    dead = [
        (item.died, queue.id, item.id) for seq, item in enumerate(items, base + 1)
        if item.died is not None and (stored is None or seq in stored)
    ]  # fmt: skip
    if dead:
        session.run_many(SQL.insert_dead, dead)
    places = session.locate(queue, known) if known else {}
    outcomes: list[Outcome] = []
    waiting: list[int] = []
    for seq, (item, due) in enumerate(zip(items, dues, strict=True), base + 1):
        if stored is not None and seq not in stored:
            outcomes.append(places[item.id].outcome(False, now))
            continue
        if item.priority:
            queue.weighted = 1
        if item.died is not None:
            outcomes.append(Outcome(item.id, True, "dead", due, item.died))
        else:
            outcomes.append(Outcome(item.id, True, "ready" if due <= now else "delayed", due))
            waiting.append(due)
    session.count_hours(queue, waiting)
    queue.put += len(waiting) + len(dead)
    queue.delayed += len(waiting)
    queue.dead += len(dead)
    queue.died += len(dead)
    return Outcomes(outcomes, min(waiting, default=None))


def _replace(session: Session, command: Put) -> Outcomes:
    """Store messages, in the place of those with their ids that nobody holds."""
    outcomes: list[Outcome] = []
    wakes: list[int] = []
    for items in _distinct(command.items):
        queue = session.make(command.queue)
        places = session.locate(queue, [item.id for item in items])
        for item in items:
            place = places.get(item.id)
            if command.on_conflict == "revive" and (place is None or place.aside != DEAD):
                known = place.outcome(False, session.now) if place else Outcome(item.id, False)
                outcomes.append(known)
                continue
            if command.if_version is not None and place is None:
                outcomes.append(Outcome(item.id, False))
                continue
            follows = item.follows(command.on_conflict, command.if_version)
            if place is not None and place.token is not None and follows:
                outcomes.append(follow(session, queue, item, place))
                continue
            version = command.if_version
            if place is not None and not (
                (version is None or session.versions(queue, [item.id]).get(item.id) == version)
                and _clear(session, queue, place)
            ):
                outcomes.append(place.outcome(False, session.now))
                continue
            outcome = _store(session, queue, item, place)
            outcomes.append(outcome)
            if outcome.state != "dead" and outcome.due is not None:
                wakes.append(outcome.due)
    return Outcomes(outcomes, min(wakes, default=None))


def _distinct(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Split items so that no id comes twice in one part: the second replaces the first."""
    part: dict[str, Item] = {}
    for item in items:
        if item.id in part:
            yield list(part.values())
            part = {}
        part[item.id] = item
    yield list(part.values())


def _clear(session: Session, queue: QueueRow, place: Place) -> bool:
    """Delete a message that is to be replaced; return whether that may be done."""
    if place.token is not None or place.aside in (ACKED, EXPIRED):
        return False
    if place.aside == DEAD:
        session.run(SQL.drop_aside, (json_text([place.seq]),))
        queue.dead -= 1
        queue.revived += 1
    else:
        session.leave_pending(queue, [(place.seq, place.due, place.priority)])
    session.delete([place.seq])
    return True


def _store(session: Session, queue: QueueRow, item: Item, old: Place | None) -> Outcome:
    now = session.now
    if old is None:
        queue.put += 1
        return insert(session, queue, item, session.next_seq(1) + 1, item.due(now), now)
    created = now if not old.created and item.latest is not None else old.created
    return insert(session, queue, item, old.seq, item.due(now, old.created or None), created)
