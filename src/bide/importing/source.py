"""What a library keeps on Redis, as the import reads it: places, messages and times."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from bide.model import body as bodies
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.message import JOB, Item
from bide.model.options import check_options
from bide.model.times import LATEST
from bide.queue.arguments import headers_of


class SourceServer(Protocol):
    """The server that sources read; see `bide.importing.foreign_redis`."""

    shown: str
    """The URL without its password."""

    def ask(self, *command: Any) -> Any:
        """Execute a command; return its reply, text as bytes."""

    def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Execute commands in one round trip; return their replies."""


class SetMember(NamedTuple):
    """A member of a sorted set and its score, both as the server writes them."""

    member: bytes
    score: bytes


class NotTakenOver(Exception):
    """A message cannot be taken over; the text says why."""


MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What is raised where a message is not as its library writes it. One such message must not keep
all others where they are."""


class Gone(Exception):
    """Only the id of a message is left: it has expired in the library, or was deleted there."""


class Elsewhere(Exception):
    """A message belongs to another queue of the library."""


class Place(NamedTuple):
    """A key with pending messages."""

    key: bytes
    kind: Literal["list", "zset"]
    oldest_last: bool = False
    """Of a list: its oldest message is its last element."""


class SourceEntry(NamedTuple):
    """An element of a list or a sorted set."""

    place: Place
    member: bytes
    score: float = 0.0
    # Once it is taken out of the source:
    row: str = ""
    """The row of an outbox by which the store knows it."""
    outbox: str = ""
    """The name of this outbox, which is that of the run."""
    queue: str = ""
    """The queue to which it goes."""
    url: str = ""
    """The URL of that queue's store, without its password."""


class HeldMessage(NamedTuple):
    """A message that a worker of the source has, or that waits for other messages."""

    id: str
    what: str
    """What it is, or why it stays, for people."""


@dataclass(eq=False)
class SourceQueue(ABC):
    """One queue of a library.

    Args:
        redis: the server.
        queue: its name in the library.
        pickles: whether pickled messages are read.
        max_body: how many bytes a body may take.
    """

    redis: SourceServer
    queue: str
    _: KW_ONLY
    pickles: bool
    max_body: int

    default: ClassVar[str]
    """The queue that the library uses if none is named; empty if there is none."""
    refusals: ClassVar[dict[bytes, str]] = {}
    """Fields of a job that cannot be taken over if it has them, and why."""

    @abstractmethod
    def places(self) -> list[Place]:
        """Return the keys with pending messages.

        Raises:
            InvalidArgument: the layout is none of the known ones, or workers must stop first.
        """

    def content(self, entry: SourceEntry) -> list[Sequence[Any]]:
        """Return the commands that read what is not in the element itself, if anything is not."""
        return []

    def keys(self, entry: SourceEntry) -> list[bytes]:
        """Return the keys of the message, if it has any: deleted once it is taken over."""
        return []

    @abstractmethod
    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the message for the store.

        Args:
            entry: the element.
            content: the replies to the commands of `content`.
            now: the time in Unix milliseconds. An expiry is counted from it if the message waits.

        Raises:
            NotTakenOver: it cannot be taken over.
            *MALFORMED: it is not as the library writes it.
            Gone: the library has deleted it.
            Pickled: it is pickled.
            Elsewhere: it belongs to another queue.
        """

    def name(self, entry: SourceEntry) -> str:
        """Return what a report calls the message: its id, or how the element begins."""
        return entry.member.decode(errors="backslashreplace")[:100]

    def stranded(self) -> Iterator[HeldMessage]:
        """Yield messages that are not pending yet and stay: their id, and why."""
        return iter(())

    def held(self) -> Iterator[HeldMessage]:
        """Yield what workers of the source have, as far as it is noted; it is not taken over."""
        return iter(())

    def _refuse(self, job: Mapping[bytes, bytes]) -> None:
        """Check that a job has none of the fields in `refusals`.

        Raises:
            NotTakenOver: the job has one of these fields.
        """
        for field, reason in self.refusals.items():
            if job.get(field, b"") not in (b"", b"0"):  # RQ: no further run is left
                raise NotTakenOver(reason)

    def _call(
        self,
        id: str,
        name: str,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        due: int,
        created: int | None,
        *,
        priority: int = 0,
        expires: int | None = None,
    ) -> Item:
        """Return the message of a function's call: its body is `{"args": [...], "kwargs": {...}}`.

        Raises:
            NotTakenOver: the arguments are no JSON, or the id is not valid.
        """
        body = {"args": list(args), "kwargs": dict(kwargs)}
        return self._job(id, name, body, due, priority=priority, created=created, expires=expires)

    def _job(
        self,
        id: str,
        name: str,
        body: Any,
        due: int,
        *,
        priority: int,
        created: int | None = None,
        expires: int | None = None,
        group: str | None = None,
    ) -> Item:
        """Return a message whose header names its job.

        Args:
            id: of the message.
            name: of the job.
            body: of the message.
            due: in Unix milliseconds, or `NOW`.
            priority: 0 to 255, the highest first.
            created: in Unix milliseconds; `None`: not known.
            expires: milliseconds after the due time; `None`: it does not expire.
            group: of the message.

        Raises:
            NotTakenOver: the body is no JSON, or the id or another field is not valid.
        """
        try:
            data, is_json = bodies.encode(body, self.max_body)
            item = Item(
                check_name(id),
                data,
                json=is_json,
                at=due,
                priority=priority,
                expires=expires,
                group=group,
                headers=headers_of({JOB: name}),
                created=created,
            )
            check_options(item)
        except InvalidArgument as error:
            raise NotTakenOver(str(error)) from error
        return item


NOW = 0
"""The due time of a message that waits: at once."""


def iso_seconds(text: str) -> float:
    """Return a time in ISO 8601, of UTC if it names no zone, in Unix seconds."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def created_at(seconds: float) -> int | None:
    """Return a creation time in Unix milliseconds; `None` if it is no time of bide."""
    return round(seconds * 1000) if 0 < seconds * 1000 <= LATEST else None


def lasting(due: int, end: int, now: int) -> int | None:
    """Return how long after its due time a message expires, in milliseconds.

    Args:
        due: its due time in Unix milliseconds, or `NOW`.
        end: when it expires, in Unix milliseconds.
        now: the present time.

    Returns:
        A negative number if it expires before it is due; `None` if it expires later than any time
        of bide.

    Example:
        >>> lasting(1_000, 61_000, 500), lasting(NOW, 61_000, 1_000)
        (60000, 60000)
    """
    if end > LATEST:
        return None
    return end - (now if due == NOW else due)


def due_at(seconds: float) -> int:
    """Return a due time in Unix milliseconds.

    Raises:
        NotTakenOver: it is no time of bide.
    """
    due = seconds * 1000
    if not 0 <= due <= LATEST:
        raise NotTakenOver(f"{seconds!r} is not a time before the year 2100")
    return round(due)
