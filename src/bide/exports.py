"""Exports: a queue as lines of JSON, one message per line, written and read."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bide.model import body as bodies
from bide.model.commands import Put
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.limits import IMPORT_LINES
from bide.model.message import MAX_ATTEMPTS, Failure, Item, Message, Options
from bide.model.options import check_options, options_of
from bide.model.parts import in_bytes
from bide.model.times import LATEST

Time = Annotated[int, Meta(ge=0, le=LATEST)]
"""Unix milliseconds."""


class _Line(Options, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message. `body` is the JSON value as it is; bytes are in `bytes`, in base64."""

    id: str
    due: Time
    queue: str = ""
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: bytes | None = msgspec.field(default=None, name="bytes")
    attempts: int = 1  # as in exports of old versions, which do not have it
    expires: Annotated[int, Meta(ge=-LATEST, le=LATEST)] | None = None
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)] = 0
    headers: dict[str, str] | None = None
    failures: tuple[Failure, ...] = ()
    died: Time | None = None
    created: Time | None = None
    """0: not known. Missing: now."""


_decode = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


def to_line(message: Message) -> str:
    """Return a message as one line of JSON, without the line's end.

    A lease ends with the export, so that a successor takes the place of its message.
    """
    if (new := message.successor) is not None:
        message = msgspec.structs.replace(
            message,
            data=new.data,
            json=new.json,
            due=new.due(0),
            attempt=0,
            state="delayed",
            expires=new.expires,
            headers=new.headers,
            failures=(),
            created=new.created,
            **options_of(new),
        )
    line = _Line(
        id=message.id,
        due=message.due,
        queue=message.queue,
        expires=message.expires,
        # A running attempt is not counted: it ends in this store.
        attempt=message.attempt - (message.state == "leased"),
        headers=message.headers,
        failures=message.failures,
        died=message.ended if message.state == "dead" else None,
        created=message.created or 0,
        **options_of(message),
    )
    if message.json and bodies.is_readable(message.seen_data):
        line.body = msgspec.Raw(message.data)
    else:  # bytes, or JSON that no program can read: an import stores it as bytes
        line.raw = message.data
    return _encode(line).decode()


def to_lines(messages: Iterable[Message]) -> Iterator[str]:
    """Return those of the messages that have not left the queue, each as a line."""
    return (to_line(message) for message in messages if message.state not in ("acked", "expired"))


def commands_of(
    lines: Iterable[str | bytes], queue: str, max_body: int, first: int = 1
) -> Iterator[Put]:
    """Return the commands that put the messages of lines: a thousand each, or 8 MiB.

    Args:
        lines: of an export.
        queue: where the messages go.
        max_body: how many bytes an encoded body may take.
        first: the number of the first line.

    Raises:
        InvalidArgument: a line is invalid; the error says which.
    """
    if isinstance(lines, (str, bytes)) or not isinstance(lines, Iterable):
        kind = type(lines).__name__
        raise InvalidArgument(f"load takes lines, as an open file or export has, not a {kind}")
    items = (
        _item(line, number, max_body)
        for number, line in enumerate(lines, first)
        if not isinstance(line, (str, bytes)) or line.strip()
    )
    return (Put(queue, part) for part in in_bytes(items, IMPORT_LINES))


def _item(text: str | bytes, number: int, max_body: int) -> Item:
    try:
        if not isinstance(text, (str, bytes)):
            raise InvalidArgument(f"it is a {type(text).__name__}, not text")
        line = _decode(text)
        check_name(line.id)
        if (line.body is msgspec.UNSET) == (line.raw is None):
            raise InvalidArgument("it needs a `body`, or `bytes` in base64")
        body: Any = line.raw
        if body is None:
            body = msgspec.json.decode(line.body)  # type: ignore[arg-type]
        data, is_json = bodies.encode(body, max_body, decoded=True)
        return Item(
            line.id,
            data,
            is_json,
            line.due,
            **check_options(line),
            expires=line.expires,
            headers=line.headers,
            attempt=line.attempt,
            failures=line.failures,
            died=line.died,
            created=line.created,
        )
    except (msgspec.DecodeError, InvalidArgument, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(
            f"line {number} is no message of an export: {error}; the lines of earlier "
            "commits are in the queue, fix the line and import again"
        ) from error
