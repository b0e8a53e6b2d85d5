"""Live events: what has become claimable, and how many messages are where, as it changes."""

import asyncio
from typing import Any

import msgspec

from bide.model.commands import Count
from bide.model.moments import milliseconds
from bide.model.replies import Counts
from bide.server import wire
from bide.server.operation import Answer, Call, Operation
from bide.server.problem import Problem
from bide.server.receiving import unless_gone

__all__ = ["EVENTS", "KIND"]

KIND = "text/event-stream"

ALIVE = 15.0
"""After so many seconds without an event a comment is sent, so that nobody cuts the line."""


class EventsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to hear of."""

    counts: wire.Span = 1
    """How often at most to tell the counts of queues that have changed; 0: not at all."""


class Hint(msgspec.Struct):
    """Something in a queue can be claimed."""

    queue: str
    wake_in: int
    """In how many milliseconds; 0: now."""


class CountsOf(msgspec.Struct):
    """How many messages of a queue are where."""

    queue: str
    counts: Counts


async def events(call: Call) -> Answer | None:
    """Tell what happens, until the client has heard enough."""
    every = milliseconds(wire.span(call.query(EventsQuery).counts), "counts") / 1000
    if every and not call.caller.may("read"):
        raise Problem("forbidden", "the token has no scope 'read', which counts need; ask for 0")
    await call.send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [
                (b"content-type", KIND.encode()),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
            ],
        }
    )
    await unless_gone(call.receive, _stream(call, every), _nothing)
    return None


async def _nothing(result: None) -> None:
    pass


async def _stream(call: Call, every: float) -> None:
    service, clock = call.service, asyncio.get_running_loop().time
    listener = await service.hub.enter()
    known: dict[str, Counts] = {}
    look = clock() if every else float("inf")
    ending = asyncio.ensure_future(service.stopping.wait())
    try:
        await _send(call, ": bide\n\n")
        while not service.stopping.is_set():
            now = clock()
            if now >= look:
                await _counts(call, known)
                look = clock() + every
            pause = min(ALIVE, look - clock())
            news = asyncio.ensure_future(listener.news.wait())
            done, _ = await asyncio.wait(
                (news, ending), timeout=max(0.0, pause), return_when=asyncio.FIRST_COMPLETED
            )
            news.cancel()
            if news in done:
                await _hints(call, listener.take())
            elif not done and pause == ALIVE:
                await _send(call, ": alive\n\n")
        await call.send({"type": "http.response.body", "body": b""})
    finally:
        ending.cancel()
        service.hub.leave(listener)


async def _hints(call: Call, hints: dict[str, int]) -> None:
    now = call.service.clock.now()
    told = [
        _event("hint", Hint(own, max(0, wake - now)))
        for queue, wake in hints.items()
        if (own := call.caller.own(queue)) is not None
    ]
    if told:
        await _send(call, "".join(told))


async def _counts(call: Call, known: dict[str, Counts]) -> None:
    """Tell of the queues whose counts are not what they were."""
    told: list[str] = []
    for name in await call.service.names(call.caller):
        counts = await call.service.ask(Counts, Count(call.caller.full(name)))
        if known.get(name) != counts:
            known[name] = counts
            told.append(_event("counts", CountsOf(name, counts)))
    if told:
        await _send(call, "".join(told))


def _event(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {msgspec.json.encode(data).decode()}\n\n"


async def _send(call: Call, text: str) -> None:
    await call.send({"type": "http.response.body", "body": text.encode(), "more_body": True})


EVENTS = (
    Operation(
        "events", "GET", "/v1/events", "Hear of what happens", "", events, {200: bytes},
        query=EventsQuery, tag="events", kind=KIND,
        description="Server-sent events: `hint` (something in a queue can be claimed: `queue`, "
        "`wake_in` milliseconds) and `counts` (`queue`, `counts`), which need the scope `read`.",
    ),
)  # fmt: skip
