"""Put: the messages of many callers in few calls."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from secrets import token_bytes

import msgspec

from bide.engines.redis.records import (
    LONGEST,
    NAME,
    Arg,
    are_alike,
    as_outcome,
    is_plain,
    mark,
    when,
    write,
    write_plain,
    write_whole,
)
from bide.engines.redis.verbs.job import SLICE, Call, Job, decode
from bide.model.commands import Put
from bide.model.message import Alike, Fresh, Item, State
from bide.model.replies import Outcome, Outcomes

__all__ = [
    "LONG",
    "PLACES",
    "SIZE",
    "NumberedOutcomes",
    "NumberedPut",
    "put",
]

SIZE = 1_000_000
"""How many bytes of bodies one call carries, unless one body alone is larger."""

LONG = 64
"""From how many messages on a call brings the lines of a chunk of the order of puts."""

PLACES = 4096
"""How many numbers there are in a chunk of the order of puts."""


class NumberedPut(Put, frozen=True, tag="put"):
    """What one of several shards is to store, with the place of each among those of all shards."""

    numbers: list[int] = msgspec.field(default_factory=list)


class NumberedOutcomes(Outcomes, frozen=True, tag="outcomes"):
    """What became of it."""

    following: int = 0
    """The number that the next message in the shard has at least."""


def put(run: Sequence[Put]) -> Job:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    queue, replace = run[0].queue, run[0].on_conflict != "keep"
    given = [_tried(command.items) for command in run]
    items = given[0] if len(run) == 1 else list(chain.from_iterable(given))
    numbers: list[int] = []
    if isinstance(run[0], NumberedPut):
        numbers = [n for part in run if isinstance(part, NumberedPut) for n in part.numbers]
    lots = list(_parts(items, numbers, replace=replace))
    if not replace:
        lots = list(map(_as_alike, lots))
    places = iter(numbers)
    args = [_replacing(lot, run[0], places) if replace else _putting(lot, places) for lot in lots]
    texts = yield [Call("replace" if replace else "put", queue, each) for each in args]
    outcomes: list[Outcome] = []
    following: list[int] = []
    for lot, text in zip(lots, texts, strict=True):
        now, _, told, *following = decode(text)
        if replace:
            outcomes += map(as_outcome, [item.id for item in lot], told)
        else:
            outcomes += _kept(lot, now, dict(told)) if told else _stored(lot, now)
    if len(run) == 1:
        return [_reply(outcomes, following)]
    if not following and set(map(len, given)) == {1}:
        return [Outcomes([o], o.due if o.done and o.state != "dead" else None) for o in outcomes]
    rest = iter(outcomes)
    return [_reply(list(islice(rest, len(items))), following) for items in given]


def _tried(items: list[Item]) -> list[Item]:
    """Return items, fresh ones for the first time only: a second try meets what the first left."""
    if not isinstance(items, Fresh):
        return items
    if items.tried:
        return Alike(items)
    items.tried = True
    return items


def _as_alike(items: Sequence[Item]) -> Sequence[Item]:
    """Return items as `Alike` if they have nothing but a body, and are so."""
    if isinstance(items, Alike) or not items or not is_plain(items[0]) or not are_alike(items):
        return items
    return Alike(items)


def _reply(outcomes: list[Outcome], following: Sequence[int]) -> Outcomes:
    dues = [o.due for o in outcomes if o.done and o.state != "dead" and o.due is not None]
    wake = min(dues, default=None)
    if following:
        return NumberedOutcomes(outcomes, wake, following[0])
    return Outcomes(outcomes, wake)


def _parts(
    items: Sequence[Item], numbers: Sequence[int], *, replace: bool
) -> Iterator[Sequence[Item]]:
    """Split items by number and size, so that no part has an id twice or stands in two chunks."""
    most = SLICE // 4 if replace else SLICE
    small = len(items) <= most and sum([len(item.data) for item in items]) <= SIZE
    small = small and (not numbers or numbers[0] // PLACES == numbers[-1] // PLACES)
    distinct = isinstance(items, Fresh) or len(items) == 1
    if small and (distinct or len({item.id for item in items}) == len(items)):
        yield items
        return
    kind = type(items) if isinstance(items, list) else list  # a part of what is alike is so, too
    part: list[Item] = kind()
    ids: set[str] = set()
    size = 0
    chunk = 0
    for index, item in enumerate(items):
        full = len(part) == most or item.id in ids or size + len(item.data) > SIZE
        if numbers:
            full = full or numbers[index] // PLACES != chunk
            chunk = numbers[index] // PLACES
        if part and full:
            yield part
            part, ids, size = kind(), set(), 0
        part.append(item)
        ids.add(item.id)
        size += len(item.data)
    yield part


def _putting(items: Sequence[Item], numbers: Iterator[int]) -> list[Arg]:
    """Return the arguments of the script `put`; what all items have in common is said once."""
    if not items:
        return ["", 0, 0, "", ""]
    first = items[0]
    ids = [item.id for item in items]
    if isinstance(items, Alike) and is_plain(first):  # as most are that are put together
        fresh = isinstance(items, Fresh)
        flags, moment = "w" if first.priority else "", when(first.at, first.delay)
        head = [flags, moment, first.priority, _lines(ids, ascending=fresh)]
        given = list(islice(numbers, len(items)))
        if given or len(items) < LONG or first.delay >= LONGEST:
            return [*head, "", *ids, *write_plain(items), *given]
        tag = b"~" + token_bytes(7).hex().encode()[: NAME - 1]
        head[0] = flags + "f" if fresh else flags
        return [*head, tag, *ids, *write_whole(items, tag)]
    moments = {(item.at, item.delay) for item in items}
    odd = [item for item in items if not is_plain(item)]
    priorities = {item.priority for item in items}
    flags = "" if priorities == {0} else "w"
    marks: list[Arg] = []
    if odd:
        flags += "g" if any(item.group is not None for item in odd) else ""
        flags += "e" if any(item.expires is not None for item in odd) else ""
        marks = [mark(item) for item in items]
    elif len(priorities) > 1:
        marks = [item.priority for item in items]
    common = when(first.at, first.delay) if len(moments) == 1 else ""
    args: list[Arg] = [flags, common, "" if marks else first.priority, _lines(ids), ""]
    args += ids
    args += map(write, items)
    if common == "":
        args += [when(item.at, item.delay) for item in items]
    args += marks
    args += islice(numbers, len(items))
    return args


def _lines(ids: Sequence[str], *, ascending: bool = False) -> str:
    """Return ids as the order of puts tells them, a line each."""
    if len(ids) < LONG:
        return "\n".join([*ids, ""])
    low, high = (ids[0], ids[-1]) if ascending else (min(ids), max(ids))
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return "\n".join([low[:same], *[id[same:] for id in ids], ""])


def _replacing(items: Sequence[Item], command: Put, numbers: Iterator[int]) -> list[Arg]:
    version = f"={command.if_version}" if command.if_version else ""
    args: list[Arg] = ["r" if command.on_conflict == "revive" else version]
    for item in items:
        args += (item.id, when(item.at, item.delay), write(item), *islice(numbers, 1))
    return args


def _stored(items: Sequence[Item], now: int) -> list[Outcome]:
    """Tell where messages stand that are all new."""
    if not isinstance(items, Alike):
        return list(_kept(items, now, {}))
    first = items[0]
    due = now + first.delay if first.at is None else first.at
    state: State = "ready" if due <= now else "delayed"
    return [Outcome(item.id, True, state, due) for item in items]


def _kept(items: Sequence[Item], now: int, known: dict[int, object]) -> Iterator[Outcome]:
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
