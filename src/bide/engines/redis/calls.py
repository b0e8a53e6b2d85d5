"""What commands become: calls of scripts, and how to read what they return."""

import hashlib
import re
from collections.abc import Callable, Generator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from bide.engines.redis.layout import Arg, shard_of
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


def in_lots(
    script: str,
    command: Any,
    rows: Sequence[Sequence[Arg]],
    head_of: Callable[[list[int]], list[Arg]],
    shards: int,
    sizes: Sequence[int] = (),
) -> Round:
    """Call a script for messages, in as many calls as are needed.

    Args:
        script: its name.
        command: the first of those that are executed together.
        rows: the arguments of each message; its id is the first one.
        head_of: returns the arguments in front of those of some messages, by their indexes. Behind
            them stands the origin of the command.
        shards: of how many the queue is made.
        sizes: see `spread`.

    Returns:
        A list with the errors of those messages whose call failed; the indexes of the others with
        what was answered to their call; and the first error.
    """
    lots = spread([str(row[0]) for row in rows], shards, sizes)
    origin: Origin | None = getattr(command, "origin", None)
    calls = []
    for shard, lot in lots:
        args = head_of(lot)
        if script in ("put", "change"):
            told = origin and (origin.outbox, origin.before, *(origin.rows[i] for i in lot))
            args.append(" ".join(told or ()))
        for index in lot:
            args += rows[index]
        calls.append(Call(script, command.queue, args, shard, shards))
    answers = yield calls
    outcomes: list[Any] = [None] * len(rows)
    answered, failed = [], None
    for (_, lot), answer in zip(lots, answers, strict=True):
        if not isinstance(answer, StoreError):
            answered.append((lot, answer))
            continue
        failed = failed or answer
        for index in lot:
            outcomes[index] = answer
    return outcomes, answered, failed


def share_out(
    sizes: Sequence[int],
    outcomes: Sequence[Any],
    failed: StoreError | None,
    nexts: Sequence[int | None] = (),
) -> list[Outcome]:
    """Return the reply, or the error, of each of the commands that were executed together.

    Args:
        sizes: how many messages each command names.
        outcomes: those of all messages, errors as values.
        failed: an error, if there was one: also that of a command that names no message.
        nexts: when a limited queue allows the next message, after each that ended a lease.
    """
    replies: list[Outcome] = []
    first = 0
    for size in sizes:
        mine, opens = outcomes[first : first + size], nexts[first : first + size]
        first += size
        errors = [outcome for outcome in mine if isinstance(outcome, StoreError)]
        if failed and len(errors) == size:
            replies.append(errors[0] if errors else failed)
        elif errors:
            replies.append(_partly(errors[0]))
        else:
            wakes = [o.due for o in mine if o.done and o.state in _PENDING]
            wakes += [moment for moment in opens if moment is not None][-1:]
            replies.append(Outcomes(mine, min(wakes, default=None)))  # type: ignore[arg-type]
    return replies


_PENDING = ("delayed", "ready")


def _partly(error: StoreError) -> StoreError:
    """Return the error of a command of which some messages were changed."""
    kind, others = type(error), "what the command named in other shards was carried out"
    if isinstance(error, StoreCorrupt):
        others = "the other messages of the command were changed"
    elif isinstance(error, ShardMismatch):
        kind, others = OutcomeUnknown, "other messages of the command were changed"
    partly = kind(f"{error}; {others}")
    partly.__cause__ = error.__cause__
    return partly


_SHARED = ("prelude", "records", "limits", "waking")
"""Files of what several functions use, in the order in which they use each other."""


class Library(NamedTuple):
    """The library as the server knows it."""

    text: str
    functions: dict[str, bytes]
    """By the names of the verbs: what they are called on the server."""
    writing: frozenset[str]
    """The verbs that may change something."""


def as_library(text: str) -> Library:
    """Return a library of a text, whose functions say by their flags whether they write."""
    name = f"bide_{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]}"
    flags = dict(re.findall(r"^define\('(\w+)', \{(.*?)\}", text, re.MULTILINE))
    return Library(
        f"#!lua name={name}\nlocal NAME = '{name}'\n{text}",
        {verb: f"{name}_{verb}".encode() for verb in flags},
        frozenset(verb for verb, flag in flags.items() if "no-writes" not in flag),
    )


@cache
def load_library() -> Library:
    """Return the library of this version."""
    folder = files("bide.engines.redis") / "lua"
    names = sorted(
        file.name for file in folder.iterdir() if re.fullmatch(r"[a-z]+\.lua", file.name)
    )
    texts = [(folder / f"_{name}.lua").read_text("utf-8") for name in _SHARED]
    # A function has room for so many local variables: those of a file are its own.
    texts += [f"do\n{(folder / name).read_text('utf-8')}end\n" for name in names]
    return as_library("".join(texts))
