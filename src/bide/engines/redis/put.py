"""Put: the messages of many callers in few calls."""

from collections.abc import Sequence
from typing import Any

from bide.engines.redis.calls import Call, Outcome, Plan, Send, answered, decode, slices
from bide.engines.redis.records import Arg, record_of
from bide.engines.redis.shards import ShardedQueue, shard_of
from bide.model import replies
from bide.model.commands import Put
from bide.model.errors import StoreError
from bide.model.message import Item, State

__all__ = ["put"]


def put(run: Sequence[Put], sharded: ShardedQueue | None) -> Plan:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    queue, conflict, version = run[0].queue, run[0].on_conflict, run[0].if_version or ""
    items = run[0].items if len(run) == 1 else [item for command in run for item in command.items]
    records = [record_of(item) for item in items]
    ids = [item.id for item in items]
    calls: list[Call] = []
    lots: list[Sequence[int]] = []
    for lot in slices(ids, [len(record) for record in records]):
        if sharded is None or not lot:
            calls.append(Call("put", queue, _args(conflict, version, "", lot, items, records),
                              shards=1 if sharded is None else sharded.count))  # fmt: skip
            lots.append(lot)
            continue
        numbers = sharded.take_numbers(len(lot))
        shards = [shard_of(ids[index], sharded.count) for index in lot]
        for shard in dict.fromkeys(shards):
            mine = [index for index, of in zip(lot, shards, strict=True) if of == shard]
            places = " ".join(
                str(number) for number, of in zip(numbers, shards, strict=True) if of == shard
            )
            args = _args(conflict, version, places, mine, items, records)
            calls.append(Call("put", queue, args, shard, sharded.count))
            lots.append(mine)

    def read(answers: list[Any], _: Send) -> list[Outcome]:
        outcomes: list[Any] = [None] * len(items)
        for lot, answer in zip(lots, answers, strict=True):
            if isinstance(answer, StoreError):
                if not items:
                    return [answer] * len(run)
                for index in lot:
                    outcomes[index] = answer
                continue
            now, _made, following, told = decode(answer)
            if sharded is not None:
                sharded.see_number(following)
            known = {place: outcome for place, *outcome in told}
            for place, index in enumerate(lot):
                item = items[index]
                if place in known:
                    outcomes[index] = replies.Outcome(item.id, *known[place])
                    continue
                due = now + item.delay if item.at is None else item.at
                state: State = "dead" if item.died is not None else (
                    "ready" if due <= now else "delayed"
                )  # fmt: skip
                outcomes[index] = replies.Outcome(item.id, True, state, due, item.died)
        found: list[Outcome] = []
        first = 0
        for command in run:
            mine = outcomes[first : first + len(command.items)]
            first += len(mine)
            error = answered(mine, len(calls))
            dues = [] if error else [o.due for o in mine if o.done and o.state != "dead"]
            found.append(error or replies.Outcomes(mine, min(dues, default=None)))
        return found

    return Plan(calls, read)


def _args(
    conflict: str,
    version: str,
    numbers: str,
    lot: Sequence[int],
    items: Sequence[Item],
    records: Sequence[bytes],
) -> list[Arg]:
    """Return the arguments of the script; what all messages have in common is sent once."""
    flags = 0
    whens: list[Arg] = []
    marks: list[Arg] = []
    for index in lot:
        item = items[index]
        whens.append(item.at if item.at is not None else f"+{item.delay}")
        mark: Arg = item.priority
        if item.priority:
            flags |= 1
        if item.group is not None or item.died is not None:
            flags |= 2 if item.group is not None else 0
            died = "-" if item.died is None else item.died
            mark = f"{item.priority} {died} {item.group or ''}"
        if item.expires is not None:
            flags |= 4
        marks.append(mark)
    letters = "".join(letter for bit, letter in ((1, "w"), (2, "g"), (4, "e")) if flags & bit)
    args: list[Arg] = [conflict, version, letters, numbers]
    if whens and whens.count(whens[0]) == len(whens) and marks.count(marks[0]) == len(marks):
        args += (whens[0], marks[0])
        for index in lot:
            args += (items[index].id, records[index])
        return args
    args += ("", "")
    for place, index in enumerate(lot):
        args += (items[index].id, records[index], whens[place], marks[place])
    return args
