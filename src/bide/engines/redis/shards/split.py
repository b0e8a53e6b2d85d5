"""Commands about messages by id, and about a queue as a whole: parts for the shards, and back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from bide.engines.pages import Budget
from bide.engines.redis.keys import shard_of
from bide.engines.redis.shards.made import Made
from bide.engines.redis.verbs.job import SLICE
from bide.engines.redis.verbs.put import LONG, NumberedOutcomes, NumberedPut
from bide.model import commands as cmd
from bide.model.errors import StoreError
from bide.model.message import Message, size_of
from bide.model.replies import (
    Counts,
    Flow,
    Forecasted,
    Found,
    Outcomes,
    Reply,
    Settings,
    Sizes,
)

__all__ = ["Part", "merge", "split"]


class Part(NamedTuple):
    """What one shard is asked."""

    shard: int
    command: cmd.Command
    at: Sequence[int]
    """Which of the whole command's messages these are."""


def split(command: cmd.Command, made: Made) -> list[Part] | None:
    """Return what each shard is asked; `None` if the shards must be asked together."""
    if isinstance(command, cmd.Put):
        return _of_put(command, made)
    if isinstance(command, (cmd.Count, cmd.Forecast, cmd.Configure)):
        return [Part(shard, command, ()) for shard in range(made.count)]
    if isinstance(command, (cmd.Ack, cmd.Extend, cmd.Retry)):
        return _of_leases(command, made)
    if isinstance(command, cmd.Bury):
        return _of_bury(command, made)
    by_rule = isinstance(command, cmd.Cancel) and command.where is not None
    ids = getattr(command, "ids", None)
    if by_rule or ids is None:
        return None
    return [
        Part(shard, _with(command, ids=[ids[index] for index in at]), at)
        for shard, at in _by_shard(ids, made.count).items()
    ]


def _with(command: cmd.Command, **changes: Any) -> cmd.Command:
    return msgspec.structs.replace(command, **changes)


def _by_shard(ids: Sequence[str], shards: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, id in enumerate(ids):
        found.setdefault(shard_of(id, shards), []).append(index)
    return found


def _of_put(command: cmd.Put, made: Made) -> list[Part]:
    if not command.items:  # it makes the queue, if nothing else
        return [Part(0, command, ())]
    most = SLICE if command.on_conflict == "keep" else LONG - 1
    numbers = [made.number(item, shard_of(item.id, made.count), most) for item in command.items]
    parts = []
    for shard, at in _by_shard([item.id for item in command.items], made.count).items():
        items = [command.items[index] for index in at]
        mine = [numbers[index] for index in at]
        part = NumberedPut(
            command.queue, items, command.on_conflict, command.if_version, numbers=mine
        )
        parts.append(Part(shard, part, at))
    return parts


def _of_leases(command: cmd.Ack | cmd.Extend | cmd.Retry, made: Made) -> list[Part]:
    found = _by_shard([lease.id for lease in command.leases], made.count)
    return [
        Part(shard, _with(command, leases=[command.leases[index] for index in at]), at)
        for shard, at in found.items()
    ]


def _of_bury(command: cmd.Bury, made: Made) -> list[Part]:
    """Return the parts of a command that names messages by lease, then by id."""
    held = len(command.leases)
    ids = [*(lease.id for lease in command.leases), *command.ids]
    return [
        Part(
            shard,
            _with(
                command,
                leases=[command.leases[index] for index in at if index < held],
                ids=[command.ids[index - held] for index in at if index >= held],
            ),
            at,
        )
        for shard, at in _by_shard(ids, made.count).items()
    ]


def merge(
    command: cmd.Command, made: Made, parts: Sequence[Part], told: Sequence[Reply | StoreError]
) -> Reply | StoreError:
    """Return the reply that those of the parts come to, or why there is none."""
    errors = [reply for reply in told if isinstance(reply, StoreError)]
    if errors:
        return _failed(command, errors, len(parts))
    replies: Any = told
    if isinstance(command, cmd.Count):
        return _counts(replies)
    if isinstance(command, cmd.Forecast):
        return _forecasted(replies)
    if isinstance(command, cmd.Configure):
        return _settings(replies)
    if isinstance(command, cmd.Find):
        return _found(command, parts, replies)
    for reply in replies:
        if isinstance(reply, NumberedOutcomes):
            made.seen(reply.following)
    wakes = [reply.wake for reply in replies if reply.wake is not None]
    outcomes = _in_place(parts, [reply.outcomes for reply in replies])
    return Outcomes(outcomes, min(wakes, default=None))


def _failed(command: cmd.Command, errors: Sequence[StoreError], parts: int) -> StoreError:
    first = errors[0]
    if len(errors) == parts or command.only_reads:
        return first
    error = type(first)(f"{first}; what the command named in other shards was carried out")
    error.__cause__ = first.__cause__
    return error


def _in_place(parts: Sequence[Part], told: Sequence[Sequence[Any]]) -> list[Any]:
    whole = [None] * sum(len(part.at) for part in parts)
    for part, mine in zip(parts, told, strict=True):
        for index, one in zip(part.at, mine, strict=True):
            whole[index] = one
    return whole


def _found(command: cmd.Find, parts: Sequence[Part], told: Sequence[Found]) -> Found:
    """Return the messages of the first ids, as far as every shard has told of them."""
    known = {i: m for part, reply in zip(parts, told, strict=True)
             for i, m in zip(part.at, reply.messages, strict=False)}  # fmt: skip
    budget = Budget(command.max_bytes)
    messages: list[Message | None] = []
    for index in range(len(command.ids)):
        if index not in known:
            break
        message = known[index]
        if message is not None and not budget.takes(size_of(message)):
            break
        messages.append(message)
    return Found(messages)


def _sum(structs: Sequence[Any]) -> Any:
    """Add up structs of numbers, field by field."""
    rows = [msgspec.structs.astuple(struct) for struct in structs]
    return type(structs[0])(*map(sum, zip(*rows, strict=True)))


def _counts(told: Sequence[Counts]) -> Counts:
    sizes: Sizes = _sum([counts.sizes for counts in told])
    flow: Flow = _sum([counts.flow for counts in told])
    oldest = [counts.oldest for counts in told if counts.oldest is not None]
    recounts = [counts.recount for counts in told if counts.recount is not None]
    strays = [counts.strays for counts in told if counts.strays is not None]
    return Counts(
        sizes,
        flow,
        kept=sum(counts.kept for counts in told),
        paused=any(counts.paused for counts in told),
        keep=max(counts.keep for counts in told),
        oldest=min(oldest, default=None),
        recount=_sum(recounts) if recounts else None,
        strays=sum(strays) if strays else None,
    )


def _forecasted(told: Sequence[Forecasted]) -> Forecasted:
    return Forecasted(
        min(part.start for part in told),
        sum(part.overdue for part in told),
        [sum(bucket) for bucket in zip(*(part.buckets for part in told), strict=True)],
        sum(part.later for part in told),
    )


def _settings(told: Sequence[Settings]) -> Settings:
    wakes = [part.wake for part in told if part.wake is not None]
    return Settings(
        any(part.paused for part in told),
        max(part.keep for part in told),
        min(wakes, default=None),
    )
