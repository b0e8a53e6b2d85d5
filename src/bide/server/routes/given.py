"""What requests give: a message, what to change of it, and conditions (RFC 9110, section 13)."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.identity import check_name, new_id
from bide.model.limits import MAX_HEADERS
from bide.model.message import Attempts, Group, Item, Message, NewMessage, Priority
from bide.model.options import options_of
from bide.model.replies import Outcome
from bide.server import wire
from bide.server.call import Call, decode
from bide.server.limits.decoding import check_headers, split
from bide.server.limits.request_bodies import ESCAPED, LARGE, check_body, check_fields
from bide.server.operation import JSON, Answer
from bide.server.problem import Problem, invalid, within

HEADER_TYPE = "content-type"
"""The header of a message that tells what its bytes are."""

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"


class PutQuery(wire.PutOptions, kw_only=True):
    """What a put may say beside the body; with a body of bytes, all that it says."""

    on_conflict: Literal["keep", "replace", "raise"] = "keep"


class Moved(wire.Request):
    """When messages are due: `delay` or `at`."""

    delay: wire.Span | None = None
    at: wire.When | None = None


class Changed(Moved, kw_only=True):
    """What to change of a message; what is left out stays as it is."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Any JSON value."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """Bytes, in base64, instead of `body`."""
    priority: Priority | UnsetType = UNSET
    attempts: Attempts | UnsetType = UNSET
    expires: wire.Span | UnsetType | None = UNSET
    """How long after its due time it is still worth delivering; null: without limit."""
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


async def item_of(call: Call, id: str | None) -> tuple[Item, str]:
    """Return the message that a request puts, and what to do if its id exists."""
    query = call.query(PutQuery)
    if call.content_type in ("", JSON):
        given = await one_of(call, wire.Given)
        check_fields(bytes(given.headers).count(b":"))
        if id is not None:
            if given.id not in (None, id):
                raise invalid("id", "id differs from the one in the path")
            given.id = id
    elif call.content_type == FORM:
        raise Problem(
            "unsupported-type",
            f"content-type is {FORM}, which is what curl -d and many libraries say of anything; "
            f"send content-type: {JSON} (curl --json), or a form as bytes (base64) in JSON",
            field=HEADER_TYPE,
        )
    else:
        kind = msgspec.json.encode({HEADER_TYPE: call.header("content-type")})
        given = wire.Given(raw=await call.bytes(), id=id, headers=msgspec.Raw(kind))
    if call.scope["query_string"]:
        _add(given, query)
    return await to_item(call, given), query.on_conflict


def _add(given: wire.Given, query: PutQuery) -> None:
    """Add to what the body says what the query says beside it."""
    nothing = wire.PutOptions()
    for name in nothing.__struct_fields__:
        value, default = getattr(query, name), getattr(nothing, name)
        if value == default:
            continue
        if getattr(given, name) != default:
            raise invalid(name, f"{name} is given in the body and in the query; give it once")
        setattr(given, name, wire.span(value) if name in ("delay", "expires", "latest") else value)


async def one_of(call: Call, kind: type[T]) -> T:
    """Return the request's body as a struct that has the body of one message.

    Raises:
        Problem: it does not fit.
        InvalidArgument: it holds more than the largest message.
    """
    data = await call.text()
    check_body(data, call.service.settings.max_body, MAX_HEADERS)
    return decode(data, kind)


async def many_of(call: Call) -> wire.PutMany:
    """Return the messages of a request; of a large one, they are read one by one.

    Raises:
        Problem: it does not fit.
    """
    data = await call.text()
    if len(data) <= LARGE:
        return decode(data, wire.PutMany)
    pause, most = call.service.large_bodies.pauses(), call.service.settings.max_body
    around, objects = await split(data, ESCAPED * (most + MAX_HEADERS), pause)
    del data
    many = decode(around, wire.PutMany)
    for number, one in enumerate(objects):
        with within(f"messages[{number}]"):
            check_body(one, most, MAX_HEADERS)
            many.messages.append(decode(one, wire.Given))
        await pause()
    return many


async def to_item(call: Call, given: wire.Given) -> Item:
    """Return a message of a request as the store takes it."""
    body = await body_of(call, given)
    if body is UNSET:
        raise _not_one_body("neither is")
    message = NewMessage(
        body, delay=given.delay, at=wire.moment(given.at, "at"), expires=given.expires,
        headers=headers_of(given.headers), latest=given.latest, **options_of(given),
    )  # fmt: skip
    id = new_id() if given.id is None else check_name(given.id)
    return call.arguments.item(message, id, decoded=True, named=given.id is not None)


async def body_of(call: Call, given: wire.Given | Changed) -> Any:
    """Return the body that a request gives, `UNSET` if it gives none.

    Large ones are decoded one at a time, so that memory stays small and other requests go on.
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


def _not_one_body(told: str) -> Problem:
    return invalid("body", f"a message has a body (JSON) or bytes (base64), and {told} given")


def headers_of(raw: msgspec.Raw) -> dict[str, str] | None:
    """Return the headers that a request gives, `None` if it gives none."""
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


def wants_fresh(call: Call) -> bool:
    """Tell whether a put is only to make something new: `if-none-match: *`.

    Raises:
        Problem: it names anything else.
    """
    header = call.header("if-none-match")
    if header not in (None, "*"):
        raise invalid("if-none-match", "if-none-match takes * alone")
    return header is not None


def is_named(header: str | None, tag: str) -> bool:
    """Tell whether an if-none-match names an etag, or all; weakness is nothing to it."""
    named = [one.removeprefix("W/") for one in _listed(header or "")]
    return "*" in named or tag in named


def chosen(call: Call, header: str, message: Message | None) -> str:
    """Return the version that an if-match asks for, out of those it names.

    Args:
        call: of whom.
        header: the etags that would do; `*`: any.
        message: as it is now.

    Raises:
        Problem: the message is of none of them.
        AccessDenied: the caller may not see bodies, and could test guesses of one here.
    """
    named = _listed(header)
    if named != ["*"]:
        call.caller.need("bodies")
    if any(tag != "*" and not (len(tag) > 1 and tag[0] == tag[-1] == '"') for tag in named):
        raise Problem(
            "precondition-failed",
            "if-match is no etag of a message; send the etag of a GET",
            field="if-match",
        )
    if message is None:
        raise Problem("precondition-failed", "there is no such message any more; look again")
    tag = tag_of(message.version)
    if "*" not in named and tag not in named:
        raise Problem(
            "precondition-failed",
            f"{message.id} is {message.state}, and was edited since you looked; look again",
            headers={"etag": tag},
        )
    return message.version


def changed(
    outcome: Outcome, *, conditional: bool = False, why: str = "nothing was changed"
) -> Answer:
    """Return the answer of a change of one message.

    Args:
        outcome: what the store said.
        conditional: whether the change depended on the message being as the caller saw it.
        why: what it means that the message is as it is.

    Raises:
        Problem: it was not changed.
    """
    if outcome.done:
        return Answer(200, outcome)
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
