"""Puts: from items to arguments of the schema's functions, and from their rows to outcomes."""

import struct
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from bide.engines.postgres.arrays import Array, booleans, byteas, integers, texts
from bide.engines.postgres.batch import Batch
from bide.engines.postgres.reading import of_versions
from bide.model import commands as cmd
from bide.model.message import ATTEMPTS, STATES, Item
from bide.model.replies import Outcome, Outcomes, Reply

_encode = msgspec.json.encode
_int4 = struct.Struct("!i").pack
_int8 = struct.Struct("!q").pack
_from_int8 = struct.Struct("!q").unpack
_PRIORITY, _ATTEMPTS = _int4(0), _int4(ATTEMPTS)
_FALSE, _TRUE = b"\0", b"\1"


def only_puts(commands: Sequence[cmd.Command]) -> bool:
    """Whether all commands are puts into one queue that keep existing messages: one call."""
    queue = commands[0].queue
    return all(
        isinstance(c, cmd.Put) and c.on_conflict == "keep" and c.queue == queue and c.origin is None
        for c in commands
    )


def put_one(
    call: Callable[..., tuple[bytes | None, bytes | None]],
    commands: Sequence[cmd.Command],
    now: int | None,
) -> tuple[Outcomes, int, int] | None:
    """Store one message the short way, if that is all there is to do.

    Args:
        call: calls a function of the schema with arguments in binary form, and returns its value
            and how far the log has come, in binary form too.
        commands: a batch.
        now: Unix milliseconds to go by; `None`: the server's clock.

    Returns:
        The reply, when it was put by the server's clock, and how far the log had come; `None`:
        nothing was stored.
    """
    command = commands[0]
    if len(commands) > 1 or type(command) is not cmd.Put or command.on_conflict != "keep":
        return None
    if len(command.items) != 1 or command.origin is not None:
        return None
    (item,) = command.items
    if item.died is not None or item.created is not None or item.attempt or item.failures:
        return None
    put, place = call(
        "_put_one",
        command.queue.encode(),
        None if now is None else _int8(now),
        item.id.encode(),
        _TRUE if item.json else _FALSE,
        item.data,
        None if item.at is None else _int8(item.at),
        _int8(item.delay),
        _int4(item.priority) if item.priority else _PRIORITY,
        _ATTEMPTS if item.attempts == ATTEMPTS else _int4(item.attempts),
        None if item.expires is None else _int8(item.expires),
        None if item.group is None else item.group.encode(),
        None if item.headers is None else _encode(item.headers),
    )
    if put is None or place is None:
        return None
    (moment,) = _from_int8(put)
    outcome = _stored(item, moment)
    return Outcomes([outcome], outcome.due), moment, _from_int8(place)[0]


def puts(batch: Batch, queue: str, commands: Sequence[cmd.Put]) -> list[Reply]:
    """Store the messages of consecutive puts into one queue: in one call those that keep."""
    found: list[Reply] = []
    for keeps, group in groupby(commands, lambda c: c.on_conflict == "keep"):
        same = list(group)
        for together in [same] if keeps else [[command] for command in same]:
            items = [item for command in together for item in command.items]
            outcomes = _put(batch, queue, together[0], items)
            for command in together:
                mine, outcomes = outcomes[: len(command.items)], outcomes[len(command.items) :]
                dues = [o.due for o in mine if o.done and o.state in ("delayed", "ready")]
                found.append(Outcomes(mine, min(filter(None, dues), default=None)))
    return found


def _put(batch: Batch, queue: str, command: cmd.Put, items: Sequence[Item]) -> list[Outcome]:
    """Put messages as a command says."""
    mode, only = command.on_conflict, None
    if command.if_version is not None:
        ids = [item.id for item in items]
        only = integers(of_versions(batch, queue, dict.fromkeys(ids, command.if_version)))
        if len(set(ids)) < len(ids):  # one after the other: the first gives another version
            return [o for item in items for o in _put(batch, queue, command, [item])]
    hopeful = batch.hopeful and mode == "keep" and not any(item.died for item in items)
    rows = batch.call("_put", queue, batch.now, mode, hopeful, only, *_columns(items))
    batch.places[queue], batch.moments[queue] = rows[-1].until, rows[-1].due
    return put_outcomes(items, rows)


def some(values: list[Any], default: Any, array: Callable[[list[Any]], Array]) -> Array | None:
    """Return values as an array; nothing if all are the default."""
    return None if values.count(default) == len(values) else array(values)


def _columns(items: Sequence[Item]) -> list[Array | None]:
    """Return items as the arguments of a put; nothing for a field that no item has."""
    delays = [i.delay for i in items]
    return [
        texts([i.id for i in items]),
        some([i.json for i in items], True, booleans),
        byteas([i.data for i in items]),
        some([i.at for i in items], None, integers),
        integers(delays[:1] if len(set(delays)) == 1 else delays),
        some([i.priority for i in items], 0, integers),
        some([i.attempts for i in items], ATTEMPTS, integers),
        some([i.expires for i in items], None, integers),
        some([i.group for i in items], None, texts),
        some([i.headers for i in items], None, _objects),
        some([i.latest for i in items], None, integers),
        some([i.attempt for i in items], 0, integers),
        some([i.failures or None for i in items], None, _objects),
        some([i.died for i in items], None, integers),
        some([i.created for i in items], None, integers),
    ]


def _objects(values: Sequence[Any]) -> Array:
    """Return an array of JSON texts."""
    return texts([None if value is None else _encode(value).decode() for value in values])


def put_outcomes(items: Sequence[Item], rows: list[Any]) -> list[Outcome]:
    """Return the outcomes of a put, of the rows that it answers."""
    if not rows:
        return []
    moment = rows[-1].due
    if len(rows) == 1:
        return [_stored(item, moment) for item in items]
    met = {row.number: row for row in rows[:-1]}
    return [
        _stored(item, moment)
        if (row := met.get(number)) is None
        else outcome(item.id, row.done, row)
        for number, item in enumerate(items, 1)
    ]


def _stored(item: Item, moment: int) -> Outcome:
    due = moment + item.delay if item.at is None else item.at
    if item.died is not None:
        return Outcome(item.id, True, "dead", due, item.died)
    return Outcome(item.id, True, "ready" if due <= moment else "delayed", due)


def outcome(id: str, done: bool, row: Any) -> Outcome:
    """Return what a row says of a message."""
    state = None if row.state is None else STATES[row.state]
    successor = getattr(row, "successor", None)
    return Outcome(id, done, state, row.due, row.until, row.holder, successor)
