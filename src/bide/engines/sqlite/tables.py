"""The rows of the tables as the engine has them, and the named statements that select them."""

import re
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from bide.engines.limiter import Group, Limits
from bide.engines.record import Record
from bide.model.commands import Where
from bide.model.message import STATES, Failure, Item, Message, unreadable
from bide.model.rank import EVERYTHING
from bide.model.replies import Flow

DELAYED, READY, LEASED, DEAD, ACKED, EXPIRED = range(6)

as_headers = msgspec.json.Decoder(dict[str, str]).decode
as_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
as_item = msgspec.json.Decoder(Item).decode


class QueueRow(msgspec.Struct, gc=False):
    """A row of the table `queue`, changed here and written back at the end of the transaction.

    A queue that does not exist has the id 0, and is empty.
    """

    id: int = 0
    name: str = ""
    paused: int = 0
    keep: int = 0
    history: int = 0
    result_ttl: int = 0
    limited: int = 0
    weighted: int = 0
    token: int = 0
    ended: int = 0
    successors: int = 0
    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0
    kept: int = 0
    put: int = 0
    acked: int = 0
    cancelled: int = 0
    expired: int = 0
    purged: int = 0
    died: int = 0
    revived: int = 0
    retried: int = 0
    lapsed: int = 0

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


class LimitRow(Limits, gc=False):
    """A row of the table `bide_limit`."""

    queue: int = 0
    rank: int | None = None
    seq: int | None = None


class GroupRow(Group, gc=False):
    """A row of the table `bide_group`, but for its place among others."""

    waiting: int = 0


class MessageRow(NamedTuple):
    """A message: the columns `{message}`, then those of its state."""

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
    successor: str | None = None
    """An item as JSON, where a statement asks for it."""

    def message(self, queue: str, now: int) -> Message:
        """Return the message; a dead letter if the row cannot be read."""
        try:
            return self.read(queue, now)
        except (ValueError, TypeError, AttributeError, msgspec.MsgspecError):
            return unreadable(queue, self.shown_id, self.stored, now)

    @property
    def shown_id(self) -> str:
        """The id as text, whatever its type."""
        return str(self.id).encode(errors="backslashreplace").decode()

    @property
    def stored(self) -> bytes:
        """The columns as text, for a person."""
        return repr(dict(zip(self._fields[:13], self, strict=False))).encode(errors="replace")

    def read(
        self, queue: str, now: int, holder: str | None = None, until: int | None = None
    ) -> Message:
        """Return the message; with a holder, as that holder has just leased it.

        Raises:
            Exception: one of `damage.DAMAGED`: another program has written to the row.
        """
        is_json = isinstance(self.data, str)
        # Raises if a number or a text has another type.
        self.id.encode()
        if self.group is not None:
            self.group.encode()
        _ = len(self.data) + self.due + self.priority + self.attempt + self.attempts
        _ += self.expires or 0
        return Message(
            self.id, queue, self.data.encode() if is_json else self.data, is_json, self.due,
            self.priority, self.attempt + (self.code == LEASED), self.attempts,
            STATES[READY if self.code == DELAYED and self.due <= now else self.code],
            self.expires, self.group, as_headers(self.headers) if self.headers else None,
            as_failures(self.failures) if self.failures else (), holder or self.holder,
            until or self.until, self.ended, self.planned, self.created or None,
            as_item(self.successor) if self.successor else None, asked=self.asked,
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


def row_of(seq: int, queue: int, item: Item | Record, due: int, created: int) -> tuple[Any, ...]:
    """Return an item as the statement `insert_message` takes it."""
    return (
        seq, queue, item.id, due, item.priority, item.attempt, item.attempts,
        -1 if item.expires is None else item.expires, item.group or "",
        "" if item.headers is None else json_text(item.headers),
        json_text(item.failures) if item.failures else "",
        item.data.decode() if item.json else item.data,
        created if item.created is None else item.created,
    )  # fmt: skip


class _Statements:
    """The statements of the SQL files in this folder as attributes, such as `SQL.pick`.

    Names in braces are replaced by the columns of a row.
    """

    def __init__(self, *files: str) -> None:
        message = MessageRow._fields[: MessageRow._fields.index("size")]
        size = "length(m.id) + length(CAST(m.data AS BLOB))"
        size += " + coalesce(length(m.headers), 0) + coalesce(length(m.failures), 0)"
        columns = {
            "message": ", ".join([*(f'm."{name}"' for name in message), size]),
            "limits": ", ".join(f'"{name}"' for name in LimitRow.__struct_fields__),
            "queue": ", ".join(QueueRow.__struct_fields__),
            "set_queue": ", ".join(f"{name} = ?" for name in QueueRow.__struct_fields__[2:]),
        }
        folder = resources.files("bide.engines.sqlite")
        text = "".join(folder.joinpath(file).read_text("utf-8") for file in files)
        parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            statement = " ".join(re.sub(r"--.*", "", body).split()).rstrip("; ")
            named = re.sub(r"\{(\w+)\}", lambda found: columns[found[1]], statement)
            setattr(self, name, named)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"the SQL files have no statement of the name {name!r}")


SQL = _Statements("statements.sql", "reading.sql", "limits.sql")
