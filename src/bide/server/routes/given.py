"""Read requests: a message, changes of one, and conditions (RFC 9110, section 13)."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.limits import MAX_HEADERS
from bide.model.local_date import PlannedDate
from bide.model.message import Attempts, Group, Item, Message, NewMessage, Priority
from bide.model.options import options_of
from bide.model.replies import Outcome
from bide.model.times import Moment, to_datetime
from bide.queue import dates
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.limits.decoding import check_headers, split
from bide.server.limits.request_bodies import ESCAPED_BYTES, LARGE, check_body, check_fields
from bide.server.operation import JSON, Answer
from bide.server.problem import Problem, invalid, naming_server, within
from bide.server.request import decode

HEADER_TYPE = "content-type"
"""The header of a message with the type of its bytes."""

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"


class PutQuery(wire.PutOptions, kw_only=True):
    """The options of a put in the query, besides those in the body."""

    on_conflict: Literal["keep", "replace", "raise"] = "keep"


class RescheduleRequest(wire.RequestModel):
    """The new due time: `delay` or `at`."""

    delay: wire.Span | None = None
    at: wire.When | None = None
    timezone: str | None = None
    """The time zone of `at`, which is a local date then; as for a put."""

    def date(self, **others: bool) -> PlannedDate | None:
        """Return the local date; `None`: `at` is an instant, or is not given.

        Args:
            others: for each field that cannot be combined with a local date: whether it is given.

        Raises:
            InvalidArgument: `at` is not a local date, or is combined with a delay or with others.
        """
        if self.timezone is None:
            return None
        with naming_server():
            dates.check_alone(**others)
            return dates.date_of(self.delay, self.at, self.timezone)

    def new_due(self, date: PlannedDate | None) -> Moment | None:
        """Return the new due time, that of a local date if there is one."""
        return wire.moment(self.at, "at") if date is None else to_datetime(date.at)


class Changed(RescheduleRequest, kw_only=True):
    """The fields of a message to change; the others stay as they are."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Any JSON value."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """Bytes, in base64, instead of `body`."""
    priority: Priority | UnsetType = UNSET
    attempts: Attempts | UnsetType = UNSET
    expires: wire.Span | UnsetType | None = UNSET
    """How long after its due time it is still worth delivering; null: no limit."""
    group: Group | UnsetType | None = UNSET
    headers: Annotated[
        msgspec.Raw,
        Meta(
            extra_json_schema={
                "type": ["object", "null"],
                "additionalProperties": {"type": "string"},
            }
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)
    """Text that travels beside the body; null: none."""
    repeat: wire.RepeatRule | UnsetType | None = UNSET
    """By which rule it repeats from now on; null: it repeats no longer."""
    window: wire.WindowHours | UnsetType | None = UNSET
    """In which hours it is delivered from now on; null: at any time."""


async def item_of(call: ApiCall, query: PutQuery, id: str | None) -> Item:
    """Return the message of a put: in JSON, or the bytes of a body of another content type.

    Args:
        call: the call.
        query: the query, which may have options.
        id: the id in the path; `None`: the path names none.

    Raises:
        Problem: the request does not fit.
    """
    if call.request.content_type in ("", JSON):
        message = await _message_in_json(call, id)
    elif call.request.content_type == FORM:
        raise Problem(
            "unsupported-type",
            f"content-type is {FORM}, the default of curl -d and many libraries; send "
            f"content-type: {JSON} (curl --json), or a form as bytes (base64) in JSON",
            field=HEADER_TYPE,
        )
    else:
        headers = msgspec.json.encode({HEADER_TYPE: call.request.header("content-type")})
        body = await call.request.bytes()
        message = wire.Given(raw=body, id=id, headers=msgspec.Raw(headers))
    if call.request.scope["query_string"]:
        _add_query(message, query)
    return await to_item(call, message)


async def _message_in_json(call: ApiCall, id: str | None) -> wire.Given:
    """Return the message in a JSON body, with the id in the path if there is one."""
    message = await one_of(call, wire.Given)
    check_fields(most_header_fields(message.headers))
    if id is not None:
        if message.id not in (None, id):
            raise invalid("id", "id differs from the one in the path")
        message.id = id
    return message


def most_header_fields(headers: msgspec.Raw) -> int:
    """Return how many header fields encoded headers have at most: each has at least one colon."""
    return bytes(headers).count(b":")


def _add_query(message: wire.Given, query: PutQuery) -> None:
    """Add the options in the query to those in the body.

    Raises:
        Problem: both have an option.
    """
    defaults = wire.PutOptions()
    for name in defaults.__struct_fields__:
        value, default = getattr(query, name), getattr(defaults, name)
        if value == default:
            continue
        if getattr(message, name) != default:
            raise invalid(name, f"{name} is given in the body and in the query; give it once")
        if name in ("delay", "expires", "latest", "spread"):
            value = wire.span(value)
        setattr(message, name, value)


async def one_of(call: ApiCall, kind: type[T]) -> T:
    """Decode a request with the body of one message.

    Raises:
        Problem: the request is not JSON, or has another form.
        InvalidArgument: it is larger than the largest message.
    """
    data = await call.request.text()
    check_body(data, call.service.settings.max_body, MAX_HEADERS)
    return decode(data, kind)


async def many_of(call: ApiCall) -> wire.PutMany:
    """Decode a request of many messages; of a large request, decode them one by one.

    Raises:
        Problem: the request is not JSON, or has another form.
    """
    data = await call.request.text()
    if len(data) <= LARGE:
        return decode(data, wire.PutMany)
    pause, most = call.request.pause, call.service.settings.max_body
    around, objects = await split(data, ESCAPED_BYTES * (most + MAX_HEADERS), pause)
    del data
    many = decode(around, wire.PutMany)
    for number, encoded in enumerate(objects):
        with within(f"messages[{number}]"):
            check_body(encoded, most, MAX_HEADERS)
            many.messages.append(decode(encoded, wire.Given))
        await pause()
    return many


async def to_item(call: ApiCall, message: wire.Given) -> Item:
    """Convert a message of a request for the store.

    Raises:
        Problem: it has no body, or two.
        InvalidArgument: one of its values is not valid.
    """
    body = await body_of(call, message)
    if body is UNSET:
        raise _not_one_body("neither is")
    new_message = NewMessage(
        body,
        id=message.id,
        delay=message.delay,
        at=wire.due(message.at, message.timezone),
        timezone=message.timezone,
        expires=message.expires,
        headers=headers_of(message.headers),
        latest=message.latest,
        spread=message.spread,
        repeat=None if message.repeat is None else message.repeat.rule,
        window=None if message.window is None else message.window.window,
        **options_of(message),
    )
    return call.arguments.item(new_message, decoded=True)


async def body_of(call: ApiCall, content: wire.Given | Changed) -> Any:
    """Return the body of a message in a request, `UNSET` if there is none.

    Large bodies are decoded one at a time, so that memory stays small and other requests go on.
    """
    text = bytes(content.body)
    if text and content.raw is not UNSET:
        raise _not_one_body("both are")
    if not text:
        return content.raw
    check_body(text, call.service.settings.max_body)
    await call.service.large_bodies.turn(len(text))
    body = decode(text, Any)
    await call.service.large_bodies.turn(len(text))  # encoding takes as long
    return body


def _not_one_body(subject: str) -> Problem:
    return invalid("body", f"a message has a body (JSON) or bytes (base64), and {subject} given")


def headers_of(raw: msgspec.Raw) -> dict[str, str] | None:
    """Return the headers in a request, `None` if there are none."""
    if (text := bytes(raw)) in (b"", b"null"):
        return None
    check_headers(raw)
    with within("headers"):
        return decode(text, dict[str, str])


def tag_of(version: str) -> str:
    """Return the etag of a version.

    Example:
        >>> tag_of("f01d96070ef47d4b")
        '"f01d96070ef47d4b"'
    """
    return f'"{version}"'


def wants_fresh(call: ApiCall) -> bool:
    """Tell whether a put must replace nothing: `if-none-match: *`.

    Raises:
        Problem: the header has another value.
    """
    header = call.request.header("if-none-match")
    if header not in (None, "*"):
        raise invalid("if-none-match", "if-none-match can only be *")
    return header is not None


def is_named(header: str | None, tag: str) -> bool:
    """Tell whether an if-none-match names an etag, weak or not, or all."""
    tags = [etag.removeprefix("W/") for etag in _tags_in(header or "")]
    return "*" in tags or tag in tags


async def chosen(call: ApiCall, header: str) -> Message:
    """Return the message in the path if an if-match names it.

    Args:
        call: the call.
        header: the etags that match; `*`: all.

    Raises:
        Problem: the message has another version, or does not exist.
        AccessDenied: the caller may not see bodies, and could test a guessed body.
    """
    tags = _tags_in(header)
    if tags != ["*"]:
        call.caller.need("bodies")
    if (message := await call.find()) is None:
        raise Problem("precondition-failed", "the message does not exist; look again")
    tag = tag_of(message.version)
    if "*" not in tags and tag not in tags:
        raise Problem(
            "precondition-failed",
            f"{message.id} is {message.state}, and if-match is not its etag: it was edited since "
            "you looked; look again",
            headers={"etag": tag},
        )
    return message


def changed(
    outcome: Outcome, *, conditional: bool = False, why: str = "nothing was changed"
) -> Answer:
    """Return the answer to a change of one message.

    Args:
        outcome: the outcome.
        conditional: whether the change had a version as its condition.
        why: the reason for a change that was not made.

    Raises:
        Problem: the message was not changed.
    """
    if outcome.done:
        return Answer(200, outcome)
    if outcome.state == "stopping":
        return Answer(202, outcome)
    if conditional and outcome.state in (None, "delayed", "ready", "dead"):
        raise Problem(
            "precondition-failed",
            f"{outcome}: it was changed since you looked; look again",
            outcomes=[outcome],
        )
    if outcome.state is None:
        raise Problem("not-found", f"{outcome}", outcomes=[outcome])
    raise Problem("conflict", f"{outcome}; {why}", outcomes=[outcome])


def _tags_in(header: str) -> list[str]:
    """Return the etags in a header, or "*"."""
    return [tag.strip() for tag in header.split(",") if tag.strip()]
