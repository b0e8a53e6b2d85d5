"""A queue as lines of JSON: one message a line, to be read by people and by other stores."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from bide.model import body as bodies
from bide.model.commands import Put
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.message import MAX_ATTEMPTS, Failure, Item, Message, State
from bide.model.moments import LATEST
from bide.model.replies import Outcome
from bide.queue.arguments import Arguments

__all__ = ["REMEMBERED", "Imported", "commands_of", "commands_of_stream", "to_line"]

REMEMBERED: tuple[State, ...] = ("acked", "expired")
"""What is gone and only remembered is not exported."""

LINES = 1_000
"""How many lines one commit imports."""


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One message. `body` is the JSON value as it is; bytes stand in `bytes`, in base64."""

    id: str
    due: int
    queue: str = ""
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: bytes | None = msgspec.field(default=None, name="bytes")
    priority: int = 0
    expires: int | None = None
    attempts: int = 1
    attempt: int = 0
    group: str | None = None
    headers: dict[str, str] | None = None
    failures: tuple[Failure, ...] = ()
    died: int | None = None


_decode = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    stored: int = 0
    """Messages that are new in the queue."""
    kept: int = 0
    """Messages whose id was there already: they were left as they are."""

    def plus(self, outcomes: Sequence[Outcome]) -> "Imported":
        """Return the sum with what one more command did."""
        stored = sum(outcome.done for outcome in outcomes)
        return Imported(self.stored + stored, self.kept + len(outcomes) - stored)


def to_line(message: Message) -> str:
    """Return a message as one line of JSON, without the line's end."""
    line = _Line(
        message.id,
        message.due,
        message.queue,
        priority=message.priority,
        expires=message.expires,
        attempts=message.attempts,
        # The attempt that somebody is at does not end here, so it is not counted.
        attempt=message.attempt - (message.state == "leased"),
        group=message.group,
        headers=message.headers,
        failures=message.failures,
        died=message.ended if message.state == "dead" else None,
    )
    if message.json:
        line.body = msgspec.Raw(message.data)
    else:
        line.raw = message.data
    return _encode(line).decode()


def commands_of(lines: Iterable[str | bytes], ask: Arguments) -> Iterator[Put]:
    """Return the commands that put what the lines say, a thousand messages each.

    Raises:
        InvalidArgument: a line is not of `to_line`'s form; the error says which.
    """
    if isinstance(lines, (str, bytes)) or not isinstance(lines, Iterable):
        kind = type(lines).__name__
        raise InvalidArgument(f"load takes lines, as an open file or export has, not a {kind}")
    numbered = enumerate(lines, 1)
    while part := list(islice(numbered, LINES)):
        yield from _command(part, ask)


async def commands_of_stream(
    lines: AsyncIterable[str | bytes], ask: Arguments
) -> AsyncIterator[Put]:
    """Return the same for lines that come one by one, as from an async `export`."""
    part: list[tuple[int, str | bytes]] = []
    number = 0
    async for line in lines:
        number += 1
        part.append((number, line))
        if len(part) == LINES:
            for command in _command(part, ask):
                yield command
            part = []
    for command in _command(part, ask):
        yield command


def _command(part: list[tuple[int, str | bytes]], ask: Arguments) -> Iterator[Put]:
    items = [
        _item(line, number, ask.max_body)
        for number, line in part
        if not isinstance(line, (str, bytes)) or line.strip()
    ]
    if items:
        yield Put(ask.queue, items)


def _item(text: str | bytes, number: int, max_body: int) -> Item:
    try:
        if not isinstance(text, (str, bytes)):
            raise InvalidArgument(f"it is a {type(text).__name__}, not text")
        line = _decode(text)
        return _checked(line, max_body)
    except (msgspec.DecodeError, InvalidArgument, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"line {number} is no message of an export: {error}; the lines of earlier commits are "
            "in the queue, mend the line and import again"
        ) from error


def _checked(line: _Line, max_body: int) -> Item:
    check_name(line.id)
    if line.group is not None:
        check_name(line.group, "group")
    bounds: tuple[tuple[str, int | None, int, int], ...] = (
        ("due", line.due, 0, LATEST),
        ("died", line.died, 0, LATEST),
        ("expires", line.expires, -LATEST, LATEST),
        ("priority", line.priority, 0, 255),
        ("attempts", line.attempts, 1, MAX_ATTEMPTS),
        ("attempt", line.attempt, 0, MAX_ATTEMPTS),
    )
    for name, value, low, high in bounds:
        if value is not None and not low <= value <= high:
            raise InvalidArgument(f"{name} is {value}, it must be {low} to {high}")
    if (line.body is msgspec.UNSET) == (line.raw is None):
        raise InvalidArgument("it needs a `body`, or `bytes` in base64")
    data, is_json = _body(line, max_body)
    return Item(
        line.id, data, is_json, line.due, 0, line.priority, line.expires, line.attempts,
        line.group, line.headers, line.attempt, line.failures, line.died,
    )  # fmt: skip


def _body(line: _Line, max_body: int) -> tuple[bytes, bool]:
    if line.raw is not None:
        return bodies.encode(line.raw, max_body)
    value: Any = msgspec.json.decode(line.body)  # type: ignore[arg-type]
    return bodies.encode(value, max_body, decoded=True)
