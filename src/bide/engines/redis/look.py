"""Find, count, forecast, configure: one round over all shards."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.engines.redis.calls import Call, Job, Outcome, Plan, Send, decode, slices
from bide.engines.redis.records import Arg, as_message
from bide.engines.redis.shards import ShardedQueue, shard_of
from bide.model.commands import Configure, Count, Find, Forecast
from bide.model.errors import StoreError
from bide.model.message import Message
from bide.model.replies import Counts, Flow, Forecasted, Found, Settings, Sizes

__all__ = ["configure", "count", "find", "forecast", "held_by", "recount"]

EDGES = 1_000
"""How many buckets one call counts."""


def held_by(lease: bytes | None) -> tuple[str | None, int | None]:
    """Return who holds a message, and until when, of a lease as Redis stores it."""
    if lease is None:
        return None, None
    _, _, until, holder = lease.split(b" ", 3)
    return holder.decode(), int(until)


def find(run: Sequence[Find], sharded: ShardedQueue | None) -> Plan:
    """Look at messages by id."""
    command = run[0]
    shards = 1 if sharded is None else sharded.count
    calls: list[Call] = []
    lots: list[list[int]] = []
    for lot in slices(command.ids):
        found: dict[int, list[int]] = {}
        for index in lot:
            found.setdefault(shard_of(command.ids[index], shards), []).append(index)
        for shard, mine in found.items():
            args: list[Arg] = [command.max_bytes, *(command.ids[index] for index in mine)]
            calls.append(Call("find", command.queue, args, shard, shards))
            lots.append(mine)

    def read(answers: list[Any], _: Send) -> list[Outcome]:
        told: dict[int, Message | None] = {}
        sizes: dict[int, int] = {}
        for lot, answer in zip(lots, answers, strict=True):
            if isinstance(answer, StoreError):
                return [answer]
            now, records, leases = answer
            for index, record, lease in zip(lot, records, leases, strict=False):
                id = command.ids[index]
                holder, until = held_by(lease)
                told[index] = record and as_message(
                    command.queue, id, record, int(now), holder=holder, until=until
                )
                sizes[index] = len(id) + len(record) if record else 0
        messages: list[Message | None] = []
        left = command.max_bytes  # each shard has kept to it; together they may have not
        for index in range(len(command.ids)):
            if index not in told:
                break
            left -= sizes[index]
            if left < 0 and sizes[index] and any(messages):
                break
            messages.append(told[index])
        return [Found(messages)]

    return Plan(calls, read)


def _everywhere(script: str, queue: str, args: Sequence[Any], shards: int) -> list[Call]:
    return [Call(script, queue, args, shard, shards) for shard in range(shards)]


def _errors(answers: Sequence[Any]) -> list[Outcome]:
    first = next((answer for answer in answers if isinstance(answer, StoreError)), None)
    return [] if first is None else [first]


def _sum(structs: Sequence[Any]) -> Any:
    """Add up structs of numbers, field by field."""
    rows = [msgspec.structs.astuple(struct) for struct in structs]
    return type(structs[0])(*map(sum, zip(*rows, strict=True)))


def count(run: Sequence[Count], sharded: ShardedQueue | None) -> Plan:
    """Count by the sizes of the sets; of the delayed ones, what is due by their ranks."""
    calls = _everywhere("count", run[0].queue, (), 1 if sharded is None else sharded.count)

    def read(answers: list[Any], _: Send) -> list[Outcome]:
        return _errors(answers) or [_counts([decode(answer) for answer in answers], None)]

    return Plan(calls, read)


def _counts(told: Sequence[Any], strays: int | None) -> Counts:
    sizes, flows, oldest = [], [], []
    kept, paused, keep = 0, False, 0
    for *size, kept_, paused_, keep_, oldest_, strays_, flow in told:
        sizes.append(Sizes(*size))
        flows.append(Flow(*flow))
        kept, paused, keep = kept + kept_, paused or paused_, max(keep, keep_)
        oldest += [] if oldest_ is None else [oldest_]
        strays = None if strays is None else strays + strays_
    total: Sizes = _sum(sizes)
    return Counts(
        total, _sum(flows), kept=kept, paused=paused, keep=keep, oldest=min(oldest, default=None),
        recount=None if strays is None else total, strays=strays,
    )  # fmt: skip


def recount(command: Count, shards: int) -> Job:
    """Count, and check the place of each message."""

    def run(send: Send) -> Outcome:
        told = send(_everywhere("count", command.queue, (), shards))
        strays = 0
        places: dict[int, tuple[int, int]] = dict.fromkeys(range(shards), (1, 0))
        while places:
            calls = [
                Call("audit", command.queue, place, shard, shards)
                for shard, place in places.items()
            ]
            for shard, answer in zip(list(places), send(calls), strict=True):
                if isinstance(answer, StoreError):
                    return answer
                more, place, offset = decode(answer)
                strays += more
                if place is None:
                    del places[shard]
                else:
                    places[shard] = place, offset
        if errors := _errors(told):
            return errors[0]
        return _counts([decode(answer) for answer in told], strays)

    return run


def forecast(command: Forecast, shards: int) -> Job:
    """Count what falls due in each bucket."""

    def run(send: Send) -> Outcome:
        start: int | None = None
        overdue, later = 0, 0
        counts: list[int] = []
        at: int | str = ""
        while start is None or len(counts) < command.buckets:
            span = min(command.buckets - len(counts), EDGES)
            told = send(_everywhere("forecast", command.queue, (command.bucket, span, at), shards))
            if errors := _errors(told):
                return errors[0]
            parts = [decode(answer) for answer in told]
            if start is None:
                start, overdue = min(part[1] for part in parts), sum(part[2] for part in parts)
            counts += [sum(bucket) for bucket in zip(*(part[3] for part in parts), strict=True)]
            later = sum(part[4] for part in parts)
            at = start + len(counts) * command.bucket
        return Forecasted(start, overdue, counts, later)

    return run


def configure(run: Sequence[Configure], sharded: ShardedQueue | None) -> Plan:
    """Set what is given."""
    command = run[0]
    paused = "" if command.paused is None else int(command.paused)
    keep = "" if command.keep is None else command.keep
    shards = 1 if sharded is None else sharded.count
    calls = _everywhere("configure", command.queue, (paused, keep), shards)

    def read(answers: list[Any], _: Send) -> list[Outcome]:
        if errors := _errors(answers):
            return errors
        told = [decode(answer) for answer in answers]
        wakes = [now for now, *_made, resumed in told if resumed]
        settings = Settings(
            any(part[2] for part in told),
            max(part[3] for part in told),
            min(wakes, default=None),
        )
        return [settings]

    return Plan(calls, read)
