"""Find, count, forecast: one round over all shards, or several."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.engines.redis.calls import Call, Step, everywhere, raised, spread
from bide.engines.redis.records import Arg, as_message
from bide.model.commands import Count, Find, Forecast
from bide.model.message import Message
from bide.model.pace import LIMITS
from bide.model.replies import Counts, Flow, Forecasted, Found, Sizes

EDGES = 1_000
"""How many buckets one call counts."""


def find(command: Find, shards: int) -> Step:
    """Look at messages by id."""
    lots = spread(command.ids, shards)
    calls = []
    for shard, lot in lots:
        args: list[Arg] = [command.max_bytes, *(command.ids[index] for index in lot)]
        calls.append(Call("find", command.queue, args, shard, shards))
    answers = yield calls
    told: dict[int, tuple[Message | None, int]] = {}
    for (_, lot), (head, records, leases) in zip(lots, raised(answers), strict=True):
        now = head[0]
        for index, record, lease in zip(lot, records, leases, strict=False):
            id = command.ids[index]
            message = record and as_message(command.queue, id, record, now, lease=lease)
            told[index] = message, len(id) + len(record) if record else 0
    messages: list[Message | None] = []
    left = command.max_bytes  # each shard has kept to it; together they may have not
    for index in range(len(command.ids)):
        message, size = told.get(index, (None, -1))
        left -= size
        if size < 0 or (left < 0 and size and any(messages)):
            break
        messages.append(message)
    return [Found(messages)]


def _sum(structs: Sequence[Any]) -> Any:
    """Add up structs of numbers, field by field."""
    rows = [msgspec.structs.astuple(struct) for struct in structs]
    return type(structs[0])(*map(sum, zip(*rows, strict=True)))


def count(command: Count, shards: int) -> Step:
    """Count by the sizes of the sets; of delayed messages, what is due by their ranks.

    With `recount` or `stored`, look at each message too.
    """
    told = yield from everywhere("count", command.queue, (), shards)
    strays = stored = 0
    places: dict[int, tuple[int, int]] = dict.fromkeys(range(shards), (1, 0))
    while places and (command.recount or command.stored):
        answers = yield [
            Call("audit", command.queue, place, shard, shards) for shard, place in places.items()
        ]
        for shard, answer in zip(list(places), raised(answers), strict=True):
            _now, _change, found, place, offset, size = answer
            strays += found
            stored += size
            places[shard] = place, offset
            if place is None:
                del places[shard]
    sizes, flows, oldest = [], [], []
    kept, paused, keep, history, result_ttl = 0, False, 0, 0, 0
    for row in told:
        (_now, _change, *size, kept_, paused_, keep_, oldest_, strays_, flow, history_, ttl_,
         limits) = row  # fmt: skip
        sizes.append(Sizes(*size))
        flows.append(Flow(*flow))
        kept, paused, keep = kept + kept_, paused or paused_, max(keep, keep_)
        history, result_ttl = max(history, history_), max(result_ttl, ttl_)
        oldest += [] if oldest_ is None else [oldest_]
        strays += strays_
    total: Sizes = _sum(sizes)
    counts = Counts(
        total,
        _sum(flows),
        kept=kept,
        paused=paused,
        keep=keep,
        history=history,
        result_ttl=result_ttl,
        oldest=min(oldest, default=None),
        **dict(zip(LIMITS, limits, strict=True)),  # a queue of several shards has none
    )
    if command.recount:
        counts = msgspec.structs.replace(counts, recount=total, strays=strays)
    if command.stored:
        counts = msgspec.structs.replace(counts, stored=stored)
    return [counts]


def forecast(command: Forecast, shards: int) -> Step:
    """Count what falls due in each bucket."""
    start: int | None = None
    overdue, later = 0, 0
    counts: list[int] = []
    at: Arg = ""
    while start is None or len(counts) < command.buckets:
        span = min(command.buckets - len(counts), EDGES)
        told = yield from everywhere("forecast", command.queue, (command.bucket, span, at), shards)
        if start is None:
            start, overdue = min(part[2] for part in told), sum(part[3] for part in told)
        counts += [sum(bucket) for bucket in zip(*(part[4] for part in told), strict=True)]
        later = sum(part[5] for part in told)
        at = start + len(counts) * command.bucket
    return [Forecasted(start, overdue, counts, later)]
