"""Claim: lease the next due messages, slice by slice if very many are wanted.

Of few messages the script tells the records as well. Those of many are fetched behind it: that
takes a round trip more, and a quarter of its time off the server.
"""

from collections.abc import Container, Generator, Sequence
from typing import Any

from bide.engines.redis.records import as_claimed, read_tags, seq_of
from bide.engines.redis.verbs.job import Call, Job, decode
from bide.model.commands import Claim
from bide.model.errors import StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE, ready_rank
from bide.model.replies import Claimed

__all__ = ["brought", "claim", "is_large", "others"]

LOTS = 256
"""Of so many messages or more the script may leave the records to be asked for."""


Records = tuple[Sequence[str], Sequence[bytes]]
"""Ids, and the record of each."""


def is_large(command: Claim) -> bool:
    """Tell whether a claim may take several rounds."""
    return command.count >= LOTS


def brought(queue: str, answer: Sequence[Any]) -> Generator[list[Call], list[Any], Any]:
    """Return what a script that leases has told, records that it left out asked for.

    Messages without one are left out: they were cancelled meanwhile, or are halves of changes, left
    by a server that died. Returns the error instead, if that is what a call returns.
    """
    _, lines, records, *_ = answer
    ids = lines.decode().split("\n") if lines else []
    if len(ids) > len(records):
        (records,) = yield [Call("records", queue, ids)]
        if isinstance(records, StoreError):
            return records
    if None in records:
        ids = [id for id, record in zip(ids, records, strict=True) if record is not None]
        records = [record for record in records if record is not None]
    return ids, records


def others(ids: Sequence[str], records: Sequence[bytes], known: Container[str]) -> Records:
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
        tags |= read_tags(answer[3])
        now, given, following, weighs, lapsed, weighed, examined, more = decode(answer[0])
        ids, records = yield from brought(queue, answer)
        more = more or (given and not records)  # nothing but halves of changes stood there
        if until is not None:  # a slice that was leased at the same moment is told again as well
            ids, records = others(ids, records, {message.id for message in found})
        until = until or now + command.lease
        found += as_claimed(queue, ids, records, now, holder, until, tags)
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
