"""Commands about a whole queue: its settings, deleting it, and the messages that a rule names."""

from typing import Any

from bide.engines.redis.calls import Round, ScriptCall, Step, everywhere, without_errors
from bide.engines.redis.constants import SLICE
from bide.engines.redis.reads import pause_of
from bide.model.commands import BULK, Cancel, Configure, Delete, Purge, Where
from bide.model.errors import Unsupported
from bide.model.replies import Affected, Deleted, QueueSettings, Sizes
from bide.model.times import LIMITS


def configure(command: Configure, shards: int) -> Step:
    """Change the given settings."""
    limits = [getattr(command, name) for name in LIMITS]

    def call(shard: int, paused_until: int | None, paused_for: int | None) -> ScriptCall:
        args = (
            command.paused,
            command.keep,
            command.actor,
            paused_until,
            paused_for,
            command.history,
            command.result_ttl,
            command.overdue,
            limits,
        )
        return ScriptCall("configure", command.queue, args, shard, shards)

    if any(limits) and shards > 1:  # all groups of a queue with limits are in one shard
        yield ()  # a step that calls no script
        return [
            Unsupported(
                f"queue {command.queue!r} is made of {shards} shards, for ever, and a queue with "
                "limits has one: set the limits of a new queue before the first put, and move the "
                "messages there with `bide move`"
            )
        ]
    paused_until = command.paused_until
    answers: list[Any] = []
    if command.paused_for is not None:
        # The first shard says when the pause ends, so that no other one ends it earlier.
        answers = without_errors((yield [call(0, None, command.paused_for)]))
        now, _change, is_paused, *_ = answers[0]
        _is_paused, end = pause_of([is_paused])
        paused_until = now if end is None else end  # without an end, it is over already
    others = range(len(answers), shards)
    answers += without_errors((yield [call(shard, paused_until, None) for shard in others]))
    # Each name has a value of each shard.
    (
        nows,
        _changes,
        paused_in,
        keeps,
        is_claimable_in,
        histories,
        result_ttls,
        plans,
        *limits_in_force,
    ) = zip(*answers, strict=True)
    claimable_at = [
        now for now, is_claimable in zip(nows, is_claimable_in, strict=True) if is_claimable
    ]
    wake = min(claimable_at, default=None)
    is_paused, paused_until = pause_of(paused_in)
    if wake is None and command.paused:
        wake = paused_until
    # All shards have the same settings, but for one that was made again after a loss.
    return [
        QueueSettings(
            paused=is_paused,
            paused_until=paused_until,
            keep=max(keeps),
            wake=wake,
            history=max(histories),
            result_ttl=max(result_ttls),
            overdue=max(plans),
            **dict(zip(LIMITS, map(max, limits_in_force), strict=True)),
        )
    ]


def delete(command: Delete, shards: int) -> Step:
    """Delete a queue if it is empty: first look at all shards, then delete them.

    The first shard goes before the others, since it tells that the queue exists: a put into one of
    these that is gone makes the first one again.
    """
    existed = False
    rounds = [(True, range(1))]  # whether it deletes, and which shards
    if shards > 1:
        rounds = [(False, range(shards)), *rounds, (True, range(1, shards))]
    for deletes, chosen in rounds:
        answers = yield [
            ScriptCall("delete", command.queue, (deletes,), shard, shards) for shard in chosen
        ]
        columns = zip(*without_errors(answers), strict=True)
        _nows, _changes, exists_in, *sizes_by_state, kept_in = columns
        sizes, kept = Sizes(*map(sum, sizes_by_state)), sum(kept_in)
        existed = existed or any(exists_in)
        if sizes != Sizes() or kept:  # what a call has deleted counts as empty
            if 0 not in chosen:  # others were deleted before a message was put into this one
                pairs = zip(chosen, answers, strict=True)
                intact = next(shard for shard, answer in pairs if any(answer[3:]))
                yield from _restore(command.queue, intact, shards)
            return [Deleted(False, sizes, kept)]
    return [Deleted(existed)]


def _restore(queue: str, intact: int, shards: int) -> Round:
    """Make those shards again that were deleted, with the settings of one that was not.

    Args:
        queue: its name.
        intact: the number of that one.
        shards: of how many the queue is made.

    Raises:
        StoreError: one of them did not answer.
    """
    (answer,) = without_errors((yield [ScriptCall("count", queue, (), intact, shards)]))
    paused, keep, _oldest, _strays, _counters, others, _limits = answer[7:]
    history, result_ttl, _closed_groups, overdue = others
    is_paused, paused_until = pause_of([paused])
    settings = Configure(
        queue,
        paused=is_paused or None,
        paused_until=paused_until,
        keep=keep,
        history=history,
        result_ttl=result_ttl,
        overdue=overdue,
    )
    yield from everywhere("make", queue, (), shards)
    yield from configure(settings, shards)
    place: tuple[int, str] | None = (0, "")  # behind which closed group to go on
    while place is not None:
        listing = ScriptCall("closed_groups", queue, (*place, SLICE), intact, shards)
        ((now, _change, listed),) = without_errors((yield [listing]))
        groups = [*zip(map(int, listed[1::2]), listed[::2], strict=True)]
        answers = yield [
            ScriptCall("close_group", queue, (group, until - now), shard, shards)
            for until, group in groups
            for shard in range(shards)
            if shard != intact
        ]
        without_errors(answers)
        place = groups[-1] if len(groups) == SLICE else None


def sweep(command: Cancel | Purge, shards: int) -> Step:
    """Delete the messages that a rule names, or count them for a dry run.

    At most `BULK` are deleted; then one more look tells whether others are left. The script `sweep`
    goes through a part of one shard at a time.
    """
    if isinstance(command, Purge):
        # For each state, the names of ranges in lua/_records.lua. Leased messages are not purged.
        words = {"ready": "ready due", "delayed": "waiting", "leased": ""}
        which = words.get(command.state, command.state)
        where, deletes = Where(before=command.before), True
        counter = None if which in ("acked", "expired") else "purged"
    else:
        where, deletes, counter = command.where or Where(), not command.dry_run, "cancelled"
        which = "ready delayed" if where.group is None else "group"
    rule = which, where.after, where.before, where.group
    total = 0
    # Of shards that are not through: behind which message to go on; `None`: at the beginning.
    cursors: dict[int, str | None] = dict.fromkeys(range(shards))
    while cursors:
        room = BULK - total if deletes else SLICE
        chosen = list(cursors)[: max(room, 1)]
        deletes_now = deletes and room > 0  # else: is anything left?
        limit = min(SLICE, max(1, room // len(chosen)))
        counted_as = counter if deletes_now else None
        effect = counted_as, deletes_now, command.actor
        answers = yield [
            ScriptCall(
                "sweep",
                command.queue,
                (*rule, limit, cursors[shard], *effect),
                shard,
                shards,
                reads=not deletes_now,
            )
            for shard in chosen
        ]
        for shard, answer in zip(chosen, without_errors(answers), strict=True):
            _now, _change, affected, cursor = answer
            if deletes and not deletes_now and affected > 0:
                return [Affected(total, more=True)]
            total += affected
            # Only a group has cursors: of other rules, what was deleted is not met again.
            may_have_more = deletes_now and which != "group" and affected == limit
            if cursor is not None or may_have_more:
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
    stopping: list[str] = []  # ids
    room = BULK - total
    # Of shards that are not through: end and order of the last lease that was looked at.
    places: dict[int, tuple[int, str]] = dict.fromkeys(range(shards), (0, ""))
    while places:
        chosen = list(places)[: max(room, 1)]
        stops_now = not command.dry_run and room > 0  # else: is anything left?
        limit = SLICE if command.dry_run else max(1, room // len(chosen))
        answers = yield [
            ScriptCall(
                "stop",
                command.queue,
                (
                    where.after,
                    where.before,
                    where.group,
                    limit,
                    *places[shard],
                    stops_now,
                    command.actor,
                ),
                shard,
                shards,
                reads=not stops_now,
            )
            for shard in chosen
        ]
        for shard, answer in zip(chosen, without_errors(answers), strict=True):
            _now, _change, named, cancelled, ids, place = answer
            if command.dry_run:
                total += named
            elif stops_now:
                total += cancelled
                stopping += ids
                room -= named
            elif named:
                return [Affected(total, more=True, stopping=stopping)]
            if place is None:
                del places[shard]
            else:
                places[shard] = place
    return [Affected(total, stopping=stopping)]
