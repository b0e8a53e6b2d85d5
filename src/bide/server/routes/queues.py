"""Queues: what there is, how many messages are where, and what is set."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from bide.model.commands import Configure, Count, Delete
from bide.model.replies import Affected, Counts, Deleted, Forecasted, Settings
from bide.queue.results import Audit, deleted
from bide.queue.undoing import bulk_of, purge_part
from bide.server import wire
from bide.server.call import Call
from bide.server.change_wire import UndoableOut, UndoablePurge
from bide.server.operation import QUEUE, Answer, Routes
from bide.server.problem import Problem
from bide.server.queue_wire import ConfigureRequest, CountsOut, SettingsOut
from bide.server.routes.undoing import change

route = Routes("queues")


class QueueNames(msgspec.Struct):
    """The queues that there are."""

    queues: list[str]


class AuditOut(msgspec.Struct):
    """Whether everything that was put is accounted for."""

    balanced: bool
    problems: list[str]
    """What does not add up, in words."""
    counts: CountsOut


class ForecastOut(msgspec.Struct):
    """How many messages fall due when."""

    start: int
    """Now, by the store's clock, in Unix milliseconds."""
    bucket: int
    """The length of a bucket, in milliseconds."""
    overdue: int
    """Due already."""
    counts: list[int]
    """Due in each bucket."""
    later: int
    """Due after the last bucket."""


class PrefixQuery(wire.Request):
    """Which queues to list."""

    prefix: Annotated[str, Meta(max_length=128, pattern="^[A-Za-z0-9_.:-]*$")] = ""
    """What their names begin with."""


class ForecastQuery(wire.Request):
    """How far to look ahead, and how finely."""

    bucket: wire.Span = "1m"
    horizon: wire.Span = "1h"


@route("listQueues", "GET", "/v1/queues", "read")
async def list_queues(call: Call, query: PrefixQuery) -> QueueNames:
    """List the queues.

    Those that bide keeps for itself, such as `bide:move`, only where the prefix asks for them:
    `bide:`.
    """
    return QueueNames(await call.service.names(call.caller, query.prefix))


@route("counts", "GET", QUEUE, "read")
async def counts(call: Call) -> CountsOut:
    """Count the messages in each state.

    And what has become of all others since the queue exists.
    """
    return CountsOut.of(await call.ask(Counts, Count(call.arguments.queue)))


@route("configure", "PATCH", QUEUE, "admin")
async def configure(call: Call, asked: ConfigureRequest) -> SettingsOut:
    """Pause, resume, limit, or set what is remembered."""
    command = call.arguments.settings(
        keep=asked.keep, history=asked.history, result_ttl=asked.result_ttl, limit=asked.limit,
        rate=asked.rate, group_limit=asked.group_limit, group_rate=asked.group_rate,
    )  # fmt: skip
    return await _configure(call, msgspec.structs.replace(command, paused=asked.paused))


@route("pause", "POST", f"{QUEUE}/pause", "admin")
async def pause(call: Call, asked: wire.Empty) -> SettingsOut:
    """Let nobody claim."""
    return await _configure(call, call.arguments.configure(paused=True))


@route("resume", "POST", f"{QUEUE}/resume", "admin")
async def resume(call: Call, asked: wire.Empty) -> SettingsOut:
    """Let messages be claimed again."""
    return await _configure(call, call.arguments.configure(paused=False))


@route("purge", "POST", f"{QUEUE}/purge", "admin", problems=(429, 507))
async def purge(call: Call, asked: UndoablePurge) -> UndoableOut:
    """Delete messages of a state.

    Up to 1,000 at a time; repeat while `more` is true. With `undo` up to 500; repeat with the
    `cursor`, as with `dry_run`, which only counts: add up.
    """
    command = call.arguments.purge(asked.state, wire.moment(asked.before, "before"))
    if asked.dry_run:
        part = await call.look(purge_part(command, asked.cursor))
        following = UNSET if part.cursor is None else part.cursor
        more = part.cursor is not None
        return UndoableOut(count=part.messages, more=more, cursor=following)
    if asked.undo:
        return await change(call, bulk_of(command), asked.cursor)
    found = await call.ask(Affected, command)
    return UndoableOut(count=found.count, more=found.more)


@route("deleteQueue", "DELETE", QUEUE, "admin", {204: None}, problems=(404, 409))
async def delete(call: Call) -> Answer:
    """Delete an empty queue.

    With its settings and counters. A later put makes it again.
    """
    reply = await call.ask(Deleted, Delete(call.arguments.queue))
    if not deleted(call.queue, reply):
        raise Problem("not-found", f"there is no queue {call.queue!r}")
    return Answer(204)


async def _configure(call: Call, command: Configure) -> SettingsOut:
    return SettingsOut.of(await call.ask(Settings, command))


@route("forecast", "GET", f"{QUEUE}/forecast", "read")
async def forecast(call: Call, query: ForecastQuery) -> ForecastOut:
    """Tell how many messages fall due when."""
    command = call.arguments.forecast(wire.span(query.bucket), wire.span(query.horizon))
    found = await call.ask(Forecasted, command)
    return ForecastOut(found.start, command.bucket, found.overdue, found.buckets, found.later)


@route("audit", "GET", f"{QUEUE}/audit", "read")
async def audit(call: Call) -> AuditOut:
    """Check that every message is accounted for."""
    found = await call.ask(Counts, Count(call.arguments.queue, recount=True))
    checked = Audit.of(call.queue, found)
    return AuditOut(bool(checked), checked.problems, CountsOut.of(found))
