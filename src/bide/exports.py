"""Exports: a queue as lines of JSON, one message per line, written and read."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from bide.model import body as bodies
from bide.model.commands import Put
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.limits import IMPORT_LINES
from bide.model.message import IN_TRANSIT, MAX_ATTEMPTS, Failure, Item, Message, Options
from bide.model.options import check_options, options_of
from bide.model.parts import in_bytes
from bide.model.times import LATEST, ExpiryMs

Time = Annotated[int, Meta(ge=0, le=LATEST)]
"""Unix milliseconds."""


class _Line(Options, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message. `body` is the JSON value as it is; bytes are in `bytes`, in base64."""

    id: str
    due: Time
    queue: str = ""
    """Where it was, for people: an import names its queue itself."""
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: bytes | None = msgspec.field(default=None, name="bytes")
    attempts: int = 1
    """The maximum number. Missing in exports of old versions, where it was 1."""
    expires: ExpiryMs | None = None
    """Milliseconds after the due time; `None`: it does not expire."""
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)] = 0
    """How many attempts have ended."""
    headers: dict[str, str] | None = None
    failures: tuple[Failure, ...] = ()
    died: Time | None = None
    """`None`: it is not dead."""
    created: Time | None = None
    """0: not known. Missing: now."""
    rule: str | None = None
    """By which rule it repeats; see `bide.model.repeat`."""
    run: str | None = None
    """Which run of it this is."""


_decode = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


def to_line(message: Message) -> str:
    """Return a message as one line of JSON, without the line's end.

    A lease ends with the export, so that a successor takes the place of its message. What a move
    has under way is alive.
    """
    if (successor := message.successor) is not None:
        message = msgspec.structs.replace(
            message,
            data=successor.data,
            json=successor.json,
            due=successor.due(0),  # it has a due time, so the time of the call does not matter
            attempt=0,
            state="delayed",
            expires=successor.expires,
            headers=successor.headers,
            failures=(),
            planned=None,
            asked=None,
            created=successor.created,
            rule=successor.rule,
            run=successor.run,
            **options_of(successor),
        )
    if message.state == "dead" and (message.error or "").startswith(IN_TRANSIT):
        failures = message.failures[:-1]  # without the mark
        message = msgspec.structs.replace(message, state="delayed", failures=failures)
    # A running attempt is not counted: it ends in this store.
    running_attempts = 1 if message.state == "leased" else 0
    is_dead = message.state == "dead"
    line = _Line(
        id=message.id,
        due=message.due,
        queue=message.queue,
        expires=message.expires_elsewhere(dead=is_dead),
        attempt=message.attempt - running_attempts,
        headers=message.headers,
        failures=message.failures,
        died=message.ended if is_dead else None,
        created=message.created or 0,
        rule=message.rule_elsewhere(),
        run=message.run,
        **options_of(message),
    )
    if message.json and bodies.is_readable(message.seen_data):
        line.body = msgspec.Raw(message.data)
    else:  # bytes, or JSON that no program can read: an import stores it as bytes
        line.raw = message.data
    return bodies.on_one_line(_encode(line)).decode()


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
        raise InvalidArgument(f"load takes lines, as an open file or export has, not {kind}")
    items = (
        _item(line, number, max_body)
        for number, line in enumerate(lines, first)
        if not isinstance(line, (str, bytes)) or line.strip()
    )
    return (Put(queue, part) for part in in_bytes(items, IMPORT_LINES))


def _item(text: str | bytes, number: int, max_body: int) -> Item:
    """Return the message of a line.

    Args:
        text: the line.
        number: of the line, for the error.
        max_body: how many bytes an encoded body may take.

    Raises:
        InvalidArgument: the line is invalid.
    """
    try:
        if not isinstance(text, (str, bytes)):
            raise InvalidArgument(f"it is of type {type(text).__name__}, not text")
        line = _decode(text)
        check_name(line.id)
        if (line.body is msgspec.UNSET) == (line.raw is None):
            raise InvalidArgument("it needs a `body`, or `bytes` in base64")
        if isinstance(line.body, msgspec.Raw):  # as it is: to decode a number may round it
            data = bytes(line.body)
            bodies.check_json(data, "body")
        else:
            data = line.raw or b""
        bodies.check_size(data, max_body)
        if line.rule is not None or line.run is not None:
            from bide.model.runs import check_rule_and_run  # here: most messages do not repeat

            check_rule_and_run(line.id, line.rule, line.run)
        return Item(
            line.id,
            data,
            json=line.raw is None,
            at=line.due,
            **check_options(line),
            expires=line.expires,
            headers=line.headers,
            attempt=line.attempt,
            failures=line.failures,
            died=line.died,
            created=line.created,
            rule=line.rule,
            run=line.run,
        )
    except (msgspec.DecodeError, InvalidArgument, UnicodeError, RecursionError) as error:
        raise InvalidArgument(
            f"line {number} is not a message of an export: {error}; the lines of earlier "
            "commits are in the queue, fix the line and import again"
        ) from error
