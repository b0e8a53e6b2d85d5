"""Cancel and purge by a rule: in slices, over all shards."""

from typing import NamedTuple

from bide.engines.redis.calls import SLICE, Call, Job, Outcome, Send, decode
from bide.engines.redis.records import Arg
from bide.model.commands import BULK, Cancel, Purge, Where
from bide.model.errors import StoreError
from bide.model.replies import Affected

__all__ = ["sweep"]


class _Rule(NamedTuple):
    """Which messages a command names, and what it does with them."""

    which: str
    where: Where
    counted: str
    """What the deleted ones are counted as; empty: not at all."""
    deletes: bool


def _rule(command: Cancel | Purge) -> _Rule:
    which: str
    if isinstance(command, Purge):
        which = "due" if command.state == "ready" else command.state
        counted = "" if command.state in ("acked", "expired") else "purged"
        return _Rule(which, Where(before=command.before), counted, deletes=True)
    where = command.where or Where()
    which = "pending" if where.group is None else "group"
    return _Rule(which, where, "cancelled", deletes=not command.dry_run)


def sweep(command: Cancel | Purge, shards: int) -> Job:
    """Delete, or count, what a rule names."""
    rule = _rule(command)
    where = rule.where
    bounds: list[Arg] = ["" if moment is None else moment for moment in (where.after, where.before)]

    def run(send: Send) -> Outcome:
        if rule.which == "leased":  # a worker holds those
            return Affected(0)
        total = 0
        more = False
        cursors = dict.fromkeys(range(shards), "")
        while cursors:
            room = BULK - total if rule.deletes else SLICE
            chosen = list(cursors)[: max(room, 1)]
            deletes = rule.deletes and room > 0
            share = min(SLICE, max(1, room // len(chosen)))
            calls = [
                _call(command.queue, rule, bounds, share, cursors[s], s, shards, deletes)
                for s in chosen
            ]
            for shard, answer in zip(chosen, send(calls), strict=True):
                if isinstance(answer, StoreError):
                    return answer
                found, cursor = decode(answer)
                if rule.deletes and not deletes:  # the limit was reached: is anything left?
                    more = more or found > 0
                    found = 0
                total += found
                goes_on = cursor is not None or (
                    deletes and rule.which != "group" and found == share
                )
                if goes_on and not more:
                    cursors[shard] = cursor or ""
                else:
                    del cursors[shard]
            if more:
                break
        return Affected(total, more=more)

    return run


def _call(
    queue: str, rule: _Rule, bounds: list[Arg], share: int, cursor: str, shard: int, shards: int,
    deletes: bool,
) -> Call:  # fmt: skip
    group = rule.where.group or ""
    args = (
        rule.which,
        *bounds,
        group,
        share,
        cursor,
        rule.counted if deletes else "",
        int(deletes),
    )
    return Call("sweep", queue, args, shard, shards, reads=not deletes)
