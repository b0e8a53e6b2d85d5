"""Commands that only read, but for scans: one round over all shards, or several."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from bide.engines.cursor import Budget
from bide.engines.ended_pages import LOOKED_AT, EndPosition, EndSpan, ended_page
from bide.engines.redis.calls import ScriptCall, Step, everywhere, without_errors
from bide.engines.redis.constants import SLICE
from bide.engines.redis.layout import DAMAGED, as_message, decode_lease, shard_of
from bide.engines.redis.messages import in_lots
from bide.model import replies
from bide.model.commands import Count, Explain, Find, ForecastCommand, History, ListEnded
from bide.model.ended import STOPPED_KEEP, End, Ended, Ending, within_budget
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
    # By index of the id: the message, `None` if it does not exist, and its size in bytes.
    looked_at: dict[int, tuple[Message | None, int]] = {}
    for indexes, ((now, _change), records, leases) in answered:
        # A shard leaves out the last ones for which it had no room.
        for index, record, lease in zip(indexes, records, leases, strict=False):
            id = command.ids[index]
            looked_at[index] = None, 0
            if record is not None:
                found_message = as_message(command.queue, id, record, now, lease=lease)
                looked_at[index] = found_message, len(id) + len(record)
    messages: list[Message | None] = []
    budget = Budget(command.max_bytes)  # each shard has kept to it; together they may have not
    for index in range(len(command.ids)):
        if index not in looked_at:
            break
        message, size = looked_at[index]
        if message is not None and not budget.takes(size):
            break
        messages.append(message)
    return [replies.Found(messages)]


def count(command: Count, shards: int) -> Step:
    """Count by the sizes of the sets, and due ones among delayed messages by their ranks.

    With `recount` or `stored`, look at each message too.
    """
    counts = yield from everywhere("count", command.queue, (), shards)
    strays = stored_bytes = 0
    # Of shards that are not through: number of the set to look at, and an offset in it.
    places: dict[int, tuple[int, int]] = dict.fromkeys(range(shards), (1, 0))
    while places and (command.recount or command.stored):
        answers = yield [
            ScriptCall("audit", command.queue, place, shard, shards)
            for shard, place in places.items()
        ]
        for shard, answer in zip(list(places), without_errors(answers), strict=True):
            _now, _change, strays_in_slice, next_set, offset, slice_bytes = answer
            strays += strays_in_slice
            stored_bytes += slice_bytes
            if next_set is None:
                del places[shard]
            else:
                places[shard] = next_set, offset
    # Each name has a value of each shard.
    (
        _nows,
        _changes,
        *sizes_by_state,
        kept_in,
        paused_in,
        keeps,
        oldest_in,
        strays_by_size,
        flows,
        others,
        limits,
    ) = zip(*counts, strict=True)
    histories, result_ttls, closed_groups, plans = zip(*others, strict=True)
    sizes = replies.Sizes(*map(sum, sizes_by_state))
    oldest = min([due for due in oldest_in if due is not None], default=None)
    fields = dict(zip(LIMITS, limits[0], strict=True))  # a queue of several shards has none
    if command.recount:
        fields |= {"recount": sizes, "strays": strays + sum(strays_by_size)}
    if command.stored:
        fields["stored"] = stored_bytes
    flow = replies.Flow(*map(sum, zip(*flows, strict=True)))
    is_paused, paused_until = pause_of(paused_in)
    settings = sum(kept_in), closed_groups[0], is_paused, max(keeps)  # all shards have all
    ends = max(histories), max(result_ttls)
    fields |= {"oldest": oldest, "paused_until": paused_until, "overdue": max(plans)}
    return [replies.Counts(sizes, flow, *settings, *ends, **fields)]


def pause_of(answers: Sequence[int | bool]) -> tuple[bool, int | None]:
    """Return whether a queue is paused, and when that ends by itself in all its shards.

    Args:
        answers: of each shard: False, True, or when its pause ends, in Unix milliseconds.
    """
    ends = [end for end in answers if end is not False]
    lasts = any(end is True for end in ends)  # until it is resumed
    return bool(ends), None if lasts or not ends else max(ends)


def forecast(command: ForecastCommand, shards: int) -> Step:
    """Count what falls due in each bucket."""
    args = command.bucket, command.buckets
    answers = yield from everywhere("forecast", command.queue, args, shards)
    # Each name has a value of each shard.
    _nows, _changes, starts, overdue_in, buckets_in, later_in = zip(*answers, strict=True)
    buckets = [sum(counts) for counts in zip(*buckets_in, strict=True)]
    return [replies.Forecasted(min(starts), sum(overdue_in), buckets, sum(later_in))]


def explain(command: Explain, shards: int) -> Step:
    """Look at a message, its lease, its place among others, and the pauses of its queue."""
    id = command.id or ""
    home = shard_of(id, shards)
    answers = yield [ScriptCall("explain", command.queue, (id,), home, shards)]
    ((head, record, lease),) = without_errors(answers)
    now, _change, is_paused, past_pauses, ahead, order, limited = head
    pauses = [replies.Pause(*pause) for pause in past_pauses]
    lasts = bool(pauses) and pauses[-1].lasts(now)
    if is_paused and not lasts:  # when it began is not remembered
        pauses.append(replies.Pause(None))
    if record is None:
        return [replies.Explained(now=now, pauses=pauses)]
    message = as_message(command.queue, id, record, now, lease=lease or None)
    if ahead is not None and shards > 1:  # so far, only those of its own shard are counted
        place = ready_rank(message.due, message.priority), order
        others = [shard for shard in range(shards) if shard != home]
        answers = yield [
            ScriptCall("ahead", command.queue, place, shard, shards) for shard in others
        ]
        ahead_elsewhere = sum(count for _now, _change, count in without_errors(answers))
        ahead = min(replies.AHEAD + 1, ahead + ahead_elsewhere)
    since, extended = None, 0
    if message.holder:
        stored_lease = decode_lease(lease)
        since, extended = stored_lease.since, stored_lease.extended
    return [
        replies.Explained(
            now=now,
            pauses=pauses,
            state=message.state,
            due=message.due,
            planned=message.planned,
            priority=message.priority,
            attempt=message.attempt,
            attempts=message.attempts,
            failure=message.failures[-1] if message.failures else None,
            ahead=ahead,
            holder=message.holder,
            since=since,
            extended=extended,
            stopping=message.stopping,
            progress=message.progress,
            until=message.until,
            ended=message.ended,
            successor=None if message.successor is None else message.successor.at,
            limited=replies.Limited(*limited) if limited else None,
            rule=message.rule,
            run=message.run,
        )
    ]


def history(command: History, shards: int) -> Step:
    """Look at how messages with an id have ended."""
    shard = shard_of(command.id, shards)
    script = "watch" if command.watch else "history"
    answers = yield [ScriptCall(script, command.queue, (command.id,), shard, shards, reads=True)]
    ((head, packed_ends),) = without_errors(answers)
    now, _change, state, history, result_ttl = head
    remembered_since = now - (max(history, result_ttl) or STOPPED_KEEP)
    try:
        stored_ends = decode_ends(packed_ends or _NO_ENDS)
    except DAMAGED:
        raise StoreCorrupt(
            f"what queue {command.queue!r} remembers of {command.id!r} cannot be read: something "
            "else has written to the keys of bide"
        ) from None
    ends = [
        End(
            how=end.how,
            moment=end.moment,
            by=None if end.by is False else end.by,
            due=end.due,
            attempt=end.attempt,
            since=end.since or None,
            failures=end.failures,
            result=end.result.encode() if end.result and end.moment > now - result_ttl else None,
        )
        for end in stored_ends
        if end.moment > remembered_since  # older ones are deleted later
    ]
    return [replies.Ends(state, within_budget(ends, command.max_bytes))]


def list_ended(command: ListEnded, shards: int) -> Step:
    """Look at a page of the messages that have ended, in one order over all shards.

    Each shard answers a slice, and up to which position it has looked if there may be more. The
    page ends at the first of these positions: behind it, a shard may have messages that come next.
    """
    span = EndSpan.of(command, remembered_since=-1)  # each shard knows since when it remembers
    limit = min(command.limit, SLICE)
    args = (command.how, span.first, span.before, *span.behind, limit, LOOKED_AT, command.max_bytes)
    answers = yield from everywhere("list_ended", command.queue, args, shards)
    entries: list[Ended] = []
    looked_until: list[EndPosition] = []  # of the shards that may have more
    for (_now, _change, position), ids, packed_ends, moments in answers:
        if position is not None:
            moment, id = position
            looked_until.append(EndPosition(int(moment), id))
        for id_bytes, packed_end, moment in zip(ids, packed_ends, moments, strict=True):
            entry = _as_ended(id_bytes.decode(), packed_end, int(moment))
            # An end that Redis cannot read comes whatever `how` is, and counts as dead.
            if command.how in (None, entry.how):
                entries.append(entry)
    entries.sort(key=EndPosition.of)
    if not looked_until:
        return [ended_page(command, entries)]
    end = min(looked_until)
    complete = [entry for entry in entries if EndPosition.of(entry) <= end]
    return [ended_page(command, [*complete, end])]


def _as_ended(id: str, packed_end: bytes, moment: int) -> Ended:
    """Return an entry of a list of ended messages, of the end that Redis stores.

    Args:
        id: of the message.
        packed_end: how it ended; empty if Redis cannot read it.
        moment: when it ended, in Unix milliseconds.
    """
    try:
        end = _decode_end(packed_end)
    except DAMAGED:
        return Ended.unreadable(id, moment)
    return Ended(
        id=id,
        how=end.how,
        moment=end.moment,
        by=None if end.by is False else end.by,
        due=end.due,
        attempt=end.attempt,
        since=end.since or None,
        failures=end.failures,
    )


class _StoredEnd(
    msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True
):
    """How a message has ended, as Redis stores it: see the head of lua/_records.lua."""

    moment: int
    """Unix milliseconds, as `due` and `since`."""
    how: Ending
    due: int
    attempt: int
    since: int | bool
    """When its lease began; `False`: it was not leased."""
    by: str | Literal[False]
    failures: tuple[Failure, ...]
    result: str | Literal[False]
    """In JSON."""


decode_ends = msgspec.msgpack.Decoder(list[_StoredEnd]).decode

_decode_end = msgspec.msgpack.Decoder(_StoredEnd).decode

_NO_ENDS = b"\x90"
"""An empty array in MessagePack."""
