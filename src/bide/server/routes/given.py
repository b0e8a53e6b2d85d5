"""Read requests: a message, changes of one, and conditions (RFC 9110, section 13)."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.limits import MAX_HEADERS
from bide.model.message import Attempts, Group, Item, Message, NewMessage, Priority
from bide.model.options import options_of
from bide.model.replies import Outcome
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.limits.decoding import check_headers, split
from bide.server.limits.request_bodies import ESCAPED_BYTES, LARGE, check_body, check_fields
from bide.server.operation import JSON, Answer
from bide.server.problem import Problem, invalid, within
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


async def item_of(call: ApiCall, query: PutQuery, id: str | None) -> Item:
    """Return the message of a put."""
    if call.request.content_type in ("", JSON):
        given = await one_of(call, wire.Given)
        check_fields(bytes(given.headers).count(b":"))
        if id is not None:
            if given.id not in (None, id):
                raise invalid("id", "id differs from the one in the path")
            given.id = id
    elif call.request.content_type == FORM:
        raise Problem(
            "unsupported-type",
            f"content-type is {FORM}, the default of curl -d and many libraries; send "
            f"content-type: {JSON} (curl --json), or a form as bytes (base64) in JSON",
            field=HEADER_TYPE,
        )
    else:
        kind = msgspec.json.encode({HEADER_TYPE: call.request.header("content-type")})
        given = wire.Given(raw=await call.request.bytes(), id=id, headers=msgspec.Raw(kind))
    if call.request.scope["query_string"]:
        _add(given, query)
    return await to_item(call, given)


def _add(given: wire.Given, query: PutQuery) -> None:
    """Add the options in the query to those in the body."""
    nothing = wire.PutOptions()
    for name in nothing.__struct_fields__:
        value, default = getattr(query, name), getattr(nothing, name)
        if value == default:
            continue
        if getattr(given, name) != default:
            raise invalid(name, f"{name} is given in the body and in the query; give it once")
        setattr(given, name, wire.span(value) if name in ("delay", "expires", "latest") else value)


async def one_of(call: ApiCall, kind: type[T]) -> T:
    """Decode a request with the body of one message.

    Raises:
        Problem: it does not fit.
        InvalidArgument: it is larger than the largest message.
    """
    data = await call.request.text()
    check_body(data, call.service.settings.max_body, MAX_HEADERS)
    return decode(data, kind)


async def many_of(call: ApiCall) -> wire.PutMany:
    """Decode a request of many messages; of a large request, decode them one by one.

    Raises:
        Problem: it does not fit.
    """
    data = await call.request.text()
    if len(data) <= LARGE:
        return decode(data, wire.PutMany)
    pause, most = call.service.large_bodies.pauses(), call.service.settings.max_body
    around, objects = await split(data, ESCAPED_BYTES * (most + MAX_HEADERS), pause)
    del data
    many = decode(around, wire.PutMany)
    for number, encoded in enumerate(objects):
        with within(f"messages[{number}]"):
            check_body(encoded, most, MAX_HEADERS)
            many.messages.append(decode(encoded, wire.Given))
        await pause()
    return many


async def to_item(call: ApiCall, given: wire.Given) -> Item:
    """Convert a message of a request for the store."""
    body = await body_of(call, given)
    if body is UNSET:
        raise _not_one_body("neither is")
    message = NewMessage(
        body,
        id=given.id,
        delay=given.delay,
        at=wire.moment(given.at, "at"),
        expires=given.expires,
        headers=headers_of(given.headers),
        latest=given.latest,
        **options_of(given),
    )
    return call.arguments.item(message, decoded=True)


async def body_of(call: ApiCall, given: wire.Given | Changed) -> Any:
    """Return the body in a request, `UNSET` if there is none.

    Large bodies are decoded one at a time, so that memory stays small and other requests go on.
    """
    text = bytes(given.body)
    if text and given.raw is not UNSET:
        raise _not_one_body("both are")
    if not text:
        return given.raw
    check_body(text, call.service.settings.max_body)
    await call.service.large_bodies.turn(len(text))
    body = decode(text, Any)
    await call.service.large_bodies.turn(len(text))  # encoding takes as long
    return body


def _not_one_body(given: str) -> Problem:
    return invalid("body", f"a message has a body (JSON) or bytes (base64), and {given} given")


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
    named = [etag.removeprefix("W/") for etag in _listed(header or "")]
    return "*" in named or tag in named


async def chosen(call: ApiCall, header: str) -> Message:
    """Return the message in the path if an if-match names it.

    Args:
        call: the call.
        header: the etags that match; `*`: all.

    Raises:
        Problem: the message has another version, or does not exist.
        AccessDenied: the caller may not see bodies, and could test a guessed body.
    """
    named = _listed(header)
    if named != ["*"]:
        call.caller.need("bodies")
    if (message := await call.find()) is None:
        raise Problem("precondition-failed", "the message does not exist; look again")
    tag = tag_of(message.version)
    if "*" not in named and tag not in named:
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
        Problem: it was not changed.
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


def _listed(header: str) -> list[str]:
    return [tag.strip() for tag in header.split(",") if tag.strip()]
