"""Commands about a whole queue: its settings, deleting it, and the messages that a rule names."""

from bide.engines.redis.calls import ScriptCall, Step, everywhere, raised
from bide.engines.redis.constants import SLICE
from bide.model.commands import BULK, Cancel, Configure, Delete, Purge, Where
from bide.model.errors import Unsupported
from bide.model.replies import PAUSES, Affected, Deleted, QueueSettings, Sizes
from bide.model.times import LIMITS


def configure(command: Configure, shards: int) -> Step:
    """Change the given settings."""
    limits = [getattr(command, name) for name in LIMITS]
    args = (
        command.paused,
        command.keep,
        command.actor,
        PAUSES,
        command.history,
        command.result_ttl,
        *limits,
    )
    if any(limits) and shards > 1:  # all groups of a queue with limits are in one shard
        yield ()
        return [
            Unsupported(
                f"queue {command.queue!r} is made of {shards} shards, for ever, and a queue with "
                "limits has one: set the limits of a new queue before the first put, and move the "
                "messages there with `bide move`"
            )
        ]
    answers = yield from everywhere("configure", command.queue, args, shards)
    nows, _changes, is_paused, keep, claimable, history, ttl, *in_force = zip(*answers, strict=True)
    wake = min((now for now, some in zip(nows, claimable, strict=True) if some), default=None)
    return [
        QueueSettings(
            paused=any(is_paused),
            keep=max(keep),
            wake=wake,
            history=max(history),
            result_ttl=max(ttl),
            **dict(zip(LIMITS, map(max, in_force), strict=True)),
        )
    ]


def delete(command: Delete, shards: int) -> Step:
    """Delete a queue if it is empty: first look at all shards, then delete them."""
    existed = False
    for really in (False, True) if shards > 1 else (True,):
        answers = yield from everywhere("delete", command.queue, (really,), shards)
        _nows, _changes, exists, *parts, kept = zip(*answers, strict=True)
        sizes = Sizes(*map(sum, parts))
        existed = existed or any(exists)
        if sizes != Sizes() or sum(kept):
            return [Deleted(False, sizes, sum(kept))]
    return [Deleted(existed)]


def sweep(command: Cancel | Purge, shards: int) -> Step:
    """Delete, or count, the messages that a rule names."""
    if isinstance(command, Purge):
        # A worker holds those that are leased.
        states = {"ready": "ready due", "delayed": "waiting", "leased": ""}
        which = states.get(command.state, command.state)
        where, deletes = Where(before=command.before), True
        counted = None if which in ("acked", "expired") else "purged"
    else:
        where, deletes, counted = command.where or Where(), not command.dry_run, "cancelled"
        which = "ready delayed" if where.group is None else "group"
    head = which, where.after, where.before, where.group
    total = 0
    cursors: dict[int, str | None] = dict.fromkeys(range(shards))
    while cursors:
        room = BULK - total if deletes else SLICE
        chosen = list(cursors)[: max(room, 1)]
        now_deletes = deletes and room > 0  # else: is anything left?
        share = min(SLICE, max(1, room // len(chosen)))
        tail = counted if now_deletes else None, now_deletes, command.actor
        answers = yield [
            ScriptCall(
                "sweep",
                command.queue,
                (*head, share, cursors[shard], *tail),
                shard,
                shards,
                reads=not now_deletes,
            )
            for shard in chosen
        ]
        for shard, answer in zip(chosen, raised(answers), strict=True):
            _now, _change, affected, cursor = answer
            if deletes and not now_deletes and affected > 0:
                return [Affected(total, more=True)]
            total += affected
            if cursor is not None or (now_deletes and which != "group" and affected == share):
                cursors[shard] = cursor
            else:
                del cursors[shard]
    if isinstance(command, Cancel) and command.running:
        return (yield from _stop(command, where, total, shards))
    return [Affected(total)]


def _stop(command: Cancel, where: Where, total: int, shards: int) -> Step:
    """Ask the workers of the leased messages to stop that a rule names, or count these.

    Args:
        command: the cancel.
        where: the rule.
        total: how many messages it has cancelled, or counted, before.
        shards: of how many the queue is made.
    """
    stopping: list[str] = []
    room = BULK - total
    places: dict[int, tuple[int, str]] = dict.fromkeys(range(shards), (0, ""))
    while places:
        chosen = list(places)[: max(room, 1)]
        stops = not command.dry_run and room > 0  # else: is anything left?
        limit = SLICE if command.dry_run else max(1, room // len(chosen))
        head, tail = (where.after, where.before, where.group, limit), (stops, command.actor)
        answers = yield [
            ScriptCall(
                "stop",
                command.queue,
                (*head, *places[shard], *tail),
                shard,
                shards,
                reads=not stops,
            )
            for shard in chosen
        ]
        for shard, answer in zip(chosen, raised(answers), strict=True):
            _now, _change, found, cancelled, ids, place = answer
            if command.dry_run:
                total += found
            elif stops:
                total += cancelled
                stopping += ids
                room -= found
            elif found:
                return [Affected(total, more=True, stopping=stopping)]
            if place is None:
                del places[shard]
            else:
                places[shard] = place
    return [Affected(total, stopping=stopping)]
