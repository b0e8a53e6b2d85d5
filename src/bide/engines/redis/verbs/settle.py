"""Extend, ack, retry, bury: what the holder of a lease may say."""

from collections.abc import Callable, Sequence

from bide.engines.redis.records import Arg, as_outcome
from bide.engines.redis.verbs.change import set_aside
from bide.engines.redis.verbs.job import SLICE, Call, Job, decode
from bide.model.commands import Ack, Bury, Extend, Lease, Retry
from bide.model.message import REASON_LENGTH
from bide.model.replies import Outcome, Outcomes

__all__ = ["ack", "bury", "bury_by_id", "extend", "retry"]


def _flat(leases: Sequence[Lease]) -> list[Arg]:
    return [part for lease in leases for part in (lease.id, lease.token)]


def _of_one_claim(leases: Sequence[Lease]) -> list[Arg]:
    """Return the token, if all leases have the same, and the ids; else also a token each."""
    tokens = [lease.token for lease in leases]
    one = len(set(tokens)) == 1
    head: Arg = tokens[0] if one else ""
    return [head, *[lease.id for lease in leases], *(() if one else tokens)]


def _settle(
    run: Sequence[Ack | Extend | Retry | Bury],
    script: str,
    head: Sequence[Arg],
    size: int,
    flat: Callable[[Sequence[Lease]], list[Arg]] = _flat,
) -> Job:
    """Settle the leases of consecutive commands that say the same."""
    queue = run[0].queue
    leases = [lease for command in run for lease in command.leases]
    lots = _parts(leases, size)
    texts = yield [Call(script, queue, [*head, *flat(lot)]) for lot in lots]
    outcomes: list[Outcome] = []
    all_gone = True
    for lot, text in zip(lots, texts, strict=True):
        _, _, told = decode(text)
        if told or not lot:
            outcomes += map(as_outcome, (lease.id for lease in lot), told)
            all_gone = False
        else:
            outcomes += [Outcome(lease.id, True) for lease in lot]
    if all_gone and len(run) == 1:
        return [Outcomes(outcomes)]
    replies = []
    first = 0
    for command in run:
        mine = outcomes[first : first + len(command.leases)]
        first += len(mine)
        dues = [
            o.due for o in mine if o.done and o.state in ("delayed", "ready") and o.due is not None
        ]
        replies.append(Outcomes(mine, min(dues) if dues else None))
    return list(replies)


def _parts(leases: Sequence[Lease], size: int) -> list[Sequence[Lease]]:
    """Split leases so that no part is too long or names a message twice."""
    if len(leases) <= size and len({lease.id for lease in leases}) == len(leases):
        return [leases]
    lots: list[Sequence[Lease]] = []
    part: list[Lease] = []
    ids: set[str] = set()
    for lease in leases:
        if len(part) == size or lease.id in ids:
            lots.append(part)
            part, ids = [], set()
        part.append(lease)
        ids.add(lease.id)
    return [*lots, part]


def ack(run: Sequence[Ack]) -> Job:
    """Let messages leave the queue, or remember them where the queue keeps."""
    return _settle(run, "ack", (), SLICE, _of_one_claim)


def extend(run: Sequence[Extend]) -> Job:
    """Move the moments at which leases lapse."""
    return _settle(run, "extend", (run[0].lease,), SLICE // 2)


def retry(run: Sequence[Retry]) -> Job:
    """Let messages be handed out again, later."""
    first = run[0]
    reason = first.reason[:REASON_LENGTH]
    return _settle(run, "retry", (first.delay, int(first.release), reason), SLICE // 4)


def bury_by_id(command: Bury) -> Job:
    """Set messages aside by lease, then by id."""
    outcomes: list[Outcome] = []
    for job in (bury([command]) if command.leases else None, set_aside(command)):
        if job is not None:
            (reply,) = yield from job
            assert isinstance(reply, Outcomes)
            outcomes += reply.outcomes
    return [Outcomes(outcomes)]


def bury(run: Sequence[Bury]) -> Job:
    """Set messages aside as dead letters."""
    return _settle(run, "bury", (run[0].reason[:REASON_LENGTH],), SLICE // 4)
