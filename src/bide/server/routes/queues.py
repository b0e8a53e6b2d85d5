"""Queues: names, counts, settings, forecasts, audits and search."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from bide.lane.steps import arun_steps
from bide.model.commands import Count, Delete
from bide.model.message import Name, State
from bide.model.replies import Affected, Counts, Deleted, Forecasted, QueueSettings
from bide.model.undoing import bulk_of
from bide.queue.dry_run import purge_part
from bide.queue.repeating import counting_runs
from bide.queue.results import Audit, deleted
from bide.queue.search import PAGE_BYTES, Query, query_of, search_steps
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.operation import QUEUE, Answer, Routes
from bide.server.problem import Problem, invalid
from bide.server.routes.undoing import UndoableOut, UndoablePurge, change
from bide.server.wire import CountsOut, SettingsOut

route = Routes("queues")


class QueueNames(msgspec.Struct):
    """The names of the queues."""

    queues: list[str]


class AuditOut(msgspec.Struct):
    """Whether all messages that were put are accounted for."""

    balanced: bool
    problems: list[str]
    """The numbers that do not add up, in words."""
    counts: CountsOut


MOST_READ = 10_000
"""How many messages one request reads at most."""


class ForecastOut(msgspec.Struct):
    """How many messages are due in each bucket of time."""

    start: int
    """When the first bucket begins, in Unix milliseconds of the store's clock: now, or the
    beginning of this hour for buckets of an hour or more."""
    bucket: int
    """The length of a bucket, in milliseconds."""
    overdue: int
    """How many are due already."""
    counts: list[int]
    """How many are due in each bucket: from its beginning on, and before its end."""
    later: int
    """How many are due at the end of the last bucket, or after it."""


Pace = Annotated[
    float | str,
    Meta(
        description="A rate: messages per second, or a number per s, m, h or d.",
        examples=["5/s", "100/m", 0.5],
    ),
]


class ConfigureRequest(wire.RequestModel):
    """The settings of a queue to change."""

    paused: bool | None = None
    keep: wire.Span | None = None
    """How long acked messages and their ids are remembered."""
    history: wire.Span | None = None
    """How long the queue remembers how messages ended; "0s": not at all."""
    result_ttl: wire.Span | None = None
    """How long the queue remembers the results of messages; "0s": not at all."""
    limit: int | None = None
    """How many messages of the queue may be leased at a time; 0: no limit."""
    rate: Pace | None = None
    """How many messages of the queue may be delivered; 0: no limit."""
    group_limit: int | None = None
    """`limit` for each group; messages without a group are not bound by it."""
    group_rate: Pace | None = None
    """`rate` for each group; messages without a group are not bound by it."""
    overdue: str | None = None
    """What becomes of messages that are overdue after a gap without workers, such as "drop 6h,
    spread 10m"; "": they are delivered as they are."""


class QueuePauseRequest(wire.RequestModel):
    """When the pause ends by itself; without both, it ends when the queue is resumed."""

    until: wire.When | None = None
    lasting: wire.Span | None = msgspec.field(default=None, name="for")
    """The time from now, instead of `until`."""


class PrefixQuery(wire.RequestModel):
    """The queues to list."""

    prefix: wire.Prefix = ""
    """The prefix of their names."""


class ForecastQuery(wire.RequestModel):
    """The length of the buckets, and of all of them together."""

    bucket: wire.Span = "1m"
    horizon: wire.Span = "1h"
    repeats: bool = False
    """Count all runs of messages that repeat, not the next ones only; that reads the messages that
    wait. Of more than 10,000 messages and runs it is refused."""


@route("listQueues", "GET", "/v1/queues", "read")
async def list_queues(call: ApiCall, query: PrefixQuery) -> QueueNames:
    """List the queues.

    Those that bide uses itself, such as `bide:move`, are listed only with the prefix `bide:`.
    """
    return QueueNames(await call.names(query.prefix))


@route("counts", "GET", QUEUE, "read")
async def counts(call: ApiCall) -> CountsOut:
    """Count the messages in each state.

    Also how the others have ended since the queue was created.
    """
    return CountsOut.of(await call.ask(Counts, Count(call.arguments.queue)))


@route("configure", "PATCH", QUEUE, "admin", problems=(507,))
async def configure(call: ApiCall, content: ConfigureRequest) -> SettingsOut:
    """Change the settings of a queue.

    Pause or resume it, limit it, set how long it remembers messages, or its plan for what is
    overdue.
    """
    command = call.arguments.settings(**msgspec.structs.asdict(content))
    return SettingsOut.of(await call.ask(QueueSettings, command))


@route("pause", "POST", f"{QUEUE}/pause", "admin", problems=(507,))
async def pause(call: ApiCall, content: QueuePauseRequest) -> SettingsOut:
    """Stop all claims, until the queue is resumed or the pause ends."""
    if content.until is not None and content.lasting is not None:
        raise invalid("for", "for and until cannot be combined; give one")
    command = call.arguments.pause(wire.moment(content.until, "until"), content.lasting)
    return SettingsOut.of(await call.ask(QueueSettings, command))


@route("resume", "POST", f"{QUEUE}/resume", "admin", problems=(507,))
async def resume(call: ApiCall, content: wire.EmptyRequest) -> SettingsOut:
    """Allow claims again."""
    return SettingsOut.of(await call.ask(QueueSettings, call.arguments.configure(paused=False)))


@route("purge", "POST", f"{QUEUE}/purge", "admin", problems=(507,))
async def purge(call: ApiCall, content: UndoablePurge) -> UndoableOut:
    """Delete messages of a state.

    Up to 1,000 at a time; repeat while `more` is true. With `undo` up to 500; repeat with the
    `cursor`. `dry_run` only counts: repeat with the `cursor` and add up the counts.
    """
    command = call.arguments.purge(content.state, wire.moment(content.before, "before"))
    if content.dry_run:
        count, cursor = await call.carry_out(purge_part(command, content.cursor))
        following = UNSET if cursor is None else cursor
        return UndoableOut(count=count, more=cursor is not None, cursor=following)
    if content.undo:
        return await change(call, bulk_of(command), content.cursor)
    affected = await call.ask(Affected, command)
    return UndoableOut(count=affected.count, more=affected.more)


@route("deleteQueue", "DELETE", QUEUE, "admin", {204: None}, problems=(404, 409))
async def delete(call: ApiCall) -> Answer:
    """Delete an empty queue.

    Its settings and counters go too. A later put creates it again.
    """
    reply = await call.ask(Deleted, Delete(call.arguments.queue))
    if not deleted(call.request.queue, reply):
        raise Problem("not-found", f"there is no queue {call.request.queue!r}")
    return Answer(204)


@route("forecast", "GET", f"{QUEUE}/forecast", "read")
async def forecast(call: ApiCall, query: ForecastQuery) -> ForecastOut:
    """Count the messages that are due in each bucket of time."""
    command = call.arguments.forecast(wire.span(query.bucket), wire.span(query.horizon))
    if query.repeats:
        await call.visit.hold(PAGE_BYTES)
        with call.visit.slowly():
            steps = counting_runs(command, call.arguments.now(), MOST_READ)
            reply = await call.carry_out(steps)
    else:
        reply = await call.ask(Forecasted, command)
    return ForecastOut(reply.start, command.bucket, reply.overdue, reply.buckets, reply.later)


@route("audit", "GET", f"{QUEUE}/audit", "read")
async def audit(call: ApiCall) -> AuditOut:
    """Check that all messages are accounted for."""
    counts = await call.ask(Counts, Count(call.arguments.queue, recount=True))
    checked = Audit.of(call.request.queue, counts)
    return AuditOut(bool(checked), checked.problems, CountsOut.of(counts))


class SearchQuery(wire.Selection):
    """What to search for; all conditions that are given must hold."""

    queue: wire.Prefix = ""
    """The prefix of the names of the queues."""
    id: Name | None = None
    """The prefix of the id."""
    state: State | None = None
    error: str | None = None
    """A text in the reason of the last failure."""
    header: str | None = None
    """NAME, or NAME=TEXT for a header that contains a text; needs the right `bodies`."""
    body: str | None = None
    """A text in the body; needs the right `bodies`."""
    repeats: bool = False
    """Only messages that repeat."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    read: Annotated[int, Meta(ge=1, le=MOST_READ)] = MOST_READ
    """How many messages are read at most."""
    cursor: str | None = None


class SearchOut(msgspec.Struct, omit_defaults=True):
    """What was found so far."""

    messages: list[wire.MessageOut]
    searched: int
    """How many messages were read, for this page and those before it."""
    total: int | None = None
    """How many there are to read; missing if an index of the store finds those that match."""
    cursor: str | None = None
    """Send it with the next request; if it is missing, everything was searched."""


@route("search", "GET", "/v1/search", "read")
async def search(call: ApiCall, query: SearchQuery) -> SearchOut:
    """Search the messages of all queues.

    The store has an index for groups, for due times of delayed messages and, if it orders ids,
    for prefixes of ids. Any other search reads message by message, up to 10,000 per request;
    repeat with the `cursor` while there is one.
    """
    conditions = {name: getattr(query, name) for name in Query.__struct_fields__}
    conditions["group"], conditions["after"], conditions["before"] = query.rule
    question = query_of(**conditions)
    caller = call.caller
    if question.reads_bodies:
        caller.need("bodies")
    names = [(name, caller.full(name)) for name in await call.names(query.queue)]
    steps = search_steps(
        names,
        question,
        query.cursor,
        query.limit,
        query.read,
        ids_ordered=call.service.lane.capabilities.ids_ordered,
    )
    await call.visit.hold(PAGE_BYTES)
    with call.visit.slowly():
        page = await arun_steps(steps, call.visit.execute)
    bodies = caller.may("bodies")
    own_names = {full: name for name, full in names}
    messages = await call.convert(
        lambda message: wire.message_out(message, own_names[message.queue], bodies=bodies),
        page.messages,
    )
    return SearchOut(messages, page.searched, page.total, page.cursor)
