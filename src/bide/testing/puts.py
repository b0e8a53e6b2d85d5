"""Records of puts, and how they differ from what a test expects."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from bide.model import body as bodies
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Outcome
from bide.model.times import Duration, Moment, format_duration, milliseconds, to_datetime, unix

__all__ = ["ANY", "Expected", "PutRecord", "complaint"]

SHOWN = 10
"""How many puts a failed assertion lists."""


class _Anything:
    def __repr__(self) -> str:
        return "anything"


ANY: Any = _Anything()
"""Matches any value in an assertion."""


class PutRecord(msgspec.Struct, frozen=True):
    """One message that was put, and the outcome."""

    queue: str
    id: str
    body: Any
    """The body as a consumer gets it."""
    moment: int
    """When it was put, in Unix milliseconds."""
    due: int
    """When it falls due, in Unix milliseconds."""
    priority: int
    expires: int | None
    """Milliseconds after `due` for which it is worth delivering."""
    attempts: int
    group: str | None
    headers: Mapping[str, str] | None
    outcome: Outcome
    """What the put returned: false if the id existed and was kept."""

    @classmethod
    def of(cls, queue: str, item: Item, moment: int, outcome: Outcome) -> "PutRecord":
        """Return the record of an item that was put."""
        due = moment + item.delay if item.at is None else item.at
        return cls(
            queue, item.id, bodies.decode(item.data, item.json), moment, due, item.priority,
            item.expires, item.attempts, item.group, item.headers, outcome,
        )  # fmt: skip

    @property
    def delay(self) -> float:
        """Seconds from the put to the due time; never negative."""
        return max(0, self.due - self.moment) / 1000

    @property
    def due_at(self) -> datetime:
        """`due` as an aware `datetime`."""
        return to_datetime(self.due)

    def __str__(self) -> str:
        parts = [f"id={self.id!r}", f"body={self.body!r}", f"delay={_told(self.delay)}"]
        parts += [
            f"{name}={value!r}"
            for name, value, usual in (
                ("priority", self.priority, 0),
                ("group", self.group, None),
                ("headers", self.headers, None),
            )
            if value != usual
        ]
        if self.expires is not None:
            parts.append(f"expires={format_duration(self.expires)}")
        kept = "" if self.outcome.done else f", not stored: {self.outcome}"
        return f"{' '.join(parts)} (due {self.due_at:%Y-%m-%d %H:%M:%S} UTC{kept})"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a test expects of a put; `ANY` matches every value."""

    body: Any = ANY
    id: Any = ANY
    delay: Duration | Any = ANY
    at: Moment | Any = ANY
    priority: Any = ANY
    expires: Duration | Any = ANY
    attempts: Any = ANY
    group: Any = ANY
    headers: Any = ANY

    def differs(self, record: PutRecord) -> list[str]:
        """Return the names of the fields in which a record differs; none if it matches."""
        wrong = [
            name
            for name in ("id", "priority", "attempts", "group", "headers")
            if (wanted := getattr(self, name)) is not ANY and wanted != getattr(record, name)
        ]
        if self.body is not ANY and not same_body(record.body, self.body):
            wrong.append("body")
        if self.delay is not ANY:
            delay = milliseconds(0 if self.delay is None else self.delay)
            if delay != max(0, record.due - record.moment):
                wrong.append("delay")
        if self.at is not ANY and unix(self.at) != record.due:
            wrong.append("at")
        if self.expires is not ANY:
            expires = None if self.expires is None else milliseconds(self.expires, "expires")
            if expires != record.expires:
                wrong.append("expires")
        return wrong

    def __str__(self) -> str:
        named = [(name, getattr(self, name)) for name in self.__struct_fields__]
        said = [f"{name}={_said(value)}" for name, value in named if value is not ANY]
        return " ".join(said) or "anything at all"


def same_body(stored: Any, expected: Any) -> bool:
    """Tell whether a stored body is what a put of `expected` would have stored."""
    if stored == expected:
        return True
    try:
        data, is_json = bodies.encode(expected)
    except InvalidArgument:
        return False
    return bool(bodies.decode(data, is_json) == stored)


def complaint(
    what: str, expected: Expected, queue: str, records: Sequence[PutRecord], names: Sequence[str]
) -> str:
    """Return the text of a failed assertion.

    Args:
        what: the first line.
        expected: the put that the test expected.
        queue: the queue in which it was expected.
        records: the puts into this queue.
        names: the queues with any put.
    """
    lines = [f"{what}:", f"    {expected}"]
    if records:
        lines.append(f"what was put into {queue!r} ({len(records)}):")
        for number, record in enumerate(records[:SHOWN], 1):
            lines.append(f"{number:4}. {record}")
            if wrong := expected.differs(record):
                lines.append(f"      differs in: {', '.join(wrong)}")
        if len(records) > SHOWN:
            lines.append(f"      ... and {len(records) - SHOWN} more")
    elif names:
        lines.append(f"nothing was put into {queue!r}; puts went to: {', '.join(map(repr, names))}")
    else:
        lines.append("nothing was put into any queue")
    return "\n".join(lines)


def _said(value: Any) -> str:
    return value.isoformat(sep=" ") if isinstance(value, datetime) else repr(value)


def _told(seconds: float) -> str:
    return format_duration(seconds * 1000)
