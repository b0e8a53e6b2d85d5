"""Claim: lease the next due messages, slice by slice if very many are wanted."""

from collections.abc import Container, Sequence

from bide.engines.redis.records import as_claimed, read_tags, seq_of
from bide.engines.redis.verbs.job import SLICE, Call, Job, decode
from bide.model.commands import Claim
from bide.model.message import Message
from bide.model.rank import PROMOTE, ready_rank
from bide.model.replies import Claimed

__all__ = ["claim", "is_large", "others"]


def is_large(command: Claim) -> bool:
    """Tell whether a claim needs several slices."""
    return command.count > SLICE


def others(
    ids: Sequence[str], records: Sequence[bytes], known: Container[str]
) -> tuple[list[str], list[bytes]]:
    """Return the ids, and their records, that are not known."""
    pairs = [pair for pair in zip(ids, records, strict=True) if pair[0] not in known]
    return [id for id, _ in pairs], [record for _, record in pairs]


def claim(command: Claim) -> Job:
    """Lease up to `count` messages."""
    queue, holder = command.queue, command.holder
    reach = max(PROMOTE, command.count)
    wanted, lapses, weigh, examine = command.count, reach, reach, reach
    token = 0
    weighted = False
    found: list[Message] = []
    texts: list[bytes] = []
    tags: dict[bytes, tuple[bytes, int]] = {}
    while True:
        args = (wanted, command.lease, holder, token or "", lapses, weigh, examine)
        (answer,) = yield [Call("claim", queue, args)]
        until = None
        if isinstance(answer, bytes):  # its reply was lost on the way, and this is the second try
            recovered, until = decode(answer)
            (answer,) = yield [Call("recover", queue, (recovered, until))]
        head, ids, records, told = answer
        tags |= read_tags(told)
        now, given, following, weighs, lapsed, weighed, examined, *rest = decode(head)
        more = bool(rest and rest[0])
        names = ids.decode().split("\n") if ids else []
        if until is not None:  # a slice that was leased at the same moment is told again as well
            names, records = others(names, records, {message.id for message in found})
        until = until or now + command.lease
        found += as_claimed(queue, names, records, now, holder, until, tags)
        texts += records
        token = given or token
        weighted = weighted or bool(weighs)
        wanted -= len(records)
        lapses, weigh, examine = lapses - lapsed, weigh - weighed, examine - examined
        if not more or wanted <= 0:
            break
    if not found:
        return [Claimed([], 0, now, following)]
    if weighted:
        places = sorted(
            range(len(found)),
            key=lambda i: (ready_rank(found[i].due, found[i].priority), seq_of(texts[i], tags)),
        )
        found = [found[i] for i in places]
    return [Claimed(found, token, now)]
