"""Put: the messages of many callers in few calls."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from bide.engines.redis.calls import Step, in_lots, share_out
from bide.engines.redis.layout import Arg, as_outcome
from bide.engines.redis.queues import ShardedQueue
from bide.model.commands import Put
from bide.model.message import Item, State
from bide.model.replies import Outcome

_encode = msgspec.json.Encoder().encode


def put(run: Sequence[Put], sharded: ShardedQueue) -> Step:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    command = run[0]
    items = command.items if len(run) == 1 else [item for each in run for item in each.items]
    rows = [(item.id, _record_of(item), _plan_of(item)) for item in items]
    shards, first = sharded.count, sharded.next
    sharded.next += len(items)

    def head_of(lot: list[int]) -> list[Arg]:
        places = "" if shards == 1 else " ".join([str(first + index) for index in lot])
        return [command.on_conflict, command.if_version or "", places]

    sizes = [len(record) for _id, record, _plan in rows]
    outcomes, answered, failed = yield from in_lots("put", command, rows, head_of, shards, sizes)
    for lot, (now, _change, following, told) in answered:
        sharded.next = max(sharded.next, following)
        for index in lot:
            outcomes[index] = _stored(items[index], now)
        for place, *outcome in told:
            outcomes[lot[place]] = as_outcome(command.queue, items[lot[place]].id, *outcome)
    return share_out([len(each.items) for each in run], outcomes, failed)


def _stored(item: Item, now: int) -> Outcome:
    """Return the outcome of an item that is a new message."""
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
    expires = "" if item.expires is None else "e"
    died = "-" if item.died is None else item.died
    created = "-" if item.created is None else item.created
    return f"{when} {item.priority}{expires} {died} {created} {item.group or ''}"
