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
    plans, flags = _plans(items)
    records = list(map(_record_of, items))
    shards = 1 if sharded is None else sharded.count
    lots: list[tuple[int, Sequence[int]]] = [(0, range(len(items)))]
    if len(items) > 1 or shards > 1:
        lots = spread([item.id for item in items], shards, list(map(len, records)))
    first = 0 if sharded is None else sharded.take_numbers(len(items))
    calls = []
    for shard, lot in lots:
        places = "" if sharded is None else " ".join([str(first + index) for index in lot])
        origin = "" if command.origin is None else origin_of(command.origin, lot)
        args: list[Arg] = [command.on_conflict, command.if_version or "", flags, places, origin]
        for index in lot:
            args += (items[index].id, records[index], plans[index])
        calls.append(Call("put", command.queue, args, shard, shards))
    answers = yield calls

    outcomes: list[Any] = [None] * len(items)
    wake: int | None = None
    failed = new = False
    for (_, lot), answer in zip(lots, answers, strict=True):
        if isinstance(answer, StoreError):
            if not items:
                return [answer] * len(run)
            failed = True
            for index in lot:
                outcomes[index] = answer
            continue
        now, _change, following, told, made = answer
        new = new or made
        if sharded is not None:
            sharded.see_number(following)
        known = {place: outcome for place, *outcome in told} if told else {}
        for place, index in enumerate(lot):
            item = items[index]
            if place in known and known[place][1:] == ["unreadable"]:
                failed, outcomes[index] = True, refuse(command.queue, item.id)
                continue
            if place in known:
                found = outcomes[index] = Outcome(item.id, *known[place])
            else:
                due = now + item.delay if item.at is None else item.at
                if item.latest is not None:
                    due = item.due(now)
                state: State = "ready" if due <= now else "delayed"
                if item.died is not None:
                    state = "dead"
                found = outcomes[index] = Outcome(item.id, True, state, due, item.died)
            waits = found.done and found.state in ("delayed", "ready")
            if waits and (wake is None or found.due < wake):  # type: ignore[operator]
                wake = found.due
    if new and shards > 1:  # the queue was deleted, or is new to this engine: make all shards
        yield [Call("shards", command.queue, (shards,), shard, "") for shard in range(shards)]
    if len(run) > 1 or failed:
        return share_out([len(each.items) for each in run], outcomes, len(calls))
    return [Outcomes(outcomes, wake)]


@lru_cache(256)
def _plain_line(json: bool, priority: int, attempts: int) -> bytes:
    return b"%b %d 0 %d - - - -\n" % (b"j" if json else b"b", priority, attempts)


def _record_of(item: Item) -> bytes:
    """Return the record of an item that is put, from `kind` on."""
    if (
        item.group is None
        and item.expires is None
        and item.headers is None
        and item.died is None
        and not item.attempt
        and not item.failures
    ):
        return _plain_line(item.json, item.priority, item.attempts) + item.data
    group = (item.group or "").encode()
    headers = _encode(item.headers) if item.headers is not None else b""
    failures = _encode(item.failures) if item.failures else b""
    line = (
        f"{'j' if item.json else 'b'} {item.priority} {item.attempt} {item.attempts} "
        f"{'-' if item.expires is None else item.expires} "
        f"{'- -' if item.died is None else f'dead {item.died}'} - "
        f"{len(group)} {len(headers)} {len(failures)}\n"
    )
    return b"".join((line.encode(), group, headers, failures, item.data))


def _plans(items: Sequence[Item]) -> tuple[list[str], str]:
    """Return when each message is due, and what else puts it in its place; and the flags of all."""
    flags = ""
    plans: list[str] = []
    for item in items:
        when = f"+{item.delay}" if item.at is None else f"{item.at}"
        if item.latest is not None:
            when = f"{when}<{item.latest}"
        plan = f"{when} {item.priority}"
        if item.priority and "w" not in flags:
            flags += "w"
        if item.group is not None or item.died is not None or item.created is not None:
            if item.group is not None and "g" not in flags:
                flags += "g"
            died, created = ("-" if ms is None else ms for ms in (item.died, item.created))
            plan = f"{plan} {died} {created} {item.group or ''}"
        if item.expires is not None and "e" not in flags:
            flags += "e"
        plans.append(plan)
    return plans, flags
