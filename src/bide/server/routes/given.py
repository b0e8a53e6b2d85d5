"""Messages as requests give them."""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET

from bide.model.errors import InvalidArgument
from bide.model.identity import check_name, new_id
from bide.model.limits import MAX_HEADERS
from bide.model.message import Item, NewMessage
from bide.model.options import options_of
from bide.server import wire
from bide.server.call import Call, decode
from bide.server.change_wire import Changed
from bide.server.large_bodies import LARGE, Stepwise
from bide.server.operation import JSON
from bide.server.pieces import split
from bide.server.problem import Problem, invalid
from bide.server.structure import ESCAPED, check_body, check_fields

HEADER_TYPE = "content-type"
"""The header of a message that tells what its bytes are."""

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"


class PutQuery(wire.PutOptions, kw_only=True):
    """What a put may say beside the body; with a body of bytes, all that it says."""

    on_conflict: Literal["keep", "replace", "raise"] = "keep"


async def item_of(call: Call, id: str | None) -> tuple[Item, str]:
    """Return the message that a request puts, and what to do if its id exists."""
    query = call.query(PutQuery)
    for name in ("delay", "expires", "latest"):
        if (value := getattr(query, name)) is not None:
            setattr(query, name, wire.span(value))
    if call.content_type in ("", JSON):
        given = await one_of(call, wire.Given)
        check_fields(bytes(given.headers).count(b":"))
        if id is not None:
            if given.id not in (None, id):
                raise invalid("id", "id differs from the one in the path")
            given.id = id
        if query != _NOTHING_SAID:
            _add(given, query)
    elif call.content_type == FORM:
        raise Problem(
            "unsupported-type",
            f"content-type is {FORM}, which is what curl -d and many libraries say of anything; "
            f"send content-type: {JSON} (curl --json), or a form as bytes (base64) in JSON",
            field=HEADER_TYPE,
        )
    else:
        data = await call.bytes()
        options = msgspec.structs.asdict(query)
        del options["on_conflict"]
        kind = msgspec.json.encode({HEADER_TYPE: call.header("content-type") or ""})
        given = wire.Given(raw=data, id=id, headers=msgspec.Raw(kind), **options)
    return await to_item(call, given), query.on_conflict


WHOLE = 64 * 1024
"""Bytes up to which a request of many messages is read in one step."""

_NOTHING_SAID = PutQuery()

_DEFAULTS = wire.Given()


def _add(given: wire.Given, query: PutQuery) -> None:
    """Add to what the body says what the query says beside it."""
    for name, value in msgspec.structs.asdict(query).items():
        if name == "on_conflict" or value == getattr(_NOTHING_SAID, name):
            continue
        if getattr(given, name) != getattr(_DEFAULTS, name):
            raise invalid(name, f"{name} is given in the body and in the query; give it once")
        setattr(given, name, value)


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
    if len(data) <= WHOLE:
        return decode(data, wire.PutMany)
    large, most = call.service.large_bodies, call.service.settings.max_body
    around, objects = await large.work(split(data, ESCAPED * (most + MAX_HEADERS)))
    del data
    return await large.work(_one_by_one(around, objects, most))


def _one_by_one(around: bytes, objects: list[bytes], max_body: int) -> Stepwise[wire.PutMany]:
    many = decode(around, wire.PutMany)
    for number, one in enumerate(objects):
        check_body(one, max_body, MAX_HEADERS)
        many.messages.append(decode(one, wire.Given, f"messages[{number}]"))
        yield
    return many


async def to_item(call: Call, given: wire.Given, place: str = "") -> Item:
    """Return a message of a request as the store takes it; errors tell its place."""
    body = await body_of(call, given, place)
    if body is UNSET:
        raise _not_one_body("neither is", place)
    try:
        message = NewMessage(
            body, delay=given.delay, at=wire.moment(given.at, "at"), expires=given.expires,
            headers=headers_of(given.headers, place), latest=given.latest,
            **options_of(given),
        )  # fmt: skip
        id = new_id() if given.id is None else check_name(given.id)
        return call.arguments.item(message, id, decoded=True, named=given.id is not None)
    except InvalidArgument as error:
        if not place:
            raise
        raise invalid(place, f"{place}: {error}") from None


async def body_of(call: Call, given: wire.Given | Changed, place: str = "") -> Any:
    """Return the body that a request gives, `UNSET` if it gives none."""
    text = bytes(given.body)
    if text and given.raw is not UNSET:
        raise _not_one_body("both are", place)
    return await _decoded(call, text) if text else given.raw


def _not_one_body(told: str, place: str) -> Problem:
    field = f"{place}.body" if place else "body"
    return invalid(field, f"a message has a body (JSON) or bytes (base64), and {told} given")


def headers_of(raw: msgspec.Raw, place: str = "") -> dict[str, str] | None:
    """Return the headers that a request gives, `None` if it gives none."""
    if (text := bytes(raw)) in (b"", b"null"):
        return None
    if len(text) > MAX_HEADERS:
        raise InvalidArgument(
            f"headers take {len(text):,} bytes, the limit is {MAX_HEADERS:,}; put what is so long "
            "into the body"
        )
    return decode(text, dict[str, str], f"{place}.headers" if place else "headers")


async def _decoded(call: Call, text: bytes) -> Any:
    """Decode the body of a message, not more of them at a time than memory and others can bear."""
    check_body(text, call.service.settings.max_body)
    if len(text) <= LARGE:
        return decode(text, Any)
    await call.service.large_bodies.turn(len(text))
    body = decode(text, Any)
    await call.service.large_bodies.turn(len(text))  # encoding takes as long
    return body
