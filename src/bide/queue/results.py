"""What methods of a queue return or raise, made of the replies of the store.

`result_in` finds the result of a message, which is what its handler has returned.
"""

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import msgspec

from bide.model.body import decoder_of
from bide.model.commands import Command
from bide.model.ended import PENDING, NotAcked
from bide.model.errors import (
    AccessDenied,
    AlreadyExists,
    GroupClosed,
    InvalidArgument,
    LeaseLost,
    NotEmpty,
    NotEnded,
    NotRemembered,
    StopRequested,
    StoreBusy,
)
from bide.model.message import Failure, Message, Progress
from bide.model.replies import SIZES, Counts, Deleted, Ends, Forecasted, Outcome, Outcomes
from bide.model.times import to_datetime

T = TypeVar("T")


def only_outcome(command: Command, reply: Outcomes) -> Outcome:
    """Return the outcome of a command for one message."""
    (outcome,) = reply.outcomes
    return command.worded_outcome(outcome)


def new_outcome(command: Command, reply: Outcomes) -> Outcome:
    """Return the outcome of a put of one message, which must be new: see `must_be_new`."""
    return must_be_new(only_outcome(command, reply))


def must_be_new(outcome: Outcome) -> Outcome:
    """Return the outcome of a put; one that is pending in an outbox is not known to be new.

    Raises:
        AlreadyExists: the id exists.
        GroupClosed: the group of the message is closed.
    """
    if outcome.state == "pending" or outcome.done:
        return outcome
    if outcome.state == "closed":
        raise GroupClosed(f"{outcome}. If it is to be stored, open the group: reopen_group(...)")
    raise AlreadyExists(f"{outcome}. Use another id, or on_conflict='keep' or 'replace'")


def all_outcomes(command: Command, reply: Outcomes) -> list[Outcome]:
    """Return the outcomes of a command for several messages."""
    return [command.worded_outcome(outcome) for outcome in reply.outcomes]


def check_held(outcome: Outcome, verb: str) -> None:
    """Check the outcome of settling one message.

    Raises:
        LeaseLost: the lease was over.
        StopRequested: the message was cancelled while it was worked on.
        StoreBusy: another transaction is settling it.
    """
    if outcome.state == "stopping":
        raise StopRequested(
            f"{outcome.id} was cancelled while it was worked on: clean up, and release it. Its "
            "lease lasts until then; an ack still counts, any other end counts as cancelled"
        )
    if outcome.state == "settling":
        raise StoreBusy(
            f"{outcome.id} could not be {verb}: it was settled in another transaction (within=), "
            "which is still open"
        )
    if not outcome.done:
        again = " again" if outcome.state in ("delayed", "ready") else ""
        where = f"the message is {outcome.state}{again}"
        if outcome.state is None:
            where = "the message was settled already"
        elif outcome.state == "leased":
            where = f"it went to {outcome.holder}"
        raise LeaseLost(
            f"{outcome.id} could not be {verb}: the lease is over, {where}. If it lapsed, take a "
            "longer lease, or extend it while you work"
        )


def deleted(queue: str, reply: Deleted) -> bool:
    """Return whether a queue was deleted; if not, there was none.

    Raises:
        NotEmpty: it holds or remembers messages.
    """
    counts = {**msgspec.structs.asdict(reply.sizes), "acked or expired": reply.kept}
    content = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    if content:
        raise NotEmpty(
            f"queue {queue!r} is not empty, so it was not deleted: {content}. Let its workers "
            "finish, or cancel or purge these messages first"
        )
    return reply.done


def cursor_to(place: Any) -> str:
    """Return the cursor by which a caller goes on at a place."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def place_of(cursor: str, place_type: type[T]) -> T | None:
    """Return the place of a cursor; `None` if it is no cursor of such a place."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(text, type=place_type)
    except (ValueError, msgspec.DecodeError):
        return None


class Cancelled(int):
    """How many messages were cancelled by a rule, and how many workers are stopping.

    Example:
        >>> count = Cancelled(3, stopping=1)
        >>> print(count, count.stopping)
        3 1
    """

    stopping: int
    """How many messages are held by workers that were asked to stop; they are not in the count."""

    def __new__(cls, count: int, stopping: int) -> "Cancelled":
        """Return both numbers."""
        self = super().__new__(cls, count)
        self.stopping = stopping
        return self

    def __getnewargs__(self) -> tuple[int, ...]:  # type: ignore[override]
        """Let it be copied, and sent to another process."""
        return int(self), self.stopping


class Closing(Cancelled):
    """How many messages of a group were cancelled when it was closed, and until when it is.

    Example:
        >>> count = Closing(3, 1, 1_700_000_000_000)
        >>> print(count, count.stopping, count.until)
        3 1 2023-11-14 22:13:20+00:00
    """

    until: datetime
    """When the group opens again, by the store's clock."""

    def __new__(cls, count: int, stopping: int, until: int) -> "Closing":
        """Return both numbers, with a time in Unix milliseconds."""
        self = super().__new__(cls, count, stopping)
        assert isinstance(self, cls)
        self.until = to_datetime(until)
        return self

    def __getnewargs__(self) -> tuple[int, ...]:  # type: ignore[override]
        """Let it be copied, and sent to another process."""
        return int(self), self.stopping, round(self.until.timestamp() * 1_000)


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    stored: int = 0
    """Messages that are new in the queue."""
    kept: int = 0
    """Messages whose id exists: they are unchanged."""
    refused: int = 0
    """Messages whose group is closed: they are not stored."""

    def with_more(self, more: "Imported") -> "Imported":
        """Return the sum of both."""
        return Imported(
            self.stored + more.stored, self.kept + more.kept, self.refused + more.refused
        )


class Forecast(msgspec.Struct, frozen=True):
    """How many messages fall due when, by counting.

    Iterating gives pairs: when a bucket begins, and how many messages fall due in it.
    """

    start: datetime
    """When the first bucket begins, by the store's clock: now, or the beginning of this hour for
    buckets of an hour or more. The first bucket counts only what is not due yet."""
    bucket: float
    """The length of a bucket, in seconds."""
    overdue: int
    """How many are due already."""
    counts: list[int]
    """How many fall due in each bucket: from its beginning on, and before its end."""
    later: int
    """How many fall due at the end of the last bucket, or after it."""

    @classmethod
    def of(cls, reply: Forecasted, bucket_ms: int) -> "Forecast":
        """Return the forecast of a reply."""
        start = to_datetime(reply.start)
        return cls(start, bucket_ms / 1000, reply.overdue, reply.buckets, reply.later)

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        begin = self.start.timestamp() * 1000
        for number, count in enumerate(self.counts):
            yield to_datetime(round(begin + number * self.bucket * 1000)), count

    @property
    def total(self) -> int:
        """All delayed and ready messages."""
        return self.overdue + sum(self.counts) + self.later


class Audit(msgspec.Struct, frozen=True):
    """Whether every message that was put is accounted for; true if so."""

    queue: str
    counts: Counts
    problems: list[str]
    """What does not add up, as sentences."""

    @classmethod
    def of(cls, queue: str, counts: Counts) -> "Audit":
        """Check the counters of a queue against each other and against its messages."""
        return cls(queue, counts, list(_problems(counts)))

    def __bool__(self) -> bool:
        return not self.problems


def _problems(counts: Counts) -> Iterator[str]:
    """Yield what does not add up in the counts of a queue, as sentences."""
    flow, sizes, recount = counts.flow, counts.sizes, counts.recount
    accounted = flow.gone + sizes.total
    if flow.put != accounted:
        yield (
            f"{flow.put:,} were put, {accounted:,} are accounted for "
            f"({flow.gone:,} gone and {sizes.total:,} in the queue)"
        )
    if recount is not None:
        for state in SIZES:
            counted, recounted = getattr(sizes, state), getattr(recount, state)
            if counted != recounted:
                yield f"{counted:,} are counted as {state}, {recounted:,} are there"
    if counts.strays:
        yield (
            f"{counts.strays:,} are in no state, or in two, or cannot be read: "
            "bide search --error 'cannot be read' names those"
        )


def result_in(
    id: str,
    reply: Ends,
    type: Any = Any,
    progress: Progress | None = None,
    dead_letter: Message | None = None,
) -> Any:
    """Return the result of a message, of what its queue remembers.

    Args:
        id: of the message.
        reply: what its queue remembers.
        type: to decode the result into.
        progress: the last report of its worker, if it has not ended.
        dead_letter: the message, if it is dead.

    Raises:
        NotEnded: it is still in the queue.
        NotAcked: it ended in another way.
        NotRemembered: nothing is known of it.
        AccessDenied: a server withholds results.
        InvalidArgument: it does not fit the type.
    """
    if reply.state in PENDING:
        so_far = "" if progress is None else f", so far {progress}"
        raise NotEnded(f"{id} is {reply.state}{so_far}; it has no result yet")
    if reply.ends and reply.ends[0].how == "acked":
        result = reply.ends[0].result
        if result == b"":  # no JSON is empty: a server puts this in the place of a result
            raise AccessDenied(
                f"the server withholds the result of {id!r}: the token has no right 'bodies'"
            )
        return None if result is None else _decoded(id, result, type)
    failures = () if dead_letter is None else dead_letter.failures
    _refuse(id, reply, failures)


def _decoded(id: str, result: bytes, result_type: Any) -> Any:
    """Return a result as a type.

    Raises:
        InvalidArgument: it does not fit the type.
    """
    try:
        return decoder_of(result_type)(result)
    except Exception as error:  # validation code of the user may raise anything
        name = getattr(result_type, "__name__", None) or str(result_type)
        raise InvalidArgument(
            f"the result of {id!r} is no {name}; leave type= out to get it as it is: {error}"
        ) from error


def _refuse(id: str, reply: Ends, failures: tuple[Failure, ...]) -> NoReturn:
    """Raise why a message has no result.

    Args:
        id: of the message.
        reply: what its queue remembers.
        failures: the attempts of the dead letter that failed.

    Raises:
        NotAcked: it ended in another way.
        NotRemembered: nothing is known of it.
    """
    if reply.ends:
        end = reply.ends[0]
        match end.how:
            case "dead":
                end = msgspec.structs.replace(end, failures=end.failures or failures)
                ending = "died"
                if end.by:
                    ending += f" at {end.by}"
                ending += _reason(end.failures)
            case "expired":
                ending = "expired before a worker took it"
            case how:
                ending = f"was {how} by {end.by}" if end.by else f"was {how}"
        raise NotAcked(f"{id} {ending}; it has no result", end)
    if reply.state in ("dead", "expired"):
        raise NotAcked(f"{id} is {reply.state}{_reason(failures)}; it has no result", None)
    raise NotRemembered(
        f"nothing is remembered of {id!r}: there was no such message, or the queue has no "
        "result_ttl (bide set QUEUE --result-ttl 1d), or its time has passed"
    )


def _reason(failures: tuple[Failure, ...]) -> str:
    """Return the first line of the last reason, behind a colon; empty if there is none."""
    reason = failures[-1].reason.partition("\n")[0] if failures else ""
    return f": {reason}" if reason else ""
