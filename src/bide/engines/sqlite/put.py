"""Put: many messages, of many callers, in one go."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from bide.engines.sqlite.queue_state import SqliteQueue
from bide.engines.sqlite.tables import DEAD, SQL, row_of
from bide.model.commands import Command, Put
from bide.model.message import Item, State
from bide.model.replies import Outcome, Outcomes, Reply


def together(command: Command) -> bool | None:
    """Return a key that is equal for consecutive puts that run as one; `None`: it is no such put.

    It is whether they store messages whose id does not exist: one that stores nothing new must not
    find what a later one stores.
    """
    if not isinstance(command, Put) or command.origin is not None:
        return None
    return command.on_conflict != "revive" and command.if_version is None


def put_one(run: Callable[..., Any], command: Put, now: int) -> Outcomes | None:
    """Put one simple message with one statement: half the time of a transaction of several.

    Args:
        run: runs a statement.
        command: the put.
        now: in Unix milliseconds.

    Returns:
        `None`, with nothing done, if it is not simple: it has headers or a history, its id exists,
        or its queue is new or remembers messages.

    Raises:
        sqlite3.OperationalError: another process has the store.
    """
    if len(command.items) != 1 or command.on_conflict == "revive":
        return None
    if command.if_version is not None or command.origin is not None:
        return None
    item = command.items[0]
    if item.headers is not None or item.died is not None or item.created is not None:
        return None
    if item.attempt or item.failures:
        return None
    due = item.due(now)
    values = (
        command.queue,
        item.id,
        due,
        item.priority,
        item.attempts,
        -1 if item.expires is None else item.expires,
        item.group or "",
        item.data.decode() if item.json else item.data,
        now,
        item.rule or "",
        item.run or "",
    )
    try:
        run(SQL.put_one, values)
    except sqlite3.IntegrityError:  # the id exists, or the trigger found it not simple
        return None
    state: State = "ready" if due <= now else "delayed"
    return Outcomes([Outcome(item.id, True, state, due)], due)


def put_all(
    make: Callable[[str], SqliteQueue], puts: Sequence[Put], *, stores_new: bool
) -> list[Reply]:
    """Execute consecutive puts that have the same key, those of each queue together.

    Args:
        make: returns the queue of a name, made if it did not exist.
        puts: to be executed.
        stores_new: their key.
    """
    by_queue: dict[str, list[Put]] = defaultdict(list)
    for command in puts:
        by_queue[command.queue].append(command)
    replies = {
        name: iter(_put_into(make(name), commands, stores_new=stores_new))
        for name, commands in by_queue.items()
    }
    return [next(replies[command.queue]) for command in puts]  # in the order of the puts


def _put_into(queue: SqliteQueue, commands: Sequence[Put], *, stores_new: bool) -> list[Reply]:
    """Store the new messages with one statement, then the others in the order of the puts.

    Each item has a sequence number, counted on from `base`, also those that are not stored.
    """
    items = [item for command in commands for item in command.items]
    base = queue.number(SQL.last_seq)
    outcomes: dict[int, Outcome] = {}  # by sequence number
    facts = queue.facts
    some_refused = queue.row.closed > 0 and any(facts.refuses_until(item) for item in items)
    if stores_new and not some_refused:  # else one by one, because an id may be named twice
        outcomes = _store_new(queue, items, base)
    if len(outcomes) < len(items):
        from bide.engines.sqlite.put_again import put_others  # here: most ids are new

        put_others(queue, commands, base, outcomes)
    in_order = [outcomes[seq] for seq in range(base + 1, base + 1 + len(items))]
    if len(commands) == 1:
        return [Outcomes.of(in_order)]
    remaining = iter(in_order)
    return [Outcomes.of([next(remaining) for _ in command.items]) for command in commands]


def _store_new(queue: SqliteQueue, items: Sequence[Item], base: int) -> dict[int, Outcome]:
    """Store the items whose id does not exist, and let them wait, or be dead letters.

    Args:
        queue: that they are put into.
        items: to be stored.
        base: the last sequence number before theirs.

    Returns:
        The outcome of each item that was stored, by its sequence number.
    """
    row, now = queue.row, queue.now
    seqs = range(base + 1, base + 1 + len(items))
    item_dues = [item.due(now) for item in items]
    rows = map(row_of, seqs, repeat(row.id), items, item_dues, repeat(now))
    count = queue.run_many(SQL.insert_message, rows).rowcount
    new: Iterable[tuple[int, Item, int]] = zip(seqs, items, item_dues, strict=True)
    if count < len(items):  # the statement leaves out ids that exist
        stored = {seq for (seq,) in queue.run(SQL.seqs_after, (base,))}
        new = [(seq, item, due) for seq, item, due in new if seq in stored]
    outcomes: dict[int, Outcome] = {}
    dues: list[int] = []
    has_priorities = False
    for seq, item, due in new:
        has_priorities = has_priorities or item.priority > 0
        if item.died is not None:
            queue.run(SQL.insert_aside, (seq, row.id, DEAD, item.died))
            outcomes[seq] = Outcome(item.id, True, "dead", due, item.died)
        else:
            dues.append(due)
            outcomes[seq] = Outcome(item.id, True, "ready" if due <= now else "delayed", due)
    queue.run(SQL.delay_after, (base, base))
    queue.count_hours(dues, 1)
    row.delayed += len(dues)
    row.dead += len(outcomes) - len(dues)
    row.put += len(outcomes)
    if has_priorities:
        row.weighted = 1
    return outcomes
