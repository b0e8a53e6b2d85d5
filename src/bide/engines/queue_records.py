"""How an engine keeps the records of a queue: what `QueueRules` needs of the memory and SQLite."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from bide.engines.queue_row import QueueRow
from bide.engines.record import Record
from bide.model.command_parts import Origin, Where
from bide.model.commands import Scan
from bide.model.ended import End, Ending
from bide.model.message import State
from bide.model.replies import Pause, Sizes


class QueueRecords(Protocol):
    """The records of one queue, and the sets of its states."""

    row: QueueRow
    now: int
    """The time of the command, in milliseconds."""
    records: dict[str, Record]
    """Those that commands may name, by id."""
    lines: Any
    """A `Limiter`, for a queue without limits as well: it is false then."""

    # One record.

    def load(self, ids: Sequence[str]) -> Any:
        """Have the records of up to `PART` ids in `records`, perhaps in place of others."""
        return None

    def is_still(self, record: Record, if_version: str | None) -> bool:
        """Return whether a record has the version that a command names, if it names one."""
        return record.is_still(if_version)

    def insert(self, record: Record) -> None:
        """Store a record that is in no set yet."""

    def delete(self, record: Record) -> None:
        """Delete a record that is in no set."""

    def save(self, record: Record) -> None:
        """Store what has changed in a record, beside its place in a set."""
        return None

    def enter(self, record: Record) -> None:
        """Put a record into the set of its state."""

    def leave(self, record: Record) -> None:
        """Remove a record from the set of its state."""

    def extend(self, record: Record, until: int) -> None:
        """Extend the lease of a record."""

    def remember_return(self, record: Record) -> None:
        """Remember that a record has gone to an earlier set, or to an earlier place in its set."""

    def last_return(self) -> int:
        """Return the number of the last return, 0 if there was none."""

    def remember_end(
        self, record: Record, how: Ending, by: str | None, result: bytes | None = None
    ) -> None:
        """Remember how a message ended, if the queue does."""

    def next_due(self, limit: int) -> list[tuple[int, int, str | None]]:
        """Return rank, sequence number and group of the first delayed records that are due."""

    def ready_before(self, record: Record, rank: int) -> int:
        """Count the ready records before a rank; in a limited queue, those of the same group.

        At least up to `AHEAD` + 1.
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

    def look_ahead(self) -> None:
        """Make the first due record ready of each group that has no line."""

    def in_order(self, limit: int) -> Iterator[Record]:
        """Yield the next records; in a limited queue, those served before have left their lines."""

    def lease(self, records: Sequence[Record], holder: str, until: int) -> None:
        """Lease records that `in_order` has yielded, by the token of the queue."""

    def next_moments(self) -> list[int]:
        """Return when the first delayed record is due, and when the first lease expires."""

    # Rules, states, and settings.

    def unheld(self, where: Where, limit: int) -> Iterable[Record]:
        """Return the first ready and delayed records that match a rule."""

    def count_unheld(self, where: Where) -> int:
        """Count the ready and delayed records that match a rule."""

    def purgeable(self, state: State, before: int | None, limit: int) -> Iterable[Record]:
        """Return the first records of a state that entered it before a time."""

    def pauses(self) -> list[Pause]:
        """Return the last pauses of the queue."""

    def pause(self, actor: str | None) -> None:
        """Note the start of a pause, and who asked for it."""

    def resume(self) -> None:
        """Note the end of a pause."""

    def forwarded(self, origin: Origin) -> Iterable[str]:
        """Forget the rows of an outbox that were deleted there; return those that are known."""

    def remember_forwarded(self, outbox: str, rows: Sequence[str]) -> None:
        """Remember rows of an outbox, the last `MAX_FORWARDED` of the queue."""

    # Reading.

    def read(self, ids: Sequence[str]) -> Iterator[Record | None]:
        """Yield the records with some ids as they are, to be shown only."""

    def walk(self, scan: Scan) -> Iterator[tuple[Record, str]]:
        """Yield records to be shown, each with the cursor of the page that begins behind it."""

    def ends_of(self, id: str) -> list[End]:
        """Return how messages with an id ended, the newest first."""

    def due(self) -> int:
        """Count the delayed records that are due."""

    def due_in(self, start: int, bucket: int, buckets: int) -> tuple[list[int], int]:
        """Count the records that are due after now, in each of some spans and after the last."""

    def oldest(self, due: int) -> int | None:
        """Return the earliest due time of due records; so many of the delayed ones are due."""

    def recount(self, due: int) -> tuple[Sizes, int]:
        """Count the records in each set, and those that are in no set or in two."""

    def stored(self) -> int:
        """Add up the bytes of the records, their successors, and the ends that are remembered."""
