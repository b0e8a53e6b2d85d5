"""Messages: put, look at, move, take back."""

import time
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta

from bide.model.commands import Cancel, Put, Reschedule
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name, new_id
from bide.model.limits import MAX_HTTP_PAGE
from bide.model.message import Item, Message, Name, NewMessage, State, version_of
from bide.model.options import options_of
from bide.model.replies import Affected, Found, Outcome, Outcomes, Page
from bide.queue.results import must_be_new
from bide.server import wire
from bide.server.conditions import chosen, is_named, tag_of
from bide.server.large_bodies import ESCAPED, LARGE
from bide.server.operation import JSON, Answer, Call, Operation, decode
from bide.server.problem import Problem, of_validation
from bide.server.structure import check_fields
from bide.server.turns import give_way

__all__ = ["MESSAGES"]

Conditional = TypeVar("Conditional", Cancel, Reschedule)

HEADER_TYPE = "content-type"

FORM = "application/x-www-form-urlencoded"
"""The header of a message that tells what its bytes are."""


class PutQuery(wire.PutOptions, kw_only=True):
    """What a put may say beside the body; with a body of bytes, all that it says."""

    on_conflict: Literal["keep", "replace", "raise"] = "keep"


class ListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages to list."""

    state: State | Literal["next"] | None = None
    """"next": what goes out next."""
    group: Name | None = None
    after: wire.When | None = None
    before: wire.When | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


class CancelQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages to take back; all that is given must hold."""

    group: Name | None = None
    after: wire.When | None = None
    before: wire.When | None = None
    dry_run: bool = False
    """Only count."""


async def put_one(call: Call) -> Answer:
    """Store one message under an id that is made up, or the one that it names."""
    item, on_conflict = await _item(call, None)
    outcome = await _put(call, [item], on_conflict)
    return _stored(call, on_conflict, outcome[0], item)


async def put_named(call: Call) -> Answer:
    """Store one message under an id; doing so again changes nothing."""
    item, on_conflict = await _item(call, check_name(call.part("id")))
    fresh, match = call.header("if-none-match"), call.header("if-match")
    if fresh not in (None, "*"):
        raise Problem("invalid-argument", "if-none-match takes * alone", field="if-none-match")
    if match is not None:
        return await _edit(call, item, on_conflict, match)
    (outcome,) = await _put(call, [item], on_conflict)
    if fresh and not outcome.done:
        raise Problem("precondition-failed", f"{outcome}; nothing was stored", outcomes=[outcome])
    return _stored(call, on_conflict, outcome, item)


async def _edit(call: Call, item: Item, on_conflict: str, match: str) -> Answer:
    """Replace a message if it still is what the caller saw."""
    if on_conflict == "raise" or call.header("if-none-match") is not None:
        raise Problem(
            "invalid-argument",
            "if-match replaces what is there; leave out if-none-match and on_conflict=raise",
            field="if-match",
        )
    message = await _find_or_none(call)
    version = chosen(match, message)
    (outcome,) = await _put(call, [item], "replace", version)
    answer = _changed(outcome, conditional=True)
    return answer._replace(headers={"etag": tag_of(version_of(item, outcome.due or 0))})


async def put_many(call: Call) -> Answer:
    """Store several messages in one transaction."""
    many = await call.read(wire.PutMany)
    check_fields(sum(bytes(one.headers).count(b":") for one in many.messages))
    items, since = [], time.monotonic()
    for number, one in enumerate(many.messages):
        items.append(await _to_item(call, one, f"messages[{number}]"))
        since = await give_way(since)
    return Answer(200, wire.OutcomesOut(await _put(call, items, many.on_conflict)))


async def get(call: Call) -> Answer:
    """Look at a message."""
    message = await _find(call)
    tag = tag_of(message.version)
    if is_named(call.header("if-none-match"), tag):
        return Answer(304, b"", {"etag": tag})
    return Answer(200, call.shown(message), {"etag": tag})


async def get_body(call: Call) -> Answer:
    """Look at a message's body alone, as it is stored."""
    message = await _find(call)
    tag = tag_of(message.version)
    if is_named(call.header("if-none-match"), tag):
        return Answer(304, b"", {"etag": tag})
    kind = JSON if message.json else "application/octet-stream"
    safe = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox"}
    if not message.json:
        kind = (message.headers or {}).get(HEADER_TYPE, kind)
        kind = kind if kind.isascii() and kind.isprintable() else "application/octet-stream"
    return Answer(200, message.data, {"etag": tag, **safe}, kind)


async def list_messages(call: Call) -> Answer:
    """List messages, a page at a time."""
    query = call.query(ListQuery)
    after, before = wire.moment(query.after, "after"), wire.moment(query.before, "before")
    scan = call.arguments.scan(query.state, query.group, after, before, query.limit)
    page = await call.ask(Page, msgspec.structs.replace(scan, cursor=query.cursor))
    found = [call.shown(message) for message in page.messages]
    return Answer(200, wire.Messages(found, page.cursor))


async def reschedule(call: Call) -> Answer:
    """Move a message that nobody holds to another moment."""
    changed = await call.read(wire.Changed)
    id, at = check_name(call.part("id")), wire.moment(changed.at, "at")
    command = call.arguments.reschedule([id], changed.delay, at, None)
    seen, command = await _only_if(call, command)
    if call.service.quotas.any:  # a message may not be put far ahead by way of a second moment
        moved = Item(id, b"", at=command.at, delay=command.delay)
        call.service.quotas.bound(call.caller, [moved], call.service.clock.now())
    (outcome,) = (await call.service.ask(Outcomes, command)).outcomes
    answer = _changed(outcome, conditional=command.if_version is not None)
    if seen is None or outcome.due is None:
        return answer
    now_is = msgspec.structs.replace(seen, due=outcome.due)
    return answer._replace(headers={"etag": tag_of(now_is.version)})


async def cancel(call: Call) -> Answer:
    """Take a message back before somebody holds it."""
    command = call.arguments.cancel([check_name(call.part("id"))], None)
    _, command = await _only_if(call, command)
    (outcome,) = (await call.service.ask(Outcomes, command)).outcomes
    return _changed(outcome, conditional=command.if_version is not None)


async def cancel_where(call: Call) -> Answer:
    """Take back all messages of a group, or of a range of time, that nobody holds."""
    query = call.query(CancelQuery)
    after, before = wire.moment(query.after, "after"), wire.moment(query.before, "before")
    command = call.arguments.cancel_where(query.group, after, before, query.dry_run)
    found = await call.ask(Affected, command)
    return Answer(200, wire.AffectedOut(found.count, found.more))


async def _item(call: Call, id: str | None) -> tuple[Item, str]:
    query = call.query(PutQuery)
    if query.delay is not None:
        query.delay = wire.span(query.delay)
    if query.expires is not None:
        query.expires = wire.span(query.expires)
    if call.content_type in ("", JSON):
        given = await call.read(wire.Given)
        check_fields(bytes(given.headers).count(b":"))
        if id is not None:
            if given.id not in (None, id):
                raise Problem("invalid-argument", "id differs from the one in the path", field="id")
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
    return await _to_item(call, given), query.on_conflict


_NOTHING_SAID = PutQuery()

_DEFAULTS = wire.Given()


def _add(given: wire.Given, query: PutQuery) -> None:
    """Add to what the body says what the query says beside it."""
    for name, value in msgspec.structs.asdict(query).items():
        if name == "on_conflict" or value == getattr(_NOTHING_SAID, name):
            continue
        if getattr(given, name) != getattr(_DEFAULTS, name):
            raise Problem(
                "invalid-argument",
                f"{name} is given in the body and in the query; give it once",
                field=name,
            )
        setattr(given, name, value)


async def _to_item(call: Call, given: wire.Given, place: str = "") -> Item:
    """Return a message of a request as the store takes it; errors tell its place."""
    text = bytes(given.body)
    if (not text) == (given.raw is UNSET):
        told = "both are" if text else "neither is"
        raise Problem(
            "invalid-argument",
            f"a message has a body (JSON) or bytes (base64), and {told} given",
            field=f"{place}.body" if place else "body",
        )
    try:
        message = NewMessage(
            await _body(call, text) if text else given.raw, delay=given.delay,
            at=wire.moment(given.at, "at"), expires=given.expires,
            headers=_headers(given, place),
            **options_of(given),
        )  # fmt: skip
        id = new_id() if given.id is None else check_name(given.id)
        return call.arguments.item(message, id, decoded=True)
    except InvalidArgument as error:
        if not place:
            raise
        raise Problem("invalid-argument", f"{place}: {error}", field=place) from None


def _headers(given: wire.Given, place: str) -> dict[str, str] | None:
    if (text := bytes(given.headers)) in (b"", b"null"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.ValidationError as error:
        what, _, within = str(error).partition(" - at `$")
        at = f"{what} - at `$.{place}{'.' if place else ''}headers{within or '`'}"
        raise of_validation(msgspec.ValidationError(at), wire.Given) from None
    except UnicodeDecodeError as error:
        raise Problem("malformed", f"The headers are no UTF-8: {error}") from None


async def _body(call: Call, text: bytes) -> Any:
    """Decode the body of a message, not more of them at a time than memory and others can bear."""
    most = call.service.settings.max_body
    if len(text) > ESCAPED * most:
        raise InvalidArgument(
            f"body takes {len(text):,} bytes, the limit is {most:,}; store it elsewhere and put a "
            "reference"
        )
    if len(text) <= LARGE:
        return decode(text, Any)
    await call.service.large_bodies.turn(len(text))
    body = decode(text, Any)
    await call.service.large_bodies.turn(len(text))  # encoding takes as long
    return body


async def _put(
    call: Call, items: list[Item], on_conflict: str, version: str | None = None
) -> list[Outcome]:
    service = call.service
    if on_conflict == "replace":
        call.caller.need("change")
    if service.quotas.any:
        await service.quotas.admit(call.caller, [call.full], items, service.clock.now())
    policy: Any = "replace" if on_conflict == "replace" else "keep"
    command = Put(call.arguments.queue, items, policy, version)
    return (await service.ask(Outcomes, command)).outcomes


def _stored(call: Call, on_conflict: str, outcome: Outcome, item: Item) -> Answer:
    if on_conflict == "raise":
        must_be_new(outcome)
    messages = f"/v1/queues/{call.named['queue']}/messages/"
    headers = {"location": messages + quote(outcome.id, safe="")}
    if outcome.done and outcome.due is not None:
        headers["etag"] = tag_of(version_of(item, outcome.due))
    return Answer(201 if outcome.done else 200, outcome, headers)


async def _find_or_none(call: Call) -> Message | None:
    (message,) = (await call.service.ask(Found, call.arguments.find(call.part("id")))).messages
    return message


async def _find(call: Call) -> Message:
    message = await _find_or_none(call)
    if message is None:
        raise Problem("not-found", f"there is no message {call.part('id')!r} in this queue")
    return message


async def _only_if(call: Call, command: Conditional) -> tuple[Message | None, Conditional]:
    """Return what the caller saw, and the command that changes nothing else."""
    match = call.header("if-match")
    if match is None or match.strip() == "*":
        return None, command
    message = await _find_or_none(call)
    version = chosen(match, message)
    return message, msgspec.structs.replace(command, if_version=version)


def _changed(outcome: Outcome, *, conditional: bool) -> Answer:
    if outcome.done:
        return Answer(200, outcome)
    if conditional and outcome.state in (None, "delayed", "ready", "dead"):
        raise Problem(
            "precondition-failed",
            f"{outcome}: somebody else has changed it since you looked; look again",
            outcomes=[outcome],
        )
    if outcome.state is None:
        raise Problem("not-found", f"{outcome}", outcomes=[outcome])
    raise Problem("conflict", f"{outcome}; nothing was changed", outcomes=[outcome])


_QUEUE = "/v1/queues/{queue}"
_ONE = f"{_QUEUE}/messages/{{id}}"
_IF_MATCH = {
    "if-match": "The etag that a GET told: only if nobody has edited or moved the message since."
}

MESSAGES = (
    Operation(
        "putNamed", "PUT", _ONE, "Store a message under an id of your own", "put", put_named,
        {200: Outcome, 201: Outcome}, takes=wire.Given, takes_bytes=True, query=PutQuery,
        headers={
            "if-none-match": "*: only if there is no message of this id.",
            "if-match": "The etag that a GET told: replaces the message if nobody has edited or "
            "moved it since, and stores nothing new.",
        },
        problems=(409, 412, 415, 429, 507),
        description="Doing so again changes nothing: 201 tells that it was stored, 200 that it was "
        "there already. A body of another content type than JSON is stored as it is; the options "
        "then stand in the query.",
    ),
    Operation(
        "put", "POST", f"{_QUEUE}/messages", "Store a message", "put", put_one,
        {200: Outcome, 201: Outcome}, takes=wire.Given, takes_bytes=True, query=PutQuery,
        problems=(409, 415, 429, 507),
    ),
    Operation(
        "putMany", "POST", f"{_QUEUE}/put", "Store many messages at once", "put", put_many,
        {200: wire.OutcomesOut}, takes=wire.PutMany, problems=(429, 507),
        description="All are stored in one transaction, or none.",
    ),
    Operation(
        "getMessage", "GET", _ONE, "Look at a message", "read", get,
        {200: wire.MessageOut, 304: None}, problems=(404,),
        headers={"if-none-match": "The etag that you have."},
    ),
    Operation(
        "reschedule", "PATCH", _ONE, "Move a message to another moment", "change", reschedule,
        {200: Outcome}, takes=wire.Changed, headers=_IF_MATCH, problems=(404, 409, 412, 429, 507),
    ),
    Operation(
        "cancel", "DELETE", _ONE, "Take a message back", "change", cancel, {200: Outcome},
        headers=_IF_MATCH, problems=(404, 409, 412),
        description="Final when it answers 200. 409 tells who holds the message, or that it is "
        "done already.",
    ),
    Operation(
        "getBody", "GET", f"{_ONE}/body", "Look at a message's body alone", "bodies", get_body,
        {200: bytes, 304: None}, problems=(404,), kind="*/*",
        headers={"if-none-match": "The etag that you have."},
    ),
    Operation(
        "listMessages", "GET", f"{_QUEUE}/messages", "List messages", "read", list_messages,
        {200: wire.Messages}, query=ListQuery,
    ),
    Operation(
        "cancelWhere", "DELETE", f"{_QUEUE}/messages", "Take back a group or a range of time",
        "change", cancel_where, {200: wire.AffectedOut}, query=CancelQuery,
        description="Up to 1,000 at a time; repeat while `more` is true.",
    ),
)  # fmt: skip
