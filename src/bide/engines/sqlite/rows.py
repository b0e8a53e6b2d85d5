"""The rows of the tables, by name: what the statements select, and the messages they describe."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from bide.model.commands import Where
from bide.model.message import STATES, Failure, Item, Message, State, unreadable
from bide.model.rank import EVERYTHING
from bide.model.replies import Flow, Outcome

DELAYED, READY, LEASED, DEAD, ACKED, EXPIRED = range(6)

as_headers = msgspec.json.Decoder(dict[str, str]).decode
as_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode


class QueueRow(msgspec.Struct, gc=False):
    """A row of the table `queue`, changed here and written back at the end of the transaction."""

    id: int
    name: str
    paused: int
    keep: int
    history: int
    result_ttl: int
    limited: int
    ended: int
    successors: int
    weighted: int
    token: int
    delayed: int
    ready: int
    leased: int
    dead: int
    kept: int
    put: int
    acked: int
    cancelled: int
    expired: int
    purged: int
    died: int
    revived: int
    retried: int
    lapsed: int

    @property
    def remembers(self) -> int:
        """For how many milliseconds the ends of messages are remembered."""
        return max(self.history, self.result_ttl)

    def values(self) -> tuple[Any, ...]:
        """Return the columns from `paused` on."""
        return msgspec.structs.astuple(self)[2:]

    def flow(self) -> Flow:
        """Return the counters of what has happened."""
        return Flow(*msgspec.structs.astuple(self)[16:])


class LimitRow(msgspec.Struct, gc=False):
    """A row of the table `bide_limit`."""

    queue: int
    limit: int = 0
    rate: int = 0
    group_limit: int = 0
    group_rate: int = 0
    turn: int = 0
    last: int = 0
    freed: int = 0
    rank: int | None = None
    seq: int | None = None
    looked: str = ""
    """The last group looked ahead at; empty: there were no more."""


class GroupRow(msgspec.Struct, gc=False):
    """A row of the table `bide_group`, but for its place among others."""

    key: str
    running: int = 0
    waiting: int = 0
    turn: int = 0
    last: int = 0
    freed: int = 0


class Place(NamedTuple):
    """Where a message stands: the columns `{place}`."""

    id: str
    seq: int
    due: int
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    created: int
    token: int | None
    until: int | None
    holder: str | None
    since: int | None
    """When the holder got it."""
    aside: int | None
    ended: int | None

    def state(self, now: int) -> State:
        """Return the state as users see it."""
        if self.aside is not None:
            return STATES[self.aside]
        if self.token is not None:
            return "leased"
        return "ready" if self.due <= now else "delayed"

    def outcome(self, done: bool, now: int) -> Outcome:
        """Tell where the message stands."""
        until = self.until if self.token is not None else self.ended
        return Outcome(self.id, done, self.state(now), self.due, until, self.holder)


class MessageRow(NamedTuple):
    """A message: the columns `{message}`, then where it stands."""

    id: str
    data: Any
    """A str: JSON; bytes: of the user's own."""
    due: int
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    group: str | None
    headers: str | None
    failures: str | None
    planned: int | None
    asked: int | None
    created: int
    size: int
    """How many bytes the message takes in a reply."""
    code: int
    """Its state: see `STATES`."""
    holder: str | None
    until: int | None
    ended: int | None
    rank: int
    seq: int

    def message(self, queue: str, now: int) -> Message:
        """Return the message; a dead letter if the row cannot be read."""
        try:
            return self.read(queue, now)
        except (ValueError, TypeError, AttributeError, msgspec.MsgspecError):
            return unreadable(queue, self.shown_id, self.stored, now)

    @property
    def shown_id(self) -> str:
        """The id, though it may be no text."""
        return str(self.id).encode(errors="backslashreplace").decode()

    @property
    def stored(self) -> bytes:
        """What the columns say, for a person."""
        return repr(dict(zip(self._fields[:13], self, strict=False))).encode(errors="replace")

    def read(
        self, queue: str, now: int, holder: str | None = None, until: int | None = None
    ) -> Message:
        """Return the message; with a holder, as that holder has just leased it.

        Raises:
            Exception: one of `damage.DAMAGED`: something else has written to the row.
        """
        # Unpacked, since each message of a claim comes by here.
        (
            id, data, due, priority, attempt, attempts, expires, group, headers, failures, planned,
            asked, created, _size, code, held_by, held_until, ended, _rank, _seq,
        ) = self  # fmt: skip
        if code == DELAYED and due <= now:
            code = READY
        is_json = isinstance(data, str)
        # What is no number, or no text, is refused.
        id.encode()
        _ = len(data) + due + priority + attempt + attempts + (expires or 0)
        if group is not None:
            group.encode()
        return Message(
            id, queue, data.encode() if is_json else data, is_json, due, priority,
            attempt + (code == LEASED), attempts, STATES[code], expires, group,
            as_headers(headers) if headers else None,
            as_failures(failures) if failures else (), holder or held_by, until or held_until,
            ended, planned, created or None, asked=asked,
        )  # fmt: skip


def bounds_of(where: Where | None) -> dict[str, Any]:
    """Return a rule as parameters of the statements of groups and times."""
    where = where or Where()
    before = EVERYTHING if where.before is None else where.before
    return {"group": where.group, "after": where.after or 0, "before": before}


_encode = msgspec.json.Encoder().encode


def json_text(value: Any) -> str:
    """Return a value as JSON text, as SQLite's own functions read it."""
    return _encode(value).decode()


def row_of(seq: int, queue: int, item: Item, due: int, created: int) -> tuple[Any, ...]:
    """Return an item as the statement `insert_message` takes it."""
    return (
        seq, queue, item.id, due, item.priority, item.attempt, item.attempts, item.expires,
        item.group, json_text(item.headers) if item.headers is not None else None,
        json_text(item.failures) if item.failures else None,
        item.data.decode() if item.json else item.data,
        created if item.created is None else item.created,
    )  # fmt: skip


def plain_row(seq: int, queue: int, item: Item, due: int, created: int) -> tuple[Any, ...]:
    """Return a plain item as the statement `insert_plain` takes it."""
    data = item.data.decode() if item.json else item.data
    return seq, queue, item.id, due, item.priority, item.attempts, data, created


def is_plain(item: Item) -> bool:
    """Tell whether an item has nothing but what `plain_row` takes of it."""
    return (
        item.group is None and item.expires is None and item.headers is None
        and item.died is None and item.created is None and not item.attempt and not item.failures
    )  # fmt: skip


def successor_row(queue: int, item: Item) -> tuple[Any, ...]:
    """Return a successor as the statement `store_successor` takes it."""
    return (
        queue, item.id, item.at, item.priority, item.attempts, item.expires, item.group,
        json_text(item.headers) if item.headers is not None else None,
        item.data.decode() if item.json else item.data, item.created,
    )  # fmt: skip


def as_successor(row: Sequence[Any]) -> Item:
    """Return the successor in a row of the statement `successors`."""
    id, due, priority, attempts, expires, group, headers, data, created = row
    is_json = isinstance(data, str)
    return Item(
        id, data.encode() if is_json else data, is_json, due, 0, priority, expires, attempts, group,
        as_headers(headers) if headers else None, created=created,
    )  # fmt: skip


as_row = cast("Callable[[Any], MessageRow]", partial(tuple.__new__, MessageRow))
"""Returns a row of a statement by name: `MessageRow._make` in half the time."""


def columns() -> dict[str, str]:
    """Return what the names in braces stand for in the SQL files."""
    message = MessageRow._fields[: MessageRow._fields.index("size")]
    size = "length(m.id) + length(CAST(m.data AS BLOB))"
    for name in ("headers", "failures"):
        size += f" + coalesce(length(m.{name}), 0)"
    return {
        "message": ", ".join([*(f'm."{name}"' for name in message), size]),
        "place": ", ".join(f"m.{name}" for name in Place._fields[:8]),
        "limit": ", ".join(f'"{name}"' for name in LimitRow.__struct_fields__),
        "limit_marks": ", ".join("?" * len(LimitRow.__struct_fields__)),
        "group": ", ".join(GroupRow.__struct_fields__),
        "set_group": ", ".join(f"{n} = excluded.{n}" for n in GroupRow.__struct_fields__[1:]),
        "group_marks": ", ".join("?" * len(GroupRow.__struct_fields__)),
        "queue": ", ".join(QueueRow.__struct_fields__),
        "set_queue": ", ".join(f"{name} = ?" for name in QueueRow.__struct_fields__[2:]),
    }
