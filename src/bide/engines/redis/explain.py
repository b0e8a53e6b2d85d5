"""Explain: one round in the shard of the message, and one in all others if it is ready."""

from bide.engines.redis.calls import Call, Step, raised
from bide.engines.redis.keys import shard_of
from bide.engines.redis.records import as_message
from bide.model.commands import Explain
from bide.model.rank import ready_rank
from bide.model.replies import AHEAD, Explained, Limited, Pause


def explain(command: Explain, shards: int) -> Step:
    """Look at a message, its lease, its place among others, and the pauses of its queue."""
    id = command.id or ""
    home = shard_of(id, shards)
    answers = yield [Call("explain", command.queue, (id,), home, shards)]
    ((head, record, lease),) = raised(answers)
    now, _change, paused, told, ahead, order, limited = head
    pauses = [Pause(*pause) for pause in told]
    if paused and not (pauses and pauses[-1].until is None):
        pauses.append(Pause(None))
    if record is None:
        return [Explained(now, pauses)]
    seen = as_message(command.queue, id, record, now, lease=lease or None)
    if ahead is not None and shards > 1:
        place = ready_rank(seen.due, seen.priority), order
        others = [shard for shard in range(shards) if shard != home]
        answers = yield [Call("ahead", command.queue, place, shard, shards) for shard in others]
        ahead = min(AHEAD + 1, ahead + sum(answer[2] for answer in raised(answers)))
    since, extended = _lease(lease)
    return [
        Explained(
            now, pauses, seen.state, seen.due, seen.planned, seen.priority, seen.attempt,
            seen.attempts, seen.failures[-1] if seen.failures else None, ahead,
            seen.holder, since, extended, seen.until, seen.ended,
            None if seen.successor is None else seen.successor.at,
            limited=Limited(*limited) if limited else None,
        )
    ]  # fmt: skip


def _lease(lease: bytes) -> tuple[int | None, int]:
    """Return since when a lease lasts, `None` if an older bide made it; and its extensions."""
    since, _, times = lease.partition(b"\n")[0].partition(b"\t")[2].partition(b" ")
    return int(since) if since.isdigit() else None, int(times) if times.isdigit() else 0
