"""What endangers the messages of a store: findings about its server or file."""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from urllib.parse import SplitResult

import msgspec

from bide.engines.registry import is_server, mask, module_of, opener, split_url
from bide.model.errors import Unsupported


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    level: Literal["danger", "warning"]
    """`danger`: what was confirmed may be lost, or the store may stop; else `warning`."""
    what: str
    """What was found: the setting and its value."""
    loss: str
    """What can happen because of it."""
    fix: str


Check = tuple[bool, Literal["danger", "warning"], str, str, str]
"""Whether a finding applies, and its fields."""


def findings(*checks: Check) -> list[Finding]:
    """Return the findings of those checks that apply."""
    return [Finding(level, *texts) for applies, level, *texts in checks if applies]


LONGEST = 20.0
"""The maximum time to read messages, in seconds, by default."""

EXAMPLES = 3
"""The maximum number of unreadable messages that are named; after them reading stops."""


class Unreadable(NamedTuple):
    """What a search for damage has found."""

    name: str
    """Of the message, and of its queue where a store can tell it."""
    is_end: bool = False
    """Whether it is what is remembered of its end, and not the message itself."""


Examine = Callable[[SplitResult, float], Sequence[Finding]]
"""`examine` of the module `doctor` of an engine: it gets the URL, and the seconds for which to read
messages. It changes nothing in the store."""


def examine(url: str, longest: float = LONGEST) -> list[Finding]:
    """Check the settings and the messages of the store at a URL; return dangers first.

    Args:
        url: of the store.
        longest: the maximum time to read messages, in seconds.

    Raises:
        InvalidArgument: the URL is wrong.
        Unsupported: this kind of store cannot be examined from here.
        StoreError: the store cannot be reached.
    """
    opener(url)  # says what is wrong with the URL
    parts = split_url(url)
    if is_server(url):
        raise Unsupported(
            f"{mask(url)} is a bide server, which does not say how its store is set up: run "
            "`bide doctor` where the server runs, with the URL of the server's store"
        )
    name = f"{module_of(parts.scheme)}.doctor"
    try:
        examine_store: Examine = importlib.import_module(name).examine
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Unsupported(f"stores at {parts.scheme}:// cannot be examined") from error
    return sorted(examine_store(parts, longest), key=lambda finding: finding.level)


def of_messages(
    search: Iterable[Unreadable | None], longest: float, shown: str, what: str, where: str
) -> Iterator[Finding]:
    """Search a store for messages that cannot be read; yield a finding of all of them, and
    one of those of whose ends that is so.

    If the time was too short to look at all messages, yield a finding that says so.

    Args:
        search: looks at more messages with each step. It yields one that cannot be read, or
            `None`, and may raise `TimeoutError`.
        longest: how many seconds the search may take.
        shown: the store, for the texts.
        what: what cannot be read, for the text: "rows" or "records".
        where: where another program has written to, for the text: "tables" or "keys".
    """
    until = time.monotonic() + longest
    found: set[Unreadable] = set()
    has_seen_all = True
    try:
        for damage in search:
            if damage is not None:
                found.add(damage)
            if len(found) == EXAMPLES:
                break
            if time.monotonic() > until:
                raise TimeoutError
    except TimeoutError:
        has_seen_all = False
    if names := sorted(damage.name for damage in found if not damage.is_end):
        yield unreadable(f"{what} of messages in {shown}", names, where)
    if names := sorted(damage.name for damage in found if damage.is_end):
        yield unreadable_ends(shown, names, where)
    if not has_seen_all:
        yield too_large(shown, longest)


def unreadable(what: str, names: Sequence[str], where: str) -> Finding:
    """Return the finding of messages that something else has written to."""
    return Finding(
        "warning",
        f"{what} cannot be read: {', '.join(names)}",
        "handlers fail with them, or they become dead letters when they are due",
        f"look at them with bide get and bide dead, and find what wrote to bide's {where}",
    )


def unreadable_ends(shown: str, names: Sequence[str], where: str) -> Finding:
    """Return the finding of messages to whose ends something else has written."""
    return Finding(
        "warning",
        f"what is remembered of ended messages in {shown} cannot be read: {', '.join(names)}",
        "how they ended, and their results, are not known",
        f"find what wrote to bide's {where}; it is forgotten with the history of the queue",
    )


def other_version(store: str, version: int, newest: int, opener: str) -> Finding:
    """Return the finding that the tables of a store are of another version than this bide makes.

    Args:
        store: what it is called.
        version: of its tables.
        newest: the version that this bide makes.
        opener: the condition under which an older store is brought up to date.
    """
    return Finding(
        "danger" if version > newest else "warning",
        f"the schema {store}is of version {version}, and this bide makes version {newest}",
        "this bide is refused"
        if version > newest
        else f"once {opener}, programs with an older one are refused",
        "upgrade all programs that use the store together",
    )


def too_large(shown: str, longest: float) -> Finding:
    """Return the finding of a store that was not looked at as a whole."""
    return Finding(
        "warning",
        f"{shown} is too large to be checked for damage within {longest:g} s",
        "damage would show when a worker reads it",
        "bide doctor --all, which has no time limit",
    )
