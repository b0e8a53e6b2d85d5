"""Messages: put, get, list and explain them, and read how they ended."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.commands import Explain, Put
from bide.model.ended import PENDING, Attempt, End, Ending
from bide.model.errors import Closed
from bide.model.identity import check_name
from bide.model.limits import MAX_HTTP_PAGE
from bide.model.message import Item, Message, Progress, State, version_of
from bide.model.replies import Ends, Explained, Outcome, Outcomes, expect
from bide.model.times import milliseconds
from bide.observing.explanation import Explanation, Reason
from bide.queue.arguments import check_latest
from bide.queue.results import must_be_new
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.limits.request_bodies import check_fields
from bide.server.operation import ANY, JSON, MESSAGE, QUEUE, Answer, Routes
from bide.server.problem import Problem, invalid, within
from bide.server.routes import given

route = Routes("messages")


class ListQuery(wire.Selection):
    """The messages to list."""

    state: State | Literal["next"] | None = None
    """"next": the messages that are delivered next."""
    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


@route(
    "putNamed",
    "PUT",
    MESSAGE,
    "put",
    {200: Outcome, 201: Outcome},
    takes=wire.Given,
    takes_bytes=True,
    headers={
        "if-none-match": "*: only if there is no message of this id.",
        "if-match": "The etag of a GET: replaces the message unless it was edited or moved "
        "afterwards, and stores nothing new.",
    },
    problems=(409, 412, 415, 507),
)
async def put_named(call: ApiCall, query: given.PutQuery) -> Answer:
    """Store a message under your own id.

    A repeated request changes nothing: 201 means that the message was stored, 200 that it
    existed. A body of another content type than JSON is stored unchanged; then the options are in
    the query.
    """
    item = await given.item_of(call, query, check_name(call.request.part("id")))
    must_be_fresh = given.wants_fresh(call)
    if must_be_fresh and query.on_conflict == "replace":
        raise invalid(
            "if-none-match", "if-none-match replaces nothing; leave out on_conflict=replace"
        )
    if_match = call.request.header("if-match")
    if if_match is not None:
        return await _replace(call, item, query.on_conflict, if_match)
    (outcome,) = await _put_items(call, [item], query.on_conflict)
    if must_be_fresh and not outcome.done:
        raise Problem("precondition-failed", f"{outcome}; nothing was stored", outcomes=[outcome])
    return _put_answer(call, query.on_conflict, outcome, item)


@route(
    "put",
    "POST",
    f"{QUEUE}/messages",
    "put",
    {200: Outcome, 201: Outcome},
    takes=wire.Given,
    takes_bytes=True,
    problems=(409, 415, 507),
)
async def put_one(call: ApiCall, query: given.PutQuery) -> Answer:
    """Store a message."""
    item = await given.item_of(call, query, None)
    (outcome,) = await _put_items(call, [item], query.on_conflict)
    return _put_answer(call, query.on_conflict, outcome, item)


async def _replace(call: ApiCall, item: Item, on_conflict: str, match: str) -> Answer:
    """Replace a message if it still has a version that the caller names."""
    if on_conflict == "raise" or call.request.header("if-none-match") is not None:
        raise invalid(
            "if-match",
            "if-match replaces what is there; leave out if-none-match and on_conflict=raise",
        )
    seen = await given.chosen(call, match)
    (outcome,) = await _put_items(call, [item], "replace", seen.version)
    answer = given.changed(outcome, conditional=True)
    return answer._replace(headers={"etag": given.tag_of(version_of(item, outcome.due or 0))})


@route("putMany", "POST", f"{QUEUE}/put", "put", takes=wire.PutMany, problems=(507,))
async def put_many(call: ApiCall) -> wire.OutcomesOut:
    """Store many messages at once.

    All are stored in one transaction, or none.
    """
    many = await given.many_of(call)
    items: list[Item] = []
    field_count = 0
    for number, message in enumerate(many.messages):
        field_count += given.most_header_fields(message.headers)
        check_fields(field_count)
        with within(f"messages[{number}]"):
            items.append(await given.to_item(call, message))
        await call.request.pause()
    return wire.OutcomesOut(await _put_items(call, items, many.on_conflict))


@route(
    "getMessage",
    "GET",
    MESSAGE,
    "read",
    {200: wire.MessageOut, 304: None},
    problems=(404,),
    headers={"if-none-match": "The etag that you have."},
)
async def get(call: ApiCall) -> Answer:
    """Get a message."""
    message, headers, is_known = await _seen_message(call)
    return (
        Answer(304, b"", headers) if is_known else Answer(200, call.message_out(message), headers)
    )


@route(
    "getBody",
    "GET",
    f"{MESSAGE}/body",
    "bodies",
    {200: bytes, 304: None},
    problems=(404,),
    content_type=ANY,
    headers={"if-none-match": "The etag that you have."},
)
async def get_body(call: ApiCall) -> Answer:
    """Get the body of a message."""
    message, headers, is_known = await _seen_message(call)
    if is_known:
        return Answer(304, b"", headers)
    content_type = JSON if message.json else (message.headers or {}).get(given.HEADER_TYPE, "")
    if not (content_type and content_type.isascii() and content_type.isprintable()):
        content_type = "application/octet-stream"
    # A producer may have put an HTML page: a browser must not run its scripts with our origin.
    headers |= {"x-content-type-options": "nosniff", "content-security-policy": "sandbox"}
    return Answer(200, message.data, headers, content_type)


@route("listMessages", "GET", f"{QUEUE}/messages", "read")
async def list_messages(call: ApiCall, query: ListQuery) -> wire.Messages:
    """List messages."""
    scan = call.arguments.scan(query.state, *query.rule, query.limit)
    return await call.page(msgspec.structs.replace(scan, cursor=query.cursor))


async def _put_items(
    call: ApiCall, items: list[Item], on_conflict: str, version: str | None = None
) -> list[Outcome]:
    """Put messages, and return their outcomes.

    Args:
        call: the call.
        items: the messages.
        on_conflict: "keep", "replace" or "raise", see `Queue.put`.
        version: the version that a replaced message must have; `None`: any, or none at all.

    Raises:
        AccessDenied: the caller may put, but not replace.
    """
    check_latest(items, on_conflict, version)
    if on_conflict == "replace":
        call.caller.need("change")
    policy: Any = "replace" if on_conflict == "replace" else "keep"
    command = Put(call.arguments.queue, items, policy, version)
    return (await call.ask(Outcomes, command)).outcomes


def _put_answer(call: ApiCall, on_conflict: str, outcome: Outcome, item: Item) -> Answer:
    """Return the answer to a put of one message: where it is, and its etag if it is stored now.

    Raises:
        AlreadyExists: the id exists, and `on_conflict` is "raise".
    """
    if on_conflict == "raise":
        must_be_new(outcome)
    root = quote(call.request.scope.get("root_path", ""))
    messages = f"{root}/v1/queues/{call.request.names['queue']}/messages/"
    headers = {"location": messages + quote(outcome.id, safe="")}
    if outcome.done and outcome.due is not None and outcome.successor is None:
        headers["etag"] = given.tag_of(version_of(item, outcome.due))
    return Answer(201 if outcome.done else 200, outcome, headers)


async def _seen_message(call: ApiCall) -> tuple[Message, dict[str, str], bool]:
    """Return the message in the path, the header with its etag, and whether the caller has it.

    Without the right to see bodies there is no etag: a guessed body could be compared with it.
    """
    message = await call.find()
    if message is None:
        raise Problem("not-found", f"there is no message {call.request.part('id')!r} in this queue")
    if not call.caller.may("bodies"):
        return message, {}, False
    tag = given.tag_of(message.version)
    return message, {"etag": tag}, given.is_named(call.request.header("if-none-match"), tag)


class EndOut(msgspec.Struct, omit_defaults=True):
    """How a message ended. Times are Unix milliseconds."""

    how: Ending
    moment: int
    """When it ended."""
    by: str | None
    """Who ended it: the holder of its lease, or the actor of the command; `null`: it expired."""
    due: int
    attempt: int
    """How often it was delivered."""
    attempts: list[Attempt]
    """The last 20 failed attempts, and the acked one."""
    result: msgspec.Raw | UnsetType = UNSET
    """The result of its handler, if the queue remembers it and the token may see bodies."""

    @classmethod
    def of(cls, end: End, *, bodies: bool) -> "EndOut":
        """Convert an end; without the right to see bodies, without its result."""
        result = UNSET if end.result is None or not bodies else msgspec.Raw(end.result)
        return cls(end.how, end.moment, end.by, end.due, end.attempt, end.attempts, result)


class HistoryOut(msgspec.Struct):
    """The history of a message."""

    id: str
    state: State | None
    """Its state now; `null`: it is not in the queue."""
    ends: list[EndOut]
    """How messages of this id have ended, the newest first."""


class ResultOut(msgspec.Struct, omit_defaults=True):
    """The end of a message, with its result."""

    id: str
    how: Ending | None
    """How it ended; `null`: it has not."""
    state: State | None = None
    """Its state, while it has not ended."""
    progress: Progress | None = None
    """While a worker holds it: the last report of the worker."""
    by: str | None = None
    """Who ended it."""
    error: str | None = None
    """Why the last attempt failed, if it died."""
    result: Any = None
    """The result of its handler, if it was acked with one."""


class ResultQuery(wire.RequestModel):
    """How long to wait for a result."""

    wait: wire.Span = "0s"


@route("history", "GET", f"{MESSAGE}/history", "read", problems=(404,))
async def history(call: ApiCall) -> HistoryOut:
    """Show how messages with an id have ended.

    Acked, cancelled, expired, dead, purged or moved; when, by whom, and each attempt. The queue
    remembers it for its `history` time.
    """
    command = call.arguments.history(call.request.part("id"))
    reply = await call.ask(Ends, command)
    if reply.state is None and not reply.ends:
        raise _unknown(call)
    bodies = call.caller.may("bodies")
    ends = [EndOut.of(end, bodies=bodies) for end in reply.ends]
    return HistoryOut(command.id, reply.state, ends)


@route(
    "result",
    "GET",
    f"{MESSAGE}/result",
    "bodies",
    {200: ResultOut, 202: ResultOut},
    problems=(404,),
)
async def result(call: ApiCall, query: ResultQuery) -> Answer:
    """Show how a message ended, and its result.

    200 once it has ended, as `how` says. 202 while it has not; with `wait` the server answers as
    soon as it ends. The queue remembers results for its `result_ttl`.
    """
    wait = milliseconds(wire.span(query.wait), "wait") / 1000
    command = call.arguments.history(call.request.part("id"), watch=wait > 0)
    if not wait:
        return await _result_answer(call, await call.ask(Ends, command))
    try:
        reply = await call.wait(lambda: call.service.wait(command, wait))
    except Closed:  # the server stops: the client asks another one
        return Answer(202, ResultOut(command.id, None), {"connection": "close"})
    return await _result_answer(call, expect(Ends, reply))


async def _result_answer(call: ApiCall, reply: Ends) -> Answer:
    """Return how the message in the path ended, or that it has not.

    Raises:
        Problem: there is no such message, and none is remembered.
    """
    id = call.request.part("id")
    if reply.state in PENDING:
        message = await call.find() if reply.state == "leased" else None
        progress = None if message is None else message.progress
        return Answer(202, ResultOut(id, how=None, state=reply.state, progress=progress))
    if not reply.ends:
        raise _unknown(call)
    latest, *_ = reply.ends
    error = None
    if latest.how == "dead":
        error = await _death_of(call, latest)
    value = None if latest.result is None else msgspec.Raw(latest.result)
    return Answer(200, ResultOut(id, how=latest.how, by=latest.by, error=error, result=value))


async def _death_of(call: ApiCall, end: End) -> str | None:
    """Return why the message in the path died; `None`: unknown, or not for the caller.

    Without `history` only the dead letter knows, which is for those who may read messages.
    """
    if end.failures:
        return end.failures[-1].reason
    if not call.caller.may("read"):
        return None
    message = await call.find()
    return message.error if message is not None and message.state == "dead" else None


def _unknown(call: ApiCall) -> Problem:
    return Problem(
        "not-found",
        f"there is no message {call.request.part('id')!r} in this queue, and none is remembered; a "
        "queue remembers ended messages for as long as its `history` and `result_ttl` say",
    )


class ExplainQuery(wire.RequestModel):
    """The form of the explanation."""

    language: Literal["en", "zh"] = "en"
    """The language of the sentence: English or Simplified Chinese."""


class ExplanationOut(msgspec.Struct):
    """Why a message waits, or how it ended."""

    id: str
    queue: str
    sentence: str
    reasons: list[Reason]
    """The causes, the most important one first."""
    facts: Explained
    """The facts behind the sentence."""


@route("explain", "GET", f"{MESSAGE}/explanation", "read", problems=(404,))
async def explain(call: ApiCall, query: ExplainQuery) -> ExplanationOut:
    """Explain why a message waits, or how it ended.

    When it is due, who holds it, or why no worker has claimed it: the queue is paused, no worker
    serves it, all are busy, others go first. The cost does not depend on the number of pending
    messages.
    """
    queue, id = call.arguments.queue, check_name(call.request.part("id"))
    facts = await call.ask(Explained, Explain(queue, id))
    all_facts = await call.service.explained(call.visit, queue, id, facts)
    explanation = Explanation(id, call.request.queue, all_facts)
    if facts.state is None and explanation.facts.end is None:
        raise Problem("not-found", explanation.sentence)
    sentence = explanation.in_language(query.language)
    return ExplanationOut(
        id, call.request.queue, sentence, list(explanation.reasons), explanation.facts
    )
