"""What commands become: calls of scripts, and how to read what they return."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from bide.engines.redis.keys import shard_of
from bide.engines.redis.records import Arg
from bide.model.command_parts import Origin
from bide.model.errors import OutcomeUnknown, StoreCorrupt, StoreError, Unsupported
from bide.model.replies import Outcomes, Reply

SLICE = 500
"""How many messages one call is about at most, so that no script holds the server for long."""

BYTES = 1_000_000
"""How many bytes of records one call carries at most, unless one record alone is larger."""


CREATING = ("put", "configure")
"""Scripts that create the queue if it is not there; they always make a change."""


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


class ShardMismatch(StoreError):
    """A queue is made of another number of shards than a call said; nothing was done."""

    def __init__(self, shards: int) -> None:
        super().__init__(f"the queue is made of {shards} shards")
        self.shards = shards
        """0: the shard of the call is not there."""


Outcome = Reply | StoreError | Unsupported

Round = Generator[Sequence[Call], list[Any], Any]
"""Yields calls, is sent what each answered (errors as values), and so on for as many rounds.

Answers, or the first part of those that bring records, begin with the server's clock in Unix
milliseconds and the number of the last change of the shard.
"""

Step = Generator[Sequence[Call], list[Any], list[Outcome]]
"""Executes a command, or several at once, in rounds; returns an outcome for each."""


def raised(answers: list[Any]) -> list[Any]:
    """Return answers.

    Raises:
        StoreError: the first of those that are one.
    """
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
    return answers


def everywhere(script: str, queue: str, args: Sequence[Arg], shards: int) -> Round:
    """Ask all shards the same; return what each answered.

    Raises:
        StoreError: one of them did not answer.
    """
    answers = yield [Call(script, queue, args, shard, shards) for shard in range(shards)]
    return raised(answers)


def spread(
    ids: Sequence[str], shards: int, sizes: Sequence[int] = ()
) -> list[tuple[int, list[int]]]:
    """Divide messages among calls, so that no call is too large or names one twice.

    Args:
        ids: of the messages.
        shards: of how many the queue is made.
        sizes: bytes that each adds to its call.

    Returns:
        The shard and the indexes of the messages of each call; one without any if there are no ids.
    """
    if shards == 1 and len(set(ids)) == len(ids) <= SLICE and sum(sizes) <= BYTES:
        return [(0, [*range(len(ids))])]  # as mostly
    calls: list[tuple[int, dict[str, int]]] = []
    latest: dict[int, dict[str, int]] = {}
    room: dict[int, int] = {}
    for index, id in enumerate(ids):
        shard, size = shard_of(id, shards), sizes[index] if sizes else 0
        call = latest.get(shard)
        if call is None or len(call) == SLICE or id in call or size > room[shard]:
            call = latest[shard] = {}
            room[shard] = BYTES
            calls.append((shard, call))
        call[id] = index
        room[shard] -= size
    return [(shard, list(call.values())) for shard, call in calls] or [(0, [])]


def origin_of(origin: Origin, lot: Sequence[int]) -> str:
    """Return the origin of some of the messages of a command, as scripts take it."""
    return " ".join([origin.outbox, origin.before, *(origin.rows[index] for index in lot)])


def share_out(sizes: Sequence[int], outcomes: Sequence[Any], parts: int) -> list[Outcome]:
    """Return the reply, or the error, of each of the commands that were executed together.

    Args:
        sizes: how many messages each command names.
        outcomes: those of all messages, errors as values.
        parts: among how many calls or shards a command was divided.
    """
    replies: list[Outcome] = []
    first = 0
    for size in sizes:
        mine = outcomes[first : first + size]
        first += size
        errors = [outcome for outcome in mine if isinstance(outcome, StoreError)]
        if not errors:
            wake = min([o.due for o in mine if o.done and o.state in _PENDING], default=None)
            replies.append(Outcomes(mine, wake))  # type: ignore[arg-type]
        elif len(errors) == size:
            replies.append(errors[0])
        else:
            replies.append(_partly(errors[0], parts))
    return replies


_PENDING = ("delayed", "ready")


def _partly(error: StoreError, parts: int) -> StoreError:
    """Return the error of a command of which some messages were changed."""
    if parts > 1 and not isinstance(error, (StoreCorrupt, ShardMismatch)):
        text = f"{error}; what the command named in other shards was carried out"
        partly = type(error)(text)
    elif isinstance(error, StoreCorrupt):
        partly = StoreCorrupt(f"{error}; the other messages of the command were changed")
    else:
        partly = OutcomeUnknown(f"{error}; other messages of the command were changed")
    partly.__cause__ = error.__cause__
    return partly
