"""The rows of the tables as records, and the named statements that select them."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import msgspec

from bide.engines.constants import SHARED, with_constants
from bide.engines.queue_row import QueueRow
from bide.engines.rules.record import Record
from bide.model.commands import Where
from bide.model.ended import ENDINGS, End, Ending
from bide.model.errors import BideError
from bide.model.message import ATTEMPTS, STATES, UNREADABLE, Failure, Item, Progress
from bide.model.rank import EVERYTHING, delayed_rank, ready_rank
from bide.model.replies import FLOW

DELAYED, READY, LEASED, DEAD, ACKED, EXPIRED = range(6)
"""The numbers that tables have for states: their places in `STATES`."""

DAMAGED = (ValueError, TypeError, AttributeError, msgspec.MsgspecError)
"""What reading a row raises that another program has changed."""

UNCOUNTED = 1_000
"""A put of one message leaves the counters as they are until so many messages are not in them."""

CONSTANTS = {**SHARED, "UNCOUNTED": UNCOUNTED}
"""The numbers that the statements share with Python, by the names that they have in SQL."""

_MESSAGE = Record.__struct_fields__[: Record.__struct_fields__.index("state")]
"""The columns `{message}`: with them begins each row of a message, then comes its state."""

_INT = frozenset([int])

as_headers = msgspec.json.Decoder(dict[str, str]).decode
as_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
as_item = msgspec.json.Decoder(Item).decode
as_progress = msgspec.json.Decoder(Progress).decode


def record_of(row: tuple[Any, ...]) -> Record:
    """Return the record of a row: the fields of `Record`, in their order, or those up to the rank.

    Raises:
        Exception: one of `DAMAGED`: another program has written to the row.
    """
    return _decoded(row, checked=True)


def changeable(row: tuple[Any, ...], *, bodies: bool) -> Record:
    """Return the record of a row for commands that need not all of it; without its body, or with.

    Headers and failures that cannot be read are `None`, so that another failure cannot join: a
    message with such a column can be cancelled, for instance. With its body, the version of the
    message is asked for, which such a message does not have.
    """
    try:
        return _decoded(row, ranked=True)
    except DAMAGED:
        if bodies:
            raise
        columns: Any = Record(*row)  # a struct of columns that are not decoded
        columns = msgspec.structs.replace(columns, headers=None, failures=None)
        record = _decoded(msgspec.structs.astuple(columns), ranked=True)
        unreadable: Any = None  # `_decoded` has made an empty tuple of it, which could be written
        return msgspec.structs.replace(record, failures=unreadable)


def _decoded(row: tuple[Any, ...], *, ranked: bool = False, checked: bool = False) -> Record:
    """Return the record of a row with the columns of text decoded.

    Args:
        row: the fields of a record, in their order; those after the rank may be missing.
        ranked: compute the rank of a message that waits, which the row does not have.
        checked: raise if a number or a text has another type.
    """
    (
        seq,
        id,
        data,
        json,
        due,
        priority,
        attempt,
        attempts,
        expires,
        group,
        headers,
        failures,
        created,
        planned,
        asked,
        rule,
        run,
        code,
        rank,
        *lease,
    ) = row
    if checked:
        id.encode()  # raises if it is no text, or not UTF-8
        for text in (group, rule, run):
            if text is not None:
                text.encode()
        if {type(due), type(priority), type(attempt), type(attempts), type(expires or 0)} != _INT:
            raise TypeError(f"a number of {id!r} is no number")
        if type(data) is not str and type(data) is not bytes:
            raise TypeError(f"the body of {id!r} is neither text nor bytes")
    if ranked and code == DELAYED:
        rank = delayed_rank(due, priority)
    elif ranked and code == READY:
        rank = ready_rank(due, priority)
    record = Record(
        seq,
        id,
        data.encode() if isinstance(data, str) else data,
        bool(json),
        due,
        priority,
        attempt=attempt,
        attempts=attempts,
        expires=expires,
        group=group,
        headers=None if headers is None else as_headers(headers),
        failures=as_failures(failures) if failures else (),
        created=created or None,
        planned=planned,
        asked=asked,
        state=STATES[code],
        rank=rank,
    )
    if rule is not None or run is not None:  # apart, as in `Message.with_rule`
        record = msgspec.structs.replace(record, rule=rule, run=run)
    if not lease or code < LEASED:
        return record
    token, holder, until, since, extended, stopping, progress, ended, successor = lease
    return msgspec.structs.replace(
        record,
        token=token,
        holder=holder,
        until=until,
        since=since,
        extended=extended,
        stopping=stopping,
        progress=None if progress is None else as_progress(progress),
        ended=ended,
        successor=None if successor is None else as_item(successor),
    )


def is_damage(error: BaseException) -> bool:
    """Return whether an error is of a row that another program has changed."""
    if isinstance(error, sqlite3.OperationalError):
        return "decode to UTF-8" in str(error)
    return isinstance(error, DAMAGED) and not isinstance(error, BideError)


def as_text(data: bytes) -> str:
    """Return the content of a text column, even if it is not UTF-8."""
    return data.decode(errors="surrogateescape")


def readable_record(row: tuple[Any, ...], now: int) -> Record:
    """Return the record of a row, for people; a dead letter since `now` if it cannot be read."""
    try:
        return record_of(row)
    except DAMAGED:
        columns = Record(*row)
        return Record(
            seq=columns.seq,
            id=shown_id(columns),
            data=stored(row),
            json=False,
            due=now,
            priority=0,
            attempt=0,
            attempts=ATTEMPTS,
            expires=None,
            group=None,
            headers=None,
            failures=(Failure(0, now, "", UNREADABLE),),
            created=None,
            state="dead",
            rank=columns.rank,
            ended=now,
        )


def shown_id(record: Record) -> str:
    """Return the id of a record as text, whatever its type."""
    return str(record.id).encode(errors="backslashreplace").decode()


def stored(row: tuple[Any, ...]) -> bytes:
    """Return the columns of a message as text, for a person."""
    return repr(dict(zip(_MESSAGE, row, strict=False))).encode(errors="replace")


def ending_of(number: int) -> Ending:
    """Return how a message ended, by the number in its row.

    Raises:
        ValueError: no ending has this number.
    """
    if not 0 <= number < len(ENDINGS):
        raise ValueError(f"no ending has the number {number}")
    return ENDINGS[number]


def end_of(row: Sequence[Any]) -> End:
    """Return the end of a row: the fields of `End`, in their order.

    Raises:
        Exception: one of `DAMAGED`: another program has written to the row.
    """
    how, moment, by, due, attempt, since, failures, result = row
    fields = {
        "how": ending_of(how),
        "moment": moment,
        "by": by,
        "due": due,
        "attempt": attempt,
        "since": since,
        "failures": as_failures(failures) if failures else (),
        "result": None if result is None else result.encode(),
    }
    return msgspec.convert(fields, End)  # checks the types, which SQLite does not


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
    """Return an item as the statement `insert_message` takes it.

    What a message does not have is -1 or "", which the statement stores as NULL: Python's driver
    takes long over each `None`.

    Args:
        seq: the sequence number of the message.
        queue: the number of its queue.
        item: the message.
        due: when it is due, in Unix milliseconds.
        created: when its id was first put, unless the item says it.
    """
    return (
        seq,
        queue,
        item.id,
        due,
        item.priority,
        item.attempt,
        item.attempts,
        -1 if item.expires is None else item.expires,
        item.group or "",
        "" if item.headers is None else json_text(item.headers),
        json_text(item.failures) if item.failures else "",
        item.data.decode() if item.json else item.data,
        created if item.created is None else item.created,
        item.rule or "",
        item.run or "",
    )


def empty(run: Callable[..., Any], queue: int, *tables: str) -> None:
    """Delete the rows of a queue in some tables, whose names are given without `bide_`."""
    for table in tables:
        run(f"DELETE FROM bide_{table} WHERE queue = ?", (queue,))


class Statements:
    """The statements of SQL files in this folder as attributes, such as `SQL.pick`.

    Names in braces are replaced by the columns of a row, those of constants by their numbers.

    Args:
        files: their names.
        more: the columns of other rows, by the names that these have in braces.
    """

    def __init__(self, *files: str, **more: str) -> None:
        message = ", ".join(f'm."{name}"' for name in _MESSAGE)
        message = message.replace('m."json"', "typeof(m.data) = 'text'")
        set_fields = [name for name in QueueRow.__struct_fields__ if name not in FLOW]
        columns = {
            "message": message,
            "perhaps_body": message.replace('m."data"', 'iif(?, m."data", NULL)'),
            "lease": "l.token, l.holder, l.until, l.since, coalesce(l.extended, 0), "
            "l.stopping, l.progress",
            "queue": ", ".join(set_fields),
            "flow": ", ".join(FLOW),
            "set_queue": ", ".join(
                [f"{name} = ?" for name in set_fields[2:]]
                + [f"{name} = {name} + ?" for name in FLOW]
            ),
            **more,
        }
        folder = resources.files("bide.engines.sqlite")
        text = "".join(folder.joinpath(file).read_text("utf-8") for file in files)
        text = with_constants(text, CONSTANTS)
        parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            statement = " ".join(re.sub(r"--.*", "", body).split()).rstrip("; ")
            named = re.sub(r"\{(\w+)\}", lambda match: columns[match[1]], statement)
            setattr(self, name, named)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"the SQL files have no statement of the name {name!r}")


SQL = Statements("statements.sql", "reading.sql")
