"""Put: the messages of many callers in few calls."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from bide.engines.redis.calls import Call, Step, origin_of, share_out, spread
from bide.engines.redis.records import Arg, refuse
from bide.engines.redis.shards import ShardedQueue
from bide.model.commands import Put
from bide.model.errors import StoreError
from bide.model.message import Item, State
from bide.model.replies import Outcome, Outcomes

_encode = msgspec.json.Encoder().encode


def put(run: Sequence[Put], sharded: ShardedQueue | None) -> Step:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    command = run[0]
    items = command.items if len(run) == 1 else [item for each in run for item in each.items]
    flags = _flags_of(items)
    records = list(map(_record_of, items))
    shards = 1 if sharded is None else sharded.count
    lots = [(0, [*range(len(items))])]
    if len(items) > 1 or shards > 1:
        lots = spread([item.id for item in items], shards, list(map(len, records)))
    first = 0 if sharded is None else sharded.take_numbers(len(items))
    calls = []
    for shard, lot in lots:
        places = "" if sharded is None else " ".join([str(first + index) for index in lot])
        origin = "" if command.origin is None else origin_of(command.origin, lot)
        args: list[Arg] = [command.on_conflict, command.if_version or "", flags, places, origin]
        for index in lot:
            args += (items[index].id, records[index], _plan_of(items[index]))
        calls.append(Call("put", command.queue, args, shard, shards))
    answers = yield calls

    outcomes: list[Any] = [None] * len(items)
    failed = False
    for (_, lot), answer in zip(lots, answers, strict=True):
        if isinstance(answer, StoreError):
            if not items:
                return [answer] * len(run)
            failed = True
            for index in lot:
                outcomes[index] = answer
            continue
        now, _change, following, told = answer
        if sharded is not None:
            sharded.see_number(following)
        for index in lot:
            outcomes[index] = _stored(items[index], now)
        for place, *outcome in told:
            id = items[lot[place]].id
            damaged = outcome[1:] == ["unreadable"]
            failed = failed or damaged
            found = refuse(command.queue, id) if damaged else Outcome(id, *outcome)
            outcomes[lot[place]] = found
    if len(run) > 1 or failed:
        return share_out([len(each.items) for each in run], outcomes, len(calls))
    due = [each.due for each in outcomes if each.done and each.state in ("delayed", "ready")]
    return [Outcomes(outcomes, min(due, default=None))]


def _stored(item: Item, now: int) -> Outcome:
    """Return the outcome of an item that is a new message."""
    due = now + item.delay if item.at is None else item.at
    if item.latest is not None:
        due = item.due(now)
    state: State = "ready" if due <= now else "delayed"
    return Outcome(item.id, True, state if item.died is None else "dead", due, item.died)


def _record_of(item: Item) -> bytes:
    """Return the record of an item that is put, from `kind` on."""
    group = b"" if item.group is None else item.group.encode()
    headers = b"" if item.headers is None else _encode(item.headers)
    failures = _encode(item.failures) if item.failures else b""
    line = _line(item.json, item.priority, item.attempt, item.attempts, item.expires, item.died)
    if group or headers or failures:
        lengths = b" %d %d %d" % (len(group), len(headers), len(failures))
        return b"".join((line, lengths, b"\n", group, headers, failures, item.data))
    return line + b"\n" + item.data


@lru_cache(1024)
def _line(
    json: bool, priority: int, attempt: int, attempts: int, expires: int | None, died: int | None
) -> bytes:
    text = (
        f"{'j' if json else 'b'} {priority} {attempt} {attempts} "
        f"{'-' if expires is None else expires} {'- -' if died is None else f'dead {died}'} -"
    )
    return text.encode()


def _plan_of(item: Item) -> str:
    """Return when an item is due, and what else puts it in its place: see put.lua."""
    when = f"+{item.delay}" if item.at is None else f"{item.at}"
    if item.latest is not None:
        when = f"{when}<{item.latest}"
    if item.group is None and item.died is None and item.created is None:
        return f"{when} {item.priority}"
    died, created = ("-" if ms is None else ms for ms in (item.died, item.created))
    return f"{when} {item.priority} {died} {created} {item.group or ''}"


def _flags_of(items: Sequence[Item]) -> str:
    """Return the flags of a queue that has these messages."""
    some = {
        "w": any(item.priority for item in items),
        "g": any(item.group is not None for item in items),
        "e": any(item.expires is not None for item in items),
    }
    return "".join(flag for flag, has in some.items() if has)
