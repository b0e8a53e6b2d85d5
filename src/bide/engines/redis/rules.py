"""Cancel and purge by a rule: in slices, over all shards."""

from bide.engines.redis.calls import SLICE, Call, Step, raised
from bide.model.commands import BULK, Cancel, Purge, Where
from bide.model.replies import Affected


def sweep(command: Cancel | Purge, shards: int) -> Step:
    """Delete, or count, the messages that a rule names."""
    if isinstance(command, Purge):
        which = {"ready": "ready due", "delayed": "waiting"}.get(command.state, command.state)
        where, deletes = Where(before=command.before), True
        counted = "" if which in ("acked", "expired") else "purged"
    else:
        where, deletes, counted = command.where or Where(), not command.dry_run, "cancelled"
        which = "ready delayed" if where.group is None else "group"
    bounds = ["" if moment is None else moment for moment in (where.after, where.before)]
    total = 0
    cursors: dict[int, str] = dict.fromkeys(range(shards), "")
    while cursors and which != "leased":  # a worker holds those
        room = BULK - total if deletes else SLICE
        chosen = list(cursors)[: max(room, 1)]
        now_deletes = deletes and room > 0  # else: is anything left?
        share = min(SLICE, max(1, room // len(chosen)))
        answers = yield [
            Call(
                "sweep",
                command.queue,
                (which, *bounds, where.group or "", share, cursors[shard],
                 counted if now_deletes else "", int(now_deletes), command.actor or ""),
                shard,
                shards,
                reads=not now_deletes,
            )
            for shard in chosen
        ]  # fmt: skip
        for shard, answer in zip(chosen, raised(answers), strict=True):
            _now, _change, found, cursor = answer
            if deletes and not now_deletes and found > 0:
                return [Affected(total, more=True)]
            total += found
            if cursor is not None or (now_deletes and which != "group" and found == share):
                cursors[shard] = cursor or ""
            else:
                del cursors[shard]
    return [Affected(total)]
