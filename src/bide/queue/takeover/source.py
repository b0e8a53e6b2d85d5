"""What a library keeps on Redis, as the import reads it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from bide.model import body as bodies
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.message import JOB, Item
from bide.model.times import LATEST

if TYPE_CHECKING:
    from bide.queue.foreign_redis import ForeignRedis

NOW = 0
"""The due time of a message that waits: at once."""


class Refused(Exception):
    """A message cannot be taken over; the text says why."""


class Pickled(Exception):
    """A message is pickled, and pickles are not to be read."""


class Elsewhere(Exception):
    """A message belongs to another queue of the library."""


class Place(NamedTuple):
    """A key with pending messages."""

    key: bytes
    kind: Literal["list", "zset"]
    oldest_last: bool = False
    """Of a list: its oldest message is its last element."""


class Entry(NamedTuple):
    """An element of a list or a sorted set."""

    place: Place
    member: bytes
    score: float = 0.0


class Held(NamedTuple):
    """A message that a worker of the source has, or that waits for other messages."""

    id: str
    what: str


class Source(ABC):
    """One queue of a library.

    Args:
        redis: the server.
        queue: its name in the library.
        pickles: whether pickled messages are read.
        max_body: how many bytes a body may take.
    """

    default: ClassVar[str]
    """The queue that the library uses if none is named; empty if there is none."""

    def __init__(self, redis: "ForeignRedis", queue: str, *, pickles: bool, max_body: int) -> None:
        self._redis = redis
        self._queue = queue
        self._pickles = pickles
        self._max_body = max_body

    @abstractmethod
    def places(self) -> list[Place]:
        """Return the keys with pending messages.

        Raises:
            InvalidArgument: the layout is none of the known ones, or workers must stop first.
        """

    def content(self, entry: Entry) -> list[Sequence[Any]]:
        """Return the commands that read what is not in the element itself, if anything is not."""
        return []

    def keys(self, entry: Entry) -> list[bytes]:
        """Return the keys of the message, if it has any: deleted once it is taken over."""
        return []

    @abstractmethod
    def item(self, entry: Entry, content: Sequence[Any]) -> Item:
        """Return the message for the store.

        Raises:
            Refused: it cannot be taken over.
            Pickled: it is pickled.
            Elsewhere: it belongs to another queue.
        """

    def name(self, entry: Entry) -> str:
        """Return what a report calls the message: its id, or how the element begins."""
        return entry.member.decode(errors="backslashreplace")[:100]

    def stranded(self) -> Iterator[Held]:
        """Yield messages that are not pending yet and stay: their id, and why."""
        return iter(())

    def held(self) -> Iterator[Held]:
        """Yield what workers of the source have, as far as it is noted; it is not taken over."""
        return iter(())


def call_item(
    id: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], due: int, max_body: int,
    *, priority: int = 0, created: int | None = None,
) -> Item:  # fmt: skip
    """Return the message of a function's call: its body is `{"args": [...], "kwargs": {...}}`.

    Raises:
        Refused: the arguments are no JSON, or the id is not valid.
    """
    body = {"args": list(args), "kwargs": dict(kwargs)}
    return job_item(id, name, body, due, max_body, priority, created)


def job_item(
    id: str, name: str, body: Any, due: int, max_body: int, priority: int = 0,
    created: int | None = None,
) -> Item:  # fmt: skip
    """Return a message whose header names its job.

    Raises:
        Refused: the body is no JSON, or the id is not valid.
    """
    try:
        data, is_json = bodies.encode(body, max_body)
        return Item(
            check_name(id), data, is_json, due, priority=priority, headers={JOB: name},
            created=created,
        )  # fmt: skip
    except InvalidArgument as error:
        raise Refused(str(error)) from error


def iso_seconds(text: str) -> float:
    """Return a time in ISO 8601, of UTC if it names no zone, in Unix seconds."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def created_at(seconds: float) -> int | None:
    """Return a creation time in Unix milliseconds; `None` if it is no time of bide."""
    return round(seconds * 1000) if 0 < seconds * 1000 <= LATEST else None


def due_at(seconds: float) -> int:
    """Return a due time in Unix milliseconds.

    Raises:
        Refused: it is no time of bide.
    """
    due = seconds * 1000
    if not 0 <= due <= LATEST:
        raise Refused(f"{seconds!r} is no time before the year 2100")
    return round(due)
