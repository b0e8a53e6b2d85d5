"""What queues remember of messages that have ended: history and results."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from bide.model.ended import PENDING, Attempt, End, Ending
from bide.model.errors import Closed
from bide.model.message import State
from bide.model.replies import Ends, expect
from bide.model.times import milliseconds
from bide.server import wire
from bide.server.call import Call
from bide.server.operation import MESSAGE, Answer, Routes
from bide.server.problem import Problem
from bide.server.receiving import unless_gone

route = Routes("messages")


class EndOut(msgspec.Struct, omit_defaults=True):
    """How a message ended. Times are Unix milliseconds."""

    how: Ending
    moment: int
    """When it ended."""
    by: str | None
    """Who ended it: the holder of its lease, or who gave the command; `null`: time did."""
    due: int
    attempt: int
    """How often it was delivered."""
    attempts: list[Attempt]
    """The last 20 that failed, and the one that was acked."""
    result: msgspec.Raw | UnsetType = UNSET
    """The result of its handler, if the queue remembers it and the token may see bodies."""

    @classmethod
    def of(cls, end: End, *, bodies: bool) -> "EndOut":
        """Return an end as the caller may see it."""
        shown = UNSET if end.result is None or not bodies else msgspec.Raw(end.result)
        return cls(end.how, end.moment, end.by, end.due, end.attempt, end.attempts, shown)


class HistoryOut(msgspec.Struct):
    """What is known of a message."""

    id: str
    state: State | None
    """Where it is now; `null`: it is not in the queue."""
    ends: list[EndOut]
    """How messages of this id have ended, the newest first."""


class ResultOut(msgspec.Struct, omit_defaults=True):
    """What became of a message."""

    id: str
    how: Ending | None
    """How it ended; `null`: it has not."""
    state: State | None = None
    """Where it is, while it has not ended."""
    by: str | None = None
    """Who ended it."""
    error: str | None = None
    """Why the last attempt failed, if it died."""
    result: Any = None
    """The result of its handler, if it was acked with one."""


class ResultQuery(wire.Request):
    """How long to wait for a result."""

    wait: wire.Span = "0s"


@route("history", "GET", f"{MESSAGE}/history", "read", problems=(404,))
async def history(call: Call) -> HistoryOut:
    """Tell how messages with an id have ended.

    Acked, cancelled, expired, dead or purged; when, by whom, and each attempt. For as long as
    the queue's `history` says.
    """
    command = call.arguments.history(call.part("id"))
    found = await call.ask(Ends, command)
    if found.state is None and not found.ends:
        raise _unknown(call)
    bodies = call.caller.may("bodies")
    ends = [EndOut.of(end, bodies=bodies) for end in found.ends]
    return HistoryOut(command.id, found.state, ends)


@route(
    "result", "GET", f"{MESSAGE}/result", "bodies", {200: ResultOut, 202: ResultOut},
    problems=(404, 429),
)  # fmt: skip
async def result(call: Call, query: ResultQuery) -> Answer:
    """Tell what became of a message, and its result.

    200 once it has ended, in whatever way: look at `how`. 202 while it has not; with `wait` the
    answer comes as soon as it ends. For as long as the queue's `result_ttl` says.
    """
    wait = milliseconds(wire.span(query.wait), "wait") / 1000
    command = call.arguments.history(call.part("id"), watch=wait > 0)
    if not wait:
        return _told(call, await call.ask(Ends, command))
    try:
        with call.counted(call.service.waits):
            refused = call.service.admission.until_refused(call.token)
            found = await unless_gone(call.receive, call.service.wait(command, wait), refused)
    except Closed:  # the server stops, and whoever waits is to ask another one
        return Answer(202, ResultOut(command.id, None), {"connection": "close"})
    await call.service.admission.caller(call.token)  # it may have been revoked meanwhile
    return _told(call, expect(Ends, found))


def _told(call: Call, found: Ends) -> Answer:
    id = call.part("id")
    if found.state in PENDING:
        return Answer(202, ResultOut(id, None, found.state))
    if not found.ends:
        raise _unknown(call)
    end = found.ends[0]
    error = end.failures[-1].reason if end.how == "dead" and end.failures else None
    value = None if end.result is None else msgspec.Raw(end.result)
    return Answer(200, ResultOut(id, end.how, None, end.by, error, value))


def _unknown(call: Call) -> Problem:
    return Problem(
        "not-found",
        f"there is no message {call.part('id')!r} in this queue, and none is remembered; a queue "
        "remembers ended messages for as long as its `history` and `result_ttl` say",
    )
