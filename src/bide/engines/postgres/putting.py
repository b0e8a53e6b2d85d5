"""Puts: from items to arguments of the schema's functions, and from their rows to outcomes."""

import struct
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from operator import le
from typing import Any

import msgspec

from bide.engines.postgres.arrays import Array, booleans, byteas, integers, texts
from bide.engines.postgres.reading import Run, of_version
from bide.model import commands as cmd
from bide.model.message import ATTEMPTS, STATES, Item
from bide.model.replies import Outcome, Outcomes, Reply

__all__ = ["only_puts", "outcome", "put_one", "put_outcomes", "puts"]

_encode = msgspec.json.encode
_int4 = struct.Struct("!i").pack
_int8 = struct.Struct("!q").pack
_from_int8 = struct.Struct("!q").unpack
_PRIORITY, _ATTEMPTS = _int4(0), _int4(ATTEMPTS)
_FALSE, _TRUE = b"\0", b"\1"


def only_puts(commands: Sequence[cmd.Command]) -> bool:
    """Whether commands are puts into one queue that keep what is there: together one call."""
    queue = commands[0].queue
    return all(
        isinstance(c, cmd.Put) and c.on_conflict == "keep" and c.queue == queue and c.origin is None
        for c in commands
    )


def put_one(
    call: Callable[..., tuple[bytes | None, bytes | None]],
    function: str,
    commands: Sequence[cmd.Command],
    now: int | None,
) -> tuple[Outcomes, int, int] | None:
    """Store one message the short way, if that is all there is to do.

    Args:
        call: calls a function of the schema with arguments in binary form, and returns its value
            and how far the log has come, in binary form too.
        function: which one.
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
        function,
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


def puts(
    run: Run, queue: str, commands: Sequence[cmd.Put], now: int | None, hopeful: bool
) -> list[Reply]:
    """Store the messages of consecutive puts into one queue: in one call those that keep."""
    if len(commands) == 1 and commands[0].on_conflict == "keep":
        return _keep(run, queue, commands, now, hopeful)
    found: list[Reply] = []
    for keeps, group in groupby(commands, lambda c: c.on_conflict == "keep"):
        same = list(group)
        if keeps:
            found += _keep(run, queue, same, now, hopeful)
        else:
            found += [_replace(run, command, now) for command in same]
    return found


def _keep(
    run: Run, queue: str, commands: Sequence[cmd.Put], now: int | None, hopeful: bool
) -> list[Reply]:
    items = [item for command in commands for item in command.items]
    ids = [item.id for item in items]
    ascending = all(map(le, ids, islice(ids, 1, None)))
    outcomes = put_outcomes(items, run("_put", queue, now, *_columns(items), hopeful, ascending))
    found: list[Reply] = []
    first = 0
    for command in commands:
        mine = outcomes[first : first + len(command.items)]
        first += len(mine)
        found.append(Outcomes(mine, _wake(mine)))
    return found


def _replace(run: Run, command: cmd.Put, now: int | None) -> Outcomes:
    items = command.items
    only = None
    if command.if_version is not None:
        ids = [item.id for item in items]
        right = of_version(run, command.queue, ids, command.if_version)
        if len(set(ids)) < len(ids):  # one after the other: the first gives another version
            parts = [msgspec.structs.replace(command, items=[item]) for item in items]
            outcomes = [o for part in parts for o in _replace(run, part, now).outcomes]
            return Outcomes(outcomes, _wake(outcomes))
        only = integers(right)
    revive = command.on_conflict == "revive"
    latest = _some([i.latest for i in items], None, integers)
    rows = run("_replace", command.queue, now, *_columns(items), latest, revive, only)
    outcomes = put_outcomes(items, rows)
    return Outcomes(outcomes, _wake(outcomes))


def _wake(outcomes: list[Outcome]) -> int | None:
    waits = ("delayed", "ready")
    dues = [o.due for o in outcomes if o.done and o.state in waits and o.due is not None]
    return min(dues, default=None)


def _some(values: list[Any], default: Any, array: Callable[[list[Any]], Array]) -> Array | None:
    """Return values as an array; nothing if all are the default."""
    return None if values.count(default) == len(values) else array(values)


def _columns(items: Sequence[Item]) -> list[Array | None]:
    """Return items as the arguments of a put; nothing for a field that no item has."""
    delays = [i.delay for i in items]
    return [
        texts([i.id for i in items]),
        _some([i.json for i in items], True, booleans),
        byteas([i.data for i in items]),
        _some([i.at for i in items], None, integers),
        integers(delays[:1] if len(set(delays)) == 1 else delays),
        _some([i.priority for i in items], 0, integers),
        _some([i.attempts for i in items], ATTEMPTS, integers),
        _some([i.expires for i in items], None, integers),
        _some([i.group for i in items], None, texts),
        _some([i.headers for i in items], None, _objects),
        _some([i.attempt for i in items], 0, integers),
        _some([i.failures or None for i in items], None, _objects),
        _some([i.died for i in items], None, integers),
        _some([i.created for i in items], None, integers),
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
        else outcome(item.id, getattr(row, "done", False), row)
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
