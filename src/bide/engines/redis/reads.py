"""Commands that only read, but for scans: one round over all shards, or several."""

from typing import Literal

import msgspec

from bide.engines.cursor import Budget
from bide.engines.redis.calls import ScriptCall, Step, everywhere, raised
from bide.engines.redis.layout import DAMAGED, as_message, decode_lease, shard_of
from bide.engines.redis.messages import in_lots
from bide.model import replies
from bide.model.commands import Count, Explain, Find, ForecastCommand, History
from bide.model.ended import STOPPED_KEEP, End, Ending, within_budget
from bide.model.errors import StoreCorrupt
from bide.model.message import Failure, Message
from bide.model.rank import ready_rank
from bide.model.times import LIMITS


def find(command: Find, shards: int) -> Step:
    """Look at messages by id."""
    rows = [(id,) for id in command.ids]
    _, answered, failed = yield from in_lots("find", command, rows, (command.max_bytes,), shards)
    if failed is not None:
        raise failed
    by_index: dict[int, tuple[Message | None, int]] = {}
    for lot, (head, records, leases) in answered:
        now = head[0]
        for index, record, lease in zip(lot, records, leases, strict=False):
            id = command.ids[index]
            by_index[index] = None, 0
            if record is not None:
                read = as_message(command.queue, id, record, now, lease=lease)
                by_index[index] = read, len(id) + len(record)
    messages: list[Message | None] = []
    budget = Budget(command.max_bytes)  # each shard has kept to it; together they may have not
    for index in range(len(command.ids)):
        message, size = by_index.get(index, (None, 0))
        if index not in by_index or (message is not None and not budget.takes(size)):
            break
        messages.append(message)
    return [replies.Found(messages)]


def count(command: Count, shards: int) -> Step:
    """Count by the sizes of the sets, and due ones among delayed messages by their ranks.

    With `recount` or `stored`, look at each message too.
    """
    counts = yield from everywhere("count", command.queue, (), shards)
    strays = stored = 0
    places: dict[int, tuple[int, int]] = dict.fromkeys(range(shards), (1, 0))
    while places and (command.recount or command.stored):
        answers = yield [
            ScriptCall("audit", command.queue, place, shard, shards)
            for shard, place in places.items()
        ]
        for shard, answer in zip(list(places), raised(answers), strict=True):
            _now, _change, astray_here, place, offset, size = answer
            strays += astray_here
            stored += size
            places[shard] = place, offset
            if place is None:
                del places[shard]
    (_now, _change, *sizes, kept, paused, keep, oldest, astray, flows, history, ttl, limits) = zip(
        *counts, strict=True
    )
    total = replies.Sizes(*map(sum, sizes))
    first = min([moment for moment in oldest if moment is not None], default=None)
    fields = dict(zip(LIMITS, limits[0], strict=True))  # a queue of several shards has none
    if command.recount:
        fields |= {"recount": total, "strays": strays + sum(astray)}
    if command.stored:
        fields["stored"] = stored
    flow = replies.Flow(*map(sum, zip(*flows, strict=True)))
    settings = sum(kept), any(paused), max(keep), max(history), max(ttl)
    return [replies.Counts(total, flow, *settings, oldest=first, **fields)]


def forecast(command: ForecastCommand, shards: int) -> Step:
    """Count what falls due in each bucket."""
    args = command.bucket, command.buckets
    answers = yield from everywhere("forecast", command.queue, args, shards)
    _now, _change, starts, overdue, counts, later = zip(*answers, strict=True)
    buckets = [sum(bucket) for bucket in zip(*counts, strict=True)]
    return [replies.Forecasted(min(starts), sum(overdue), buckets, sum(later))]


def explain(command: Explain, shards: int) -> Step:
    """Look at a message, its lease, its place among others, and the pauses of its queue."""
    id = command.id or ""
    home = shard_of(id, shards)
    answers = yield [ScriptCall("explain", command.queue, (id,), home, shards)]
    ((head, record, lease),) = raised(answers)
    now, _change, paused, past, ahead, order, limited = head
    pauses = [replies.Pause(*pause) for pause in past]
    if paused and not (pauses and pauses[-1].until is None):
        pauses.append(replies.Pause(None))
    if record is None:
        return [replies.Explained(now=now, pauses=pauses)]
    seen = as_message(command.queue, id, record, now, lease=lease or None)
    if ahead is not None and shards > 1:
        place = ready_rank(seen.due, seen.priority), order
        others = [shard for shard in range(shards) if shard != home]
        answers = yield [
            ScriptCall("ahead", command.queue, place, shard, shards) for shard in others
        ]
        ahead = min(replies.AHEAD + 1, ahead + sum(answer[2] for answer in raised(answers)))
    since, extended = None, 0
    if seen.holder:
        held = decode_lease(lease)
        since, extended = held.since, held.extended
    return [
        replies.Explained(
            now=now,
            pauses=pauses,
            state=seen.state,
            due=seen.due,
            planned=seen.planned,
            priority=seen.priority,
            attempt=seen.attempt,
            attempts=seen.attempts,
            failure=seen.failures[-1] if seen.failures else None,
            ahead=ahead,
            holder=seen.holder,
            since=since,
            extended=extended,
            stopping=seen.stopping,
            progress=seen.progress,
            until=seen.until,
            ended=seen.ended,
            successor=None if seen.successor is None else seen.successor.at,
            limited=replies.Limited(*limited) if limited else None,
        )
    ]


def history(command: History, shards: int) -> Step:
    """Look at how messages with an id have ended."""
    shard = shard_of(command.id, shards)
    script = "watch" if command.watch else "history"
    answers = yield [ScriptCall(script, command.queue, (command.id,), shard, shards, reads=True)]
    ((head, text),) = raised(answers)
    now, _change, state, history, result_ttl = head
    since = now - (max(history, result_ttl) or STOPPED_KEEP)
    try:
        remembered = _decode_ends(text or b"\x90")
        ends = [
            End(
                how=how,
                moment=moment,
                by=None if by is False else by,
                due=due,
                attempt=attempt,
                since=begun or None,
                failures=failures,
                result=result.encode() if result and moment > now - result_ttl else None,
            )
            for moment, how, due, attempt, begun, by, failures, result in remembered
            if moment > since
        ]
    except DAMAGED:
        raise StoreCorrupt(
            f"what queue {command.queue!r} remembers of {command.id!r} cannot be read: something "
            "else has written to the keys of bide"
        ) from None
    return [replies.Ends(state, within_budget(ends, command.max_bytes))]


_Text = str | Literal[False]

_decode_ends = msgspec.msgpack.Decoder(
    list[tuple[int, Ending, int, int, int | bool, _Text, tuple[Failure, ...], _Text]]
).decode
