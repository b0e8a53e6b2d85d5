"""What commands become: calls of scripts, and how to read what they return."""

import hashlib
import re
from collections import Counter
from collections.abc import Generator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from bide.engines.constants import with_constants
from bide.engines.port import Identity
from bide.engines.redis.constants import CONSTANTS
from bide.engines.redis.layout import Word
from bide.model.errors import StoreError, Unsupported
from bide.model.replies import Reply

CHANGING = ("put", "configure", "close_group")
"""Scripts that always make a change."""


class ScriptCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a script on one shard of a queue."""

    script: str
    queue: str
    args: Sequence[Any] = ()
    """Its arguments: what MessagePack has, but no bytes, which Lua reads as text."""
    shard: int = 0
    shards: int = 1
    """The number of shards of the queue."""
    reads: bool = False
    """It changes nothing, though its script may."""
    rows: Sequence[Word] = ()
    """What the script is told of each message, end to end."""
    identity: Identity | None = None
    """Of the command, if its sender may send it again."""
    turn: int = 0
    """Its number among the calls of the same script on the same shard for this command, from 0."""


Result = Reply | StoreError | Unsupported

Round = Generator[Sequence[ScriptCall], list[Any], Any]
"""Yields calls, is sent what each answered (errors as values), and so on for as many rounds.

Answers, or the first part of those that bring records, begin with the server's clock in Unix
milliseconds and the number of the last change of the shard, below 0 if that does not exist.
"""

Step = Generator[Sequence[ScriptCall], list[Any], list[Result]]
"""Executes a command, or several at once, in rounds; returns an outcome for each."""


def with_identity(step: Step, identity: Identity) -> Step:
    """Give the calls of a step the identity of its command.

    What a step asks for follows from the answers before. So a repetition goes on where the first
    try was lost: each shard answers as before what it was asked then.
    """
    turns: Counter[tuple[str, int]] = Counter()  # by script and shard: of the next call

    def identify(call: ScriptCall) -> ScriptCall:
        turn = turns[call.script, call.shard]
        turns[call.script, call.shard] += 1
        return msgspec.structs.replace(call, identity=identity, turn=turn)

    calls = next(step)
    while True:
        answers = yield [identify(call) for call in calls]
        try:
            calls = step.send(answers)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def without_errors(answers: list[Any]) -> list[Any]:
    """Return answers, of which none is an error.

    Raises:
        StoreError: the first error among them.
    """
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
    return answers


def everywhere(script: str, queue: str, args: Sequence[Any], shards: int) -> Round:
    """Ask all shards the same; return what each answered.

    Raises:
        StoreError: one of them did not answer.
    """
    answers = yield [ScriptCall(script, queue, args, shard, shards) for shard in range(shards)]
    return without_errors(answers)


_SHARED = ("_prelude", "_records", "_limits", "_waking")
"""Files of what several functions use; each uses only those before it."""

_VERBS = ("change", "claim", "configure", "groups", "put", "reads", "scan")
"""Files of functions."""


class Library(NamedTuple):
    """The library as the server knows it."""

    text: str
    functions: dict[str, bytes]
    """By the names of the verbs: what they are called on the server."""
    writing: frozenset[str]
    """The verbs that may change something."""
    commands: tuple[str, ...]
    """The commands of Redis that its functions call: the user needs the right to all of these."""


def as_library(text: str) -> Library:
    """Return a library of a text in Lua, whose functions say by their flags whether they write.

    Its name has a hash of the text, so that libraries of several versions are there side by side.
    """
    name = f"bide_{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]}"
    # A function begins with its name and flags, as in: define('find', {'no-writes'}
    flags = dict(re.findall(r"^define\('(\w+)', \{(.*?)\}", text, re.MULTILINE))
    return Library(
        f"#!lua name={name}\nlocal NAME = '{name}'\n{text}",
        {verb: f"{name}_{verb}".encode() for verb in (*flags, "rights")},
        frozenset(verb for verb, flag in flags.items() if "no-writes" not in flag),
        tuple(sorted(set(re.findall(r"call\('([A-Z]+)'", text)))),
    )


def _read_library() -> Library:
    """Return the library as its files have it."""
    folder = files("bide.engines.redis") / "lua"
    texts = [(folder / f"{name}.lua").read_text("utf-8") for name in _SHARED]
    # A chunk of Lua may have 200 local names at a time: in a block, those of a file are its own.
    # A block within a file must leave outside what the file uses behind it: Lua takes a name that
    # it does not know for a global one, and Redis refuses that only when the line is executed.
    texts += [f"do\n{(folder / f'{name}.lua').read_text('utf-8')}end\n" for name in _VERBS]
    return as_library(with_constants("".join(texts), CONSTANTS))


LIBRARY = _read_library()
"""The library of this version. It is read as the module is loaded: Python imports parts of itself
for that, and an import that a signal handler breaks off leaves its lock with nobody."""
