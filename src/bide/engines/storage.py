"""What memory and SQLite provide, so that commands can be executed on their queues.

These are interfaces without code: `bide.engines.execution` calls them, the rules know nothing of
them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from bide.engines.ended_pages import EndPosition, EndSpan
from bide.engines.queue_row import QueueRow
from bide.engines.rules.change import Change, Facts
from bide.engines.rules.record import Record
from bide.model.command_parts import Origin, Where
from bide.model.commands import Ack, Put, Scan
from bide.model.ended import End, Ended, Ending
from bide.model.message import State
from bide.model.replies import ClosedGroup, Flow, Outcomes, Pause, Sizes


class StoredQueue(Protocol):
    """One queue: its settings and counters, its records, and the sets of its states."""

    @property
    def row(self) -> QueueRow:
        """The settings and counters of the queue."""

    now: int
    """The time of the command, in milliseconds."""

    @property
    def lines(self) -> Any:
        """A `Limiter`, for a queue without limits as well."""

    @property
    def facts(self) -> Facts:
        """What the rules need to know of the queue."""

    # Records that a command names.

    def load(self, ids: Sequence[str], *, bodies: bool) -> Mapping[str, Record]:
        """Return the records with up to `PART` ids, by id.

        Args:
            ids: of the messages.
            bodies: whether the caller needs their bodies.
        """

    def apply(self, changes: Sequence[Change]) -> None:
        """Store changes, and count what they count; later ones may be of the same messages."""

    def try_ack_all(self, command: Ack) -> bool:
        """Ack all messages of a command at once, if each lease is good and no rule is needed.

        None is: where acked messages are deleted, and their ends perhaps remembered. Returns
        whether this was done. If not, nothing has changed, and the rules decide one by one.
        """

    # Claims.

    def forget(self) -> None:
        """Delete up to `FORGET` records, and ends, that were remembered for long enough."""

    def lapsed(self, limit: int) -> Iterable[Record]:
        """Return the first records whose lease has expired."""

    def promote(self, limit: int) -> None:
        """Make the first delayed records that are due ready, if they are claimed as ready ones."""

    def is_behind(self) -> bool:
        """Return whether due records of a limited queue are in no line yet."""

    def in_order(self, limit: int) -> Iterator[Record]:
        """Yield the next records to deliver, in order.

        In a limited queue, the caller must take each record out of its line (`lines.leave`) before
        it asks for the next one: which that is depends on the groups that were served.
        """

    def lease(self, records: Sequence[Record], holder: str, until: int) -> None:
        """Lease records that `in_order` has yielded, by the token of the queue."""

    def next_moments(self) -> list[int]:
        """Return when the first delayed record is due, and when the first lease expires."""

    # Rules, states, and settings.

    def unheld(self, where: Where, limit: int) -> Iterable[Record]:
        """Return the first ready and delayed records that match a rule."""

    def count_unheld(self, where: Where) -> int:
        """Count the ready and delayed records that match a rule."""

    def held(self, where: Where, limit: int) -> Iterable[Record]:
        """Return the first leased records that match a rule, but those that are stopping."""

    def count_held(self, where: Where) -> int:
        """Count the leased records that match a rule, but those that are stopping."""

    def purgeable(self, state: State, before: int | None, limit: int) -> Iterable[Record]:
        """Return the first records of a state that entered it before a time."""

    def pauses(self) -> list[Pause]:
        """Return the last pauses of the queue."""

    def begin_pause(self, until: int | None, actor: str | None) -> None:
        """Note the start of a pause, its end if it has one, and who asked for it."""

    def end_pause(self, until: int | None) -> None:
        """Note when the last pause ends; `None`: when the queue is resumed."""

    def forwarded(self, origin: Origin) -> Iterable[str]:
        """Forget the rows of an outbox that were deleted there; return those that are known."""

    def remember_forwarded(self, outbox: str, rows: Sequence[str]) -> None:
        """Remember rows of an outbox, the last `MAX_FORWARDED` of the queue."""

    # Closed groups: see `bide.engines.rules.closing`.

    def close_group(self, group: str, until: int) -> None:
        """Close a group, also one that is closed, until a time in Unix milliseconds."""

    def reopen_group(self, group: str) -> None:
        """Open a group that is closed."""

    def closed_groups(self, after: ClosedGroup, limit: int) -> list[ClosedGroup]:
        """Return the first closed groups after one, in the order in which they open."""

    def count_closed(self) -> int:
        """Count the groups that are closed now."""

    # Reading.

    def read(self, ids: Sequence[str]) -> Iterator[Record | None]:
        """Yield the records with some ids as they are, to be shown only."""

    def walk(self, scan: Scan) -> Iterator[tuple[Record, str]]:
        """Yield records to be shown, each with the cursor of the page that begins behind it."""

    def next_due(self, limit: int) -> list[tuple[int, int, str | None]]:
        """Return rank, sequence number and group of the first delayed records that are due."""

    def ready_before(self, record: Record, rank: int) -> int:
        """Count the ready records before a rank; in a limited queue, those of the same group.

        At least up to `AHEAD` + 1.
        """

    def ends_of(self, id: str) -> list[End]:
        """Return how messages with an id ended, the newest first."""

    def last_ends(self, span: EndSpan, how: Ending | None) -> Iterator[Ended | EndPosition]:
        """Yield ids with their last ends, in order: those of a span, and of a way to end.

        Where the queue has looked at `LOOKED_AT` ends, it yields the position of the last of these.
        """

    def flow(self) -> Flow:
        """Return the counters of what has happened."""

    def due(self) -> int:
        """Count the delayed records that are due."""

    def due_in(self, start: int, bucket: int, buckets: int) -> tuple[list[int], int]:
        """Count the records that are due after now, in each of some spans and after the last."""

    def oldest(self, due: int) -> int | None:
        """Return the earliest due time of due records."""

    def recount(self, due: int) -> tuple[Sizes, int]:
        """Count the records themselves, and those that are in no set or in two."""

    def stored(self) -> int:
        """Add up the bytes of the records, their successors, and the ends that are remembered."""


Q = TypeVar("Q", bound=StoredQueue)


class QueueStore(Protocol[Q]):
    """The queues of a store, at the time of a batch."""

    now_exact: float
    """The time in milliseconds, with fractions."""

    def look(self, name: str) -> Q:
        """Return a queue as it is; an empty one with the id 0 if there is none."""

    def open(self, name: str) -> Q:
        """Return a queue that is going to be changed; first forget what was kept long enough."""

    def make(self, name: str) -> Q:
        """Return a queue that is going to be changed, made if it did not exist."""

    def drop(self, queue: Q) -> None:
        """Delete a queue that has no records."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues, sorted."""

    def put(self, command: Put) -> Outcomes:
        """Store messages."""
