"""Put: the messages of many callers in few calls."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bide.engines.redis.records import Arg, as_outcome, write
from bide.engines.redis.verbs.job import SLICE, Call, Job, decode
from bide.model.commands import Put
from bide.model.message import Item
from bide.model.replies import Outcome, Outcomes

__all__ = ["put"]

SIZE = 1_000_000
"""How many bytes of bodies one call carries, unless one body alone is larger."""


class _Lot(NamedTuple):
    """What one call puts, and what it returned: when, and who was there before."""

    items: Sequence[Item]
    call: Call


def put(run: Sequence[Put]) -> Job:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    queue, replace = run[0].queue, run[0].on_conflict != "keep"
    revive = run[0].on_conflict == "revive"
    items = [item for command in run for item in command.items]
    version = run[0].if_version
    lots = [
        _lot(queue, part, replace=replace, revive=revive, version=version)
        for part in _parts(items, replace=replace)
    ]
    texts = yield [lot.call for lot in lots]
    outcomes: list[Outcome] = []
    for lot, text in zip(lots, texts, strict=True):
        now, _, told = decode(text)
        if replace:
            outcomes += map(as_outcome, (item.id for item in lot.items), told)
        else:
            outcomes += _kept(lot.items, now, dict(told))
    replies = []
    first = 0
    for command in run:
        mine = outcomes[first : first + len(command.items)]
        first += len(mine)
        dues = [o.due for o in mine if o.done and o.state != "dead" and o.due is not None]
        replies.append(Outcomes(mine, min(dues) if dues else None))
    return list(replies)


def _parts(items: Sequence[Item], *, replace: bool) -> Iterator[Sequence[Item]]:
    """Split items by number and size, and so that no part has an id twice."""
    most = SLICE // 4 if replace else SLICE
    small = len(items) <= most and sum([len(item.data) for item in items]) <= SIZE
    if small and (len(items) == 1 or len({item.id for item in items}) == len(items)):
        yield items
        return
    part: list[Item] = []
    ids: set[str] = set()
    size = 0
    for item in items:
        if part and (len(part) == most or item.id in ids or size + len(item.data) > SIZE):
            yield part
            part, ids, size = [], set(), 0
        part.append(item)
        ids.add(item.id)
        size += len(item.data)
    yield part


def _lot(
    queue: str, items: Sequence[Item], *, replace: bool, revive: bool, version: str | None
) -> _Lot:
    args: list[Arg] = [""]
    flags = {"r"} if revive else set()
    for item in items:
        flags.add(write(item, args))
    args[0] = "".join(flags) + (f"={version}" if version and replace else "")
    return _Lot(items, Call("replace" if replace else "put", queue, args))


def _kept(items: Sequence[Item], now: int, known: dict[int, list[object]]) -> Iterator[Outcome]:
    """Tell of each item where its message stands now."""
    for index, item in enumerate(items):
        if index in known:
            yield as_outcome(item.id, known[index])
            continue
        due = now + item.delay if item.at is None else item.at
        if item.died is not None:
            yield Outcome(item.id, True, "dead", due, item.died)
        else:
            yield Outcome(item.id, True, "ready" if due <= now else "delayed", due)
