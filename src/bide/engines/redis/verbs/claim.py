"""Claim: lease the next due messages, slice by slice if very many are wanted.

Of few messages the script tells the records as well. Those of many are fetched behind it: a script
would make a text of its own of each, which costs more than the round trip.
"""

from collections.abc import Container, Generator, Sequence
from typing import Any

from bide.engines.redis.records import as_claimed, read_tags, seq_of
from bide.engines.redis.verbs.job import Call, Job, decode
from bide.model.commands import Claim
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE, ready_rank
from bide.model.replies import Claimed

__all__ = ["brought", "claim", "is_large", "others", "unknown"]

LOTS = 256
"""Of so many messages or more the script may leave the records to be fetched."""


Records = tuple[Sequence[str], Sequence[bytes]]
"""Ids, and the record of each."""


def is_large(command: Claim) -> bool:
    """Tell whether a claim may take several rounds."""
    return command.count >= LOTS


def _ids(lines: bytes) -> list[str]:
    return lines.decode().split("\n") if lines else []


def brought(queue: str, answer: Sequence[Any], until: int) -> Generator[list[Call], list[Any], Any]:
    """Return what a script that leases has told, records that it left out fetched.

    Messages without one are left out: they are halves of changes, left by a server that died. All
    are, if the lease was over before they were fetched: they may be somebody else's by then.
    Returns the error instead, if that is what a call returns.
    """
    head, lines, records, *_ = answer
    ids = _ids(lines)
    if len(ids) > len(records):
        _, token, *_ = decode(head)
        told = yield [Call("records", queue, ids), Call("lease", queue, (f"{token} {until} left",))]
        for each in told:
            if isinstance(each, StoreError):
                return each
        records, lease = told
        if lease is None:
            return [], []
        if int(lease) != len(ids):  # some are held no longer, or more than these by this lease
            (told,) = yield [Call("recover", queue, (token, until))]
            if isinstance(told, StoreError):
                return told
            asked, held = set(ids), dict(zip(_ids(told[1]), told[2], strict=True))
            ids = [id for id in held if id in asked]
            records = [held[id] for id in ids]
    if None in records:
        ids = [id for id, record in zip(ids, records, strict=True) if record is not None]
        records = [record for record in records if record is not None]
    return ids, records


def others(ids: Sequence[str], records: Sequence[bytes], known: Container[str]) -> Records:
    """Return the ids, and their records, that are not known."""
    pairs = [pair for pair in zip(ids, records, strict=True) if pair[0] not in known]
    return [id for id, _ in pairs], [record for _, record in pairs]


def unknown(error: StoreError) -> OutcomeUnknown:
    """Return the error of a claim that had leased something before it failed."""
    leased = OutcomeUnknown(f"{error}; messages were leased, and come again when the lease lapses")
    leased.__cause__ = error
    return leased


def claim(command: Claim) -> Job:
    """Lease up to `count` messages."""
    queue, holder = command.queue, command.holder
    reach = max(PROMOTE, command.count)
    wanted, lapses, weigh, examine = command.count, reach, reach, reach
    token = 0
    room = command.max_bytes
    weighted = False
    found: list[Message] = []
    texts: list[bytes] = []
    tags: dict[bytes, tuple[bytes, int]] = {}
    while True:
        args = (wanted, command.lease, holder, token or "", lapses, weigh, examine, room)
        (answer,) = yield [Call("claim", queue, args)]
        if isinstance(answer, StoreError):
            if found:  # else they would be held by nobody who knows
                break
            raise answer
        lost = None
        if isinstance(answer, bytes):  # its reply was lost on the way, and this is the second try
            lost = decode(answer)
            (answer,) = yield [Call("recover", queue, lost)]
            if isinstance(answer, StoreError):
                if found:
                    break
                raise unknown(answer)
        tags |= read_tags(answer[3])
        now, given, following, weighs, lapsed, weighed, examined, more = decode(answer[0])
        until = now + command.lease if lost is None else lost[1]
        told = yield from brought(queue, answer, until)
        if isinstance(told, StoreError):
            if found:
                break
            raise unknown(told)
        ids, records = told
        if answer[1] and not records:  # nothing of it was left, so that it looks anew
            more, given = True, 0
        if lost is not None:  # a slice that was leased at the same moment is told again as well
            ids, records = others(ids, records, {message.id for message in found})
        found += as_claimed(queue, ids, records, now, holder, until, tags)
        texts += records
        token = given or token
        weighted = weighted or bool(weighs)
        wanted -= len(records)
        room -= sum(map(len, records))
        if room <= 0:
            more = False
        lapses, weigh, examine = lapses - lapsed, weigh - weighed, examine - examined
        if not more or wanted <= 0:
            break
    if found and command.lease > 0 and (found[0].until or 0) <= now:
        # Its slices took longer than the lease: the first ones are somebody else's, or come again.
        held = [i for i, message in enumerate(found) if (message.until or 0) > now]
        found, texts, following = [found[i] for i in held], [texts[i] for i in held], 0
    if not found:
        return [Claimed([], 0, now, following)]
    if weighted:
        places = sorted(
            range(len(found)),
            key=lambda i: (ready_rank(found[i].due, found[i].priority), seq_of(texts[i], tags)),
        )
        found = [found[i] for i in places]
    return [Claimed(found, token, now)]
