"""What commands become: calls of scripts, and how to read what they return."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from bide.engines.redis.records import Arg
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.replies import Reply

__all__ = ["SLICE", "Call", "Job", "Outcome", "Plan", "Send", "answered", "decode", "slices"]

SLICE = 500
"""How many messages one call is about at most, so that no script holds the server for long."""

BYTES = 1_000_000
"""How many bytes of records one call carries at most, unless one record alone is larger."""


class Call(NamedTuple):
    """A call of a script on one shard of a queue."""

    script: str
    queue: str
    args: Sequence[Arg] = ()
    shard: int = 0
    shards: int | str = 1
    """Of how many the queue is made; empty: not known yet."""
    reads: bool = False
    """It changes nothing, though its script may."""


Outcome = Reply | StoreError

Send = Callable[[Sequence[Call]], list[Any]]
"""Sends calls in one round, and returns what each answered, errors as values."""


class Plan(NamedTuple):
    """Commands that take one round, beside others."""

    calls: Sequence[Call]
    read: Callable[[list[Any], Send], list[Outcome]]
    """From what the calls answered to a reply, or an error, for each command."""


Job = Callable[[Send], Outcome]
"""A command that takes several rounds, and nothing else meanwhile."""

decode = msgspec.json.Decoder().decode

T = TypeVar("T")


def slices(ids: Sequence[str], sizes: Sequence[int] = ()) -> list[Sequence[int]]:
    """Split messages so that no slice is too large or names one twice.

    Args:
        ids: of the messages.
        sizes: bytes that each adds to its call.

    Returns:
        The indexes of each slice; one empty slice if there are no ids.
    """
    count = len(ids)
    if count <= SLICE and len(set(ids)) == count and sum(sizes) <= BYTES:
        return [range(count)]
    found: list[Sequence[int]] = []
    part: list[int] = []
    seen: set[str] = set()
    total = 0
    for index, id in enumerate(ids):
        size = sizes[index] if sizes else 0
        if part and (len(part) == SLICE or id in seen or total + size > BYTES):
            found.append(part)
            part, seen, total = [], set(), 0
        part.append(index)
        seen.add(id)
        total += size
    return [*found, part]


def answered(outcomes: Sequence[Any], shards: int) -> StoreError | None:
    """Return the error of a command, if one of its messages has one."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    if not errors:
        return None
    first: StoreError = errors[0]
    if len(errors) == len(outcomes):
        return first
    if shards > 1:
        text = f"{first}; what the command named in other shards was carried out"
        error = type(first)(text)
    else:
        error = OutcomeUnknown(f"{first}; other messages of the command were changed")
    error.__cause__ = first.__cause__
    return error
