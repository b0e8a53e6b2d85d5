"""Successors of leased messages: what puts with `latest` store until the lease ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from bide.engines.sqlite.tables import ACKED, DEAD, SQL, Place, QueueRow, as_item, json_text, row_of
from bide.model.message import Item, Message, State
from bide.model.replies import Outcome

if TYPE_CHECKING:
    from bide.engines.sqlite.session import Session


def successors(session: "Session", queue: QueueRow, ids: Sequence[str]) -> dict[str, Item]:
    """Return the successors of messages, by id."""
    if not (queue.successors and ids):
        return {}
    rows = session.run(SQL.successors, (queue.id, json_text(ids)))
    return {item.id: item for (text,) in rows for item in [as_item(text)]}


def with_successors(
    session: "Session", queue: QueueRow, messages: Sequence[Message]
) -> list[Message]:
    """Return messages, the leased ones with their successors."""
    leased = [message.id for message in messages if message.state == "leased"]
    found = successors(session, queue, leased)
    return [
        msgspec.structs.replace(message, successor=found[message.id])
        if message.id in found
        else message
        for message in messages
    ]


def follow(session: "Session", queue: QueueRow, item: Item, place: Place) -> Outcome:
    """Store an item as the successor of a leased message; the newest one stays."""
    before = successors(session, queue, [item.id]).get(item.id)
    new = item.follow(before, session.now)
    queue.successors += before is None
    session.run(SQL.store_successor, (queue.id, item.id, json_text(new)))
    return msgspec.structs.replace(place.outcome(True, session.now), successor=new.at)


def drop(session: "Session", queue: QueueRow, ids: Sequence[str]) -> None:
    """Delete successors."""
    if ids:
        queue.successors -= session.run(SQL.drop_successors, (queue.id, json_text(ids))).rowcount


def followed(session: "Session", queue: QueueRow, places: Sequence[Place]) -> dict[str, Outcome]:
    """Let successors take the places of messages whose leases have ended.

    Returns:
        The new places of the messages that had one, by id.
    """
    found = successors(session, queue, [place.id for place in places])
    outcomes: dict[str, Outcome] = {}
    for place in places:
        if (item := found.get(place.id)) is None:
            continue
        row = session.run(SQL.locate, (queue.id, json_text([place.id]))).fetchone()
        if row is None:  # acked
            queue.put += 1
        else:
            clear(session, queue, Place(*row))
        assert item.at is not None
        outcomes[place.id] = insert(session, queue, item, place.seq, item.at, 0)
    drop(session, queue, list(outcomes))
    return outcomes


def clear(session: "Session", queue: QueueRow, place: Place) -> None:
    """Delete a message that no worker holds, whose id gets another one."""
    if place.aside is None:
        session.leave_pending(queue, [(place.seq, place.due, place.priority)])
    else:
        session.run(SQL.drop_aside, (json_text([place.seq]),))
        if place.aside == DEAD:
            queue.dead -= 1
            queue.revived += 1
        elif place.aside == ACKED:
            queue.kept -= 1
            queue.put += 1
    session.delete([place.seq])


def insert(
    session: "Session", queue: QueueRow, item: Item, seq: int, due: int, created: int
) -> Outcome:
    """Store an item as the message of a sequence number that is free."""
    session.run(SQL.insert_message, row_of(seq, queue.id, item, due, created))
    return place_new(session, queue, [(seq, item, due)])[seq]


def place_new(
    session: "Session", queue: QueueRow, rows: Sequence[tuple[int, Item, int]]
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
    session.delay(queue, [(s, due, item.priority) for s, item, due in rows if item.died is None])
    queue.weighted = int(queue.weighted or any(item.priority for _, item, _ in rows))
    return outcomes
