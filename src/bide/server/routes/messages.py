"""Messages: put and look at."""

import time
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from bide.model.commands import Put
from bide.model.identity import check_name
from bide.model.limits import MAX_HTTP_PAGE
from bide.model.message import Item, Message, State, version_of
from bide.model.replies import Found, Outcome, Outcomes, Page
from bide.queue.results import must_be_new
from bide.queue.values import check_latest
from bide.server import wire
from bide.server.call import Call
from bide.server.conditions import changed, chosen, is_named, tag_of, wants_fresh
from bide.server.operation import JSON, MESSAGE, QUEUE, Answer, Routes
from bide.server.problem import Problem, invalid
from bide.server.routes.given import HEADER_TYPE, PutQuery, item_of, many_of, to_item
from bide.server.structure import check_fields

route = Routes("messages")


class ListQuery(wire.Selection):
    """Which messages to list."""

    state: State | Literal["next"] | None = None
    """"next": what goes out next."""
    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


@route(
    "putNamed", "PUT", MESSAGE, "put", {200: Outcome, 201: Outcome}, takes=wire.Given,
    takes_bytes=True, query=PutQuery,
    headers={
        "if-none-match": "*: only if there is no message of this id.",
        "if-match": "The etag that a GET told: replaces the message if nobody has edited or "
        "moved it since, and stores nothing new.",
    },
    problems=(409, 412, 415, 429, 507),
)  # fmt: skip
async def put_named(call: Call) -> Answer:
    """Store a message under an id of your own.

    Doing so again changes nothing: 201 tells that it was stored, 200 that it was there already.
    A body of another content type than JSON is stored as it is; the options then stand in the
    query.
    """
    item, on_conflict = await item_of(call, check_name(call.part("id")))
    fresh, match = wants_fresh(call), call.header("if-match")
    if match is not None:
        return await _replace(call, item, on_conflict, match)
    (outcome,) = await _put(call, [item], on_conflict)
    if fresh and not outcome.done:
        raise Problem("precondition-failed", f"{outcome}; nothing was stored", outcomes=[outcome])
    return _stored(call, on_conflict, outcome, item)


@route(
    "put", "POST", f"{QUEUE}/messages", "put", {200: Outcome, 201: Outcome}, takes=wire.Given,
    takes_bytes=True, query=PutQuery, problems=(409, 415, 429, 507),
)  # fmt: skip
async def put_one(call: Call) -> Answer:
    """Store a message."""
    item, on_conflict = await item_of(call, None)
    outcome = await _put(call, [item], on_conflict)
    return _stored(call, on_conflict, outcome[0], item)


async def _replace(call: Call, item: Item, on_conflict: str, match: str) -> Answer:
    """Replace a message if it still is what the caller saw."""
    if on_conflict == "raise" or call.header("if-none-match") is not None:
        raise invalid(
            "if-match",
            "if-match replaces what is there; leave out if-none-match and on_conflict=raise",
        )
    message = await find_or_none(call)
    version = chosen(match, message)
    (outcome,) = await _put(call, [item], "replace", version)
    answer = changed(outcome, conditional=True)
    return answer._replace(headers={"etag": tag_of(version_of(item, outcome.due or 0))})


@route("putMany", "POST", f"{QUEUE}/put", "put", takes=wire.PutMany, problems=(429, 507))
async def put_many(call: Call) -> wire.OutcomesOut:
    """Store many messages at once.

    All are stored in one transaction, or none.
    """
    many = await many_of(call)
    items, since, fields = [], time.monotonic(), 0
    for number, one in enumerate(many.messages):
        check_fields(fields := fields + bytes(one.headers).count(b":"))
        items.append(await to_item(call, one, f"messages[{number}]"))
        since = await call.service.large_bodies.give_way(since)
    return wire.OutcomesOut(await _put(call, items, many.on_conflict))


@route(
    "getMessage", "GET", MESSAGE, "read", {200: wire.MessageOut, 304: None}, problems=(404,),
    headers={"if-none-match": "The etag that you have."},
)  # fmt: skip
async def get(call: Call) -> Answer:
    """Look at a message."""
    message = await _find(call)
    tag = tag_of(message.version)
    if is_named(call.header("if-none-match"), tag):
        return Answer(304, b"", {"etag": tag})
    return Answer(200, call.shown(message), {"etag": tag})


@route(
    "getBody", "GET", f"{MESSAGE}/body", "bodies", {200: bytes, 304: None}, problems=(404,),
    kind="*/*", headers={"if-none-match": "The etag that you have."},
)  # fmt: skip
async def get_body(call: Call) -> Answer:
    """Look at a message's body alone."""
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


@route("listMessages", "GET", f"{QUEUE}/messages", "read")
async def list_messages(call: Call, query: ListQuery) -> wire.Messages:
    """List messages."""
    scan = call.arguments.scan(query.state, *query.rule, query.limit)
    return call.page(await call.ask(Page, msgspec.structs.replace(scan, cursor=query.cursor)))


async def _put(
    call: Call, items: list[Item], on_conflict: str, version: str | None = None
) -> list[Outcome]:
    service = call.service
    check_latest(items, on_conflict, version)
    if on_conflict == "replace":
        call.caller.need("change")
    policy: Any = "replace" if on_conflict == "replace" else "keep"
    command = Put(call.arguments.queue, items, policy, version)
    await service.quotas.admit(call.caller, [command])
    return (await service.ask(Outcomes, command)).outcomes


def _stored(call: Call, on_conflict: str, outcome: Outcome, item: Item) -> Answer:
    if on_conflict == "raise":
        must_be_new(outcome)
    root = quote(call.scope.get("root_path", ""))
    messages = f"{root}/v1/queues/{call.named['queue']}/messages/"
    headers = {"location": messages + quote(outcome.id, safe="")}
    if outcome.done and outcome.due is not None and outcome.successor is None:
        headers["etag"] = tag_of(version_of(item, outcome.due))
    return Answer(201 if outcome.done else 200, outcome, headers)


async def find_or_none(call: Call) -> Message | None:
    """Return the message that the path names, `None` if there is none."""
    (message,) = (await call.ask(Found, call.arguments.find(call.part("id")))).messages
    return message


async def _find(call: Call) -> Message:
    message = await find_or_none(call)
    if message is None:
        raise Problem("not-found", f"there is no message {call.part('id')!r} in this queue")
    return message
