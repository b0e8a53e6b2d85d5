"""Change messages that no worker holds: edit, reschedule, cancel, revive."""

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from bide.lane.steps import arun_steps
from bide.model.commands import EDITED, Cancel, Edit, History, Scan
from bide.model.errors import Closed
from bide.model.identity import check_name
from bide.model.limits import BULK, MAX_HTTP_IDS, MAX_HTTP_PAGE
from bide.model.message import Message, Name, version_of
from bide.model.replies import Affected, Ends, Outcome, Outcomes, Page, expect
from bide.model.times import milliseconds
from bide.model.undoing import bulk_of
from bide.queue.arguments import check_running
from bide.queue.dates import dating, dating_page, with_new_date
from bide.queue.dry_run import look_at_dead, look_at_reschedule
from bide.queue.steps import after_stop, edited, movable
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.limits.request_bodies import check_fields
from bide.server.operation import MESSAGE, QUEUE, Answer, Routes
from bide.server.routes import given, undoing

route = Routes("messages")

_IF_MATCH = {"if-match": "The etag of a GET: fails if the message was edited or moved afterwards."}


class Chosen(wire.Selection, kw_only=True):
    """The messages to change; all conditions that are given must hold."""

    undo: bool = False
    """Allow to undo the change for ten minutes."""
    dry_run: bool = False
    """Only count."""
    cursor: str | None = None
    """The cursor of the previous answer, if it had one."""


class CancelQuery(Chosen, kw_only=True):
    """The messages to cancel; all conditions that are given must hold."""

    running: bool = False
    """Also ask the workers of leased messages to stop."""


class CancelledOut(undoing.UndoableOut, kw_only=True, omit_defaults=True):
    """How many messages were cancelled, and whose workers were asked to stop."""

    stopping: list[str] = msgspec.field(default_factory=list)
    """With `running`: the ids of the messages whose workers were asked to stop; they are not in
    the count. With `dry_run` they are in the count, and not listed."""


class CancelOneQuery(wire.RequestModel):
    """What to do if a worker holds the message."""

    running: bool = False
    """Ask the worker to stop."""
    wait: wire.Span | None = None
    """With `running`: how long to wait until the message has ended."""


class RuleQuery(Chosen, kw_only=True):
    """The messages to move; all conditions that are given must hold."""

    group: Name
    limit: Annotated[int, Meta(ge=1, le=BULK)] = BULK
    """How many at a time; with `undo` always 500."""


@route(
    "edit",
    "PATCH",
    MESSAGE,
    "change",
    {200: Outcome},
    takes=given.Changed,
    headers=_IF_MATCH,
    problems=(404, 409, 412, 507),
)
async def edit(call: ApiCall) -> Answer:
    """Change fields of a message.

    Body, options, headers, the rule by which it repeats, its window, or when it is due; all else
    stays, as do its attempts and failures. The due time of a dead letter cannot be changed.
    """
    content = await given.one_of(call, given.Changed)
    check_fields(given.most_header_fields(content.headers))
    options: dict[str, Any] = {name: getattr(content, name) for name in EDITED}
    if content.repeat is not UNSET:
        options["repeat"] = None if content.repeat is None else content.repeat.rule
    if content.window is not UNSET:
        options["window"] = None if content.window is None else content.window.window
    options["headers"] = given.headers_of(content.headers) if bytes(content.headers) else UNSET
    options |= {
        "body": await given.body_of(call, content),
        "delay": content.delay,
        "decoded": True,
    }
    id = check_name(call.request.part("id"))
    date = content.date(repeat=content.repeat is not UNSET, window=content.window is not UNSET)
    options["at"] = content.new_due(date)
    seen = await _seen(call)
    version = None if seen is None else seen.version
    if date is None:
        command, outcome = await call.carry_out(
            edited(call.arguments, id, if_version=version, **options)
        )
    elif seen is None:
        command = call.arguments.edit([id], if_version=None, **options)
        outcome = await call.carry_out(dating(command, date))
    else:
        undated = call.arguments.edit([id], if_version=version, **options)
        dated = with_new_date(undated, seen, date)
        assert isinstance(dated, Edit)  # as the command is
        command = dated
        (outcome,) = (await call.ask(Outcomes, command)).outcomes
    answer = given.changed(outcome, conditional=seen is not None)
    if seen is None:
        return answer
    version = _version_after(seen, command, outcome.due or 0)
    return answer._replace(headers={"etag": given.tag_of(version)})


def _version_after(seen: Message, edit: Edit, due: int) -> str:
    """Return the version that a message has after an edit that makes it due at `due`."""
    message = seen.as_edited()
    changes = edit.options
    if edit.data is not UNSET:
        changes |= {"data": edit.data, "json": edit.json}
    has_new_due = edit.at is not None or edit.delay is not None
    edited = msgspec.structs.replace(message, **changes)
    return version_of(edited, due if has_new_due else message.due)


@route(
    "cancel",
    "DELETE",
    MESSAGE,
    "change",
    {200: Outcome, 202: Outcome},
    headers=_IF_MATCH,
    problems=(404, 409, 412),
)
async def cancel(call: ApiCall, query: CancelOneQuery) -> Answer:
    """Cancel a message.

    200: it is cancelled for good. 409 names the holder of the message, or how it has ended. With
    the state "ending" it is the last run of a message that repeats: no other follows.

    With `running`, the worker that holds the message is asked to stop. 202: it is stopping, and
    may still ack the message; any other end counts as cancelled. With `wait` the server answers
    as soon as the message has ended: 200 if it is cancelled, 409 if it was acked after all.
    """
    id = check_name(call.request.part("id"))
    wait = None if query.wait is None else milliseconds(wire.span(query.wait), "wait") / 1000
    check_running(query.running, wait, id, undo=False, within=None)
    command = call.arguments.cancel([id], None, running=query.running)
    _seen, command = await _only_if(call, command)
    (outcome,) = (await call.ask(Outcomes, command)).outcomes
    if outcome.state != "stopping":
        why = "it repeats no longer" if outcome.state == "ending" else "nothing was changed"
        return given.changed(outcome, conditional=command.if_version is not None, why=why)
    if not wait:
        return given.changed(outcome)
    watch = History(command.queue, id, watch=True)
    try:
        reply = await call.wait(lambda: call.service.wait(watch, wait))
    except Closed:  # the server stops: the client asks another one
        return Answer(202, outcome, {"connection": "close"})
    steps = after_stop(command, outcome, expect(Ends, reply))
    return given.changed(await arun_steps(steps, partial(call.ask, Outcomes)))


@route("rescheduleWhere", "PATCH", f"{QUEUE}/messages", "change", problems=(507,))
async def reschedule_where(
    call: ApiCall, content: given.RescheduleRequest, query: RuleQuery
) -> undoing.MovedOut:
    """Reschedule a group.

    One request moves up to 1,000 messages; repeat with the `cursor` while there is one.
    """
    date = content.date(undo=query.undo)
    command = call.arguments.reschedule([], content.delay, content.new_due(date), None)
    if query.dry_run:
        all_of_group = call.arguments.scan(None, *query.rule, BULK)
        with call.visit.slowly():
            return undoing.MovedOut(await call.carry_out(look_at_reschedule(all_of_group)))
    if query.undo:
        bulk = bulk_of(command, call.arguments.where(*query.rule))
        part = await undoing.change(call, bulk, query.cursor)
        assert isinstance(part.undo, str)
        return undoing.MovedOut(part.count, part.cursor or None, part.undo)
    scan = call.arguments.scan(None, *query.rule, query.limit)
    page = await call.ask(Page, msgspec.structs.replace(scan, cursor=query.cursor))
    count = 0
    if date is not None:
        count = await call.carry_out(dating_page(command, page.messages, date))
    elif ids := movable(page.messages):
        move = msgspec.structs.replace(command, ids=ids)
        outcomes = (await call.ask(Outcomes, move)).outcomes
        count = sum(1 for outcome in outcomes if outcome)
    return undoing.MovedOut(count, page.cursor)


@route("cancelWhere", "DELETE", f"{QUEUE}/messages", "change", problems=(507,))
async def cancel_where(call: ApiCall, query: CancelQuery) -> CancelledOut:
    """Cancel a group or a range of time.

    Up to 1,000 at a time; repeat while `more` is true. With `undo` up to 500; repeat with the
    `cursor`. With `running`, the workers of those that are leased are asked to stop.
    """
    check_running(query.running, None, None, query.undo, within=None)
    command = call.arguments.cancel_where(*query.rule, query.dry_run, running=query.running)
    if query.undo and not query.dry_run:
        part = await undoing.change(call, bulk_of(command), query.cursor)
        return CancelledOut(**msgspec.structs.asdict(part))
    affected = await call.ask(Affected, command)
    return CancelledOut(count=affected.count, more=affected.more, stopping=affected.stopping)


async def _only_if(call: ApiCall, command: Cancel) -> tuple[Message | None, Cancel]:
    """Return the message that the caller saw, and the command with its version as the condition.

    Without an `if-match` that names a version: `None`, and the command unchanged.
    """
    message = await _seen(call)
    if message is None:
        return None, command
    return message, msgspec.structs.replace(command, if_version=message.version)


async def _seen(call: ApiCall) -> Message | None:
    """Return the message that the caller saw, by an `if-match` that names a version."""
    if_match = call.request.header("if-match")
    if if_match is None or if_match.strip() == "*":
        return None
    return await given.chosen(call, if_match)


dead_letters = Routes("dead letters")


class DeadQuery(wire.RequestModel):
    """The page of dead letters."""

    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


@dead_letters("listDead", "GET", f"{QUEUE}/dead", "read")
async def list_dead(call: ApiCall, query: DeadQuery) -> wire.Messages:
    """List dead letters."""
    scan = Scan(call.arguments.queue, "dead", cursor=query.cursor, limit=query.limit)
    return await call.page(scan)


@dead_letters("revive", "POST", f"{QUEUE}/revive", "admin", problems=(507,))
async def revive(call: ApiCall, content: undoing.UndoableRevive) -> undoing.RevivedOut:
    """Deliver dead letters again."""
    named = call.arguments.revive(content.ids or [], content.delay)
    if content.dry_run:
        count = await call.carry_out(look_at_dead(call.arguments.queue, content.ids))
        return undoing.RevivedOut(count=count)
    if content.undo:
        bulk = bulk_of(named, by_id=content.ids is not None)
        part = await undoing.change(call, bulk, content.cursor)
        return undoing.RevivedOut(
            count=part.count, more=part.more, undo=part.undo, cursor=part.cursor
        )
    if content.ids is None:
        named = msgspec.structs.replace(named, ids=await _oldest_dead(call))
    reply = await call.ask(Outcomes, named)
    return undoing.RevivedOut(outcomes=reply.outcomes)


async def _oldest_dead(call: ApiCall) -> list[str]:
    """Return the ids of the oldest dead letters, as many as a request may name."""
    page = await call.ask(Page, Scan(call.arguments.queue, "dead", limit=MAX_HTTP_IDS))
    return [message.id for message in page.messages]
