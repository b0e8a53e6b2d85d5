"""Find, count, forecast: one round over all shards, or several."""

from bide.engines.redis.calls import Call, Step, everywhere, raised, spread
from bide.engines.redis.records import Arg, as_message
from bide.model.commands import Count, Find, Forecast
from bide.model.message import Message
from bide.model.replies import Counts, Flow, Forecasted, Found, Sizes
from bide.model.times import LIMITS

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
            told[index] = None, 0
            if record is not None:
                read = as_message(command.queue, id, record, now, lease=lease)
                told[index] = read, len(id) + len(record)
    messages: list[Message | None] = []
    left = command.max_bytes  # each shard has kept to it; together they may have not
    for index in range(len(command.ids)):
        message, size = told.get(index, (None, -1))
        left -= size
        if size < 0 or (left < 0 and size and any(messages)):
            break
        messages.append(message)
    return [Found(messages)]


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
    (_now, _change, *sizes, kept, paused, keep, oldest, astray, flows, history, ttl,
     limits) = zip(*told, strict=True)  # fmt: skip
    total = Sizes(*map(sum, sizes))
    return [
        Counts(
            total,
            Flow(*map(sum, zip(*flows, strict=True))),
            sum(kept),
            any(paused),
            max(keep),
            max(history),
            max(ttl),
            oldest=min([moment for moment in oldest if moment is not None], default=None),
            recount=total if command.recount else None,
            strays=strays + sum(astray) if command.recount else None,
            stored=stored if command.stored else None,
            **dict(zip(LIMITS, limits[0], strict=True)),  # a queue of several shards has none
        )
    ]


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
