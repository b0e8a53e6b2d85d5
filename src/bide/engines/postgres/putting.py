"""Puts: from items to arguments of the schema's functions, and from their rows to outcomes."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from bide.engines.postgres.arrays import booleans, byteas, integers, texts
from bide.engines.postgres.batch import PostgresBatch
from bide.engines.postgres.constants import OUTCOME_STATES
from bide.engines.postgres.reading import of_versions
from bide.engines.rules.outcomes import outcomes_of
from bide.model import commands as cmd
from bide.model.message import ATTEMPTS, Item
from bide.model.replies import Outcome, Outcomes, Reply


def only_puts(commands: Sequence[cmd.Command]) -> bool:
    """Whether all commands are puts into one queue that keep existing messages: one call."""
    queue = commands[0].queue
    return all(
        isinstance(c, cmd.Put) and c.on_conflict == "keep" and c.queue == queue and c.origin is None
        for c in commands
    )


def put_one(batch: PostgresBatch, commands: Sequence[cmd.Command]) -> list[Reply] | None:
    """Store one message the short way, if that is all there is to do; else return `None`."""
    command = commands[0]
    if len(commands) > 1 or type(command) is not cmd.Put or command.on_conflict != "keep":
        return None
    if len(command.items) != 1 or command.origin is not None:
        return None
    (item,) = command.items
    if item.died is not None or item.created is not None or item.attempt or item.failures:
        return None
    ((moment, lsn),) = batch.call(
        "_put_one",
        command.queue,
        batch.now,
        id=item.id,
        is_json=item.json,
        data=item.data,
        at=item.at,
        delay=item.delay,
        priority=item.priority,
        attempts=item.attempts,
        expires=item.expires,
        group=item.group,
        headers=None if item.headers is None else batch.json(item.headers),
        **batch.identity,
    )
    if moment is None:
        return None
    batch.positions[command.queue], batch.moments[command.queue] = int.from_bytes(lsn), moment
    outcome = stored(item, moment)
    return [Outcomes([outcome], outcome.due)]


def puts(batch: PostgresBatch, queue: str, commands: Sequence[cmd.Put]) -> list[Reply]:
    """Store the messages of consecutive puts into one queue: in one call those that keep."""
    replies: list[Reply] = []
    for keeps, group in groupby(commands, lambda c: c.on_conflict == "keep"):
        same = list(group)
        for together in [same] if keeps else [[command] for command in same]:
            items = [item for command in together for item in command.items]
            outcomes = _put(batch, queue, together[0], items)
            for command in together:
                own, outcomes = outcomes[: len(command.items)], outcomes[len(command.items) :]
                replies.append(outcomes_of(own))
    return replies


def _put(
    batch: PostgresBatch, queue: str, command: cmd.Put, items: Sequence[Item]
) -> list[Outcome]:
    """Put messages as a command says."""
    mode, only = command.on_conflict, None
    if command.if_version is not None:
        ids = [item.id for item in items]
        only = integers(of_versions(batch, queue, dict.fromkeys(ids, command.if_version)))
        if len(set(ids)) < len(ids):  # one after the other: the first gives another version
            return [o for item in items for o in _put(batch, queue, command, [item])]
    hopeful = batch.hopeful and mode == "keep" and not any(item.died for item in items)
    rows = batch.call(
        "_put",
        queue,
        batch.now,
        mode=mode,
        hopeful=hopeful,
        only_seqs=only,
        **_columns(batch, items),
        **batch.identity,
    )
    batch.positions[queue], batch.moments[queue] = int.from_bytes(rows[-1].lsn), rows[-1].due
    return put_outcomes(items, rows)


def some(values: list[Any], default: Any, array: Callable[[list[Any]], bytes]) -> bytes | None:
    """Return values as an array; nothing if all are the default."""
    return None if values.count(default) == len(values) else array(values)


def _columns(batch: PostgresBatch, items: Sequence[Item]) -> dict[str, bytes | None]:
    """Return items as the arguments of a put; nothing for a field that no item has."""
    delays = [i.delay for i in items]

    def objects(values: Sequence[Any]) -> bytes:
        return texts([None if value is None else batch.json(value) for value in values])

    return {
        "ids": texts([i.id for i in items]),
        "is_json": some([i.json for i in items], True, booleans),
        "data": byteas([i.data for i in items]),
        "at": some([i.at for i in items], None, integers),
        "delay": integers(delays[:1] if len(set(delays)) == 1 else delays),
        "priority": some([i.priority for i in items], 0, integers),
        "attempts": some([i.attempts for i in items], ATTEMPTS, integers),
        "expires": some([i.expires for i in items], None, integers),
        "group": some([i.group for i in items], None, texts),
        "headers": some([i.headers for i in items], None, objects),
        "latest": some([i.latest for i in items], None, integers),
        "attempt": some([i.attempt for i in items], 0, integers),
        "failures": some([i.failures or None for i in items], None, objects),
        "died": some([i.died for i in items], None, integers),
        "created": some([i.created for i in items], None, integers),
    }


def put_outcomes(items: Sequence[Item], rows: list[Any]) -> list[Outcome]:
    """Return the outcomes of a put, of the rows that it answers."""
    if not rows:
        return []
    moment = rows[-1].due
    if len(rows) == 1:
        return [stored(item, moment) for item in items]
    met = {row.number: row for row in rows[:-1]}
    return [
        stored(item, moment)
        if (row := met.get(number)) is None
        else outcome(item.id, row.done, row)
        for number, item in enumerate(items, 1)
    ]


def stored(item: Item, moment: int) -> Outcome:
    """Return the outcome of a message that was stored at a time."""
    due = moment + item.delay if item.at is None else item.at
    if item.died is not None:
        return Outcome(item.id, True, "dead", due, item.died)
    return Outcome(item.id, True, "ready" if due <= moment else "delayed", due)


def outcome(id: str, done: bool, row: Any) -> Outcome:
    """Return what a row says of a message."""
    state = None if row.state is None else OUTCOME_STATES[row.state]
    successor = getattr(row, "successor", None)
    return Outcome(id, done, state, row.due, row.until, row.holder, successor)
