"""What has happened in a queue, minute by minute or hour by hour."""

from typing import Literal

import msgspec

from bide.lane.steps import arun_steps
from bide.model.errors import AccessDenied
from bide.model.past import Past, PastCommand, PastSlot, past_command
from bide.observing.past import reading_past
from bide.server import wire
from bide.server.access.rights import PAST_PATH, Caller
from bide.server.call import ApiCall
from bide.server.operation import Routes
from bide.server.service import Service

route = Routes("queues")


class PastQuery(wire.RequestModel):
    """How far to look back, and how much time one slot is."""

    lasting: wire.Span = msgspec.field(default="24h", name="for")
    """How far to look back: up to 24 hours by minutes, 30 days by hours."""
    by: Literal["minute", "hour"] | None = None
    """The length of a slot; without it, minutes for three hours or less, else hours."""


class PastOut(msgspec.Struct):
    """What happened in each slot of time."""

    start: int
    """When the first slot begins, in Unix milliseconds."""
    slot: int
    """The length of a slot, in milliseconds."""
    slots: list[PastSlot | None]
    """The slots, the oldest first; null: nobody has recorded it."""
    reason: str | None
    """Why no slot has figures; null: some have."""


@route("past", "GET", PAST_PATH, "read")
async def past(call: ApiCall, query: PastQuery) -> PastOut:
    """Show what has happened in a queue.

    How many messages were put, done, failed, cancelled, expired and died in each minute of the last
    24 hours, or in each hour of the last 30 days, and how late deliveries were. Workers and servers
    record it once a minute.
    """
    queue = call.request.queue
    command = past_command(queue, wire.span(query.lasting), query.by, name="for")
    with call.visit.slowly():
        reply = await read_past(call.service, call.caller, call.arguments.queue, command)
    return PastOut(reply.start, reply.slot, reply.slots, reply.why_empty)


async def read_past(service: Service, caller: Caller, queue: str, command: PastCommand) -> Past:
    """Return what has happened in queues of a caller.

    The record is about the queues of all callers, so the server reads it itself.

    Args:
        service: the service.
        caller: the caller.
        queue: the name in the store of the queue, or how those of several begin.
        command: which slots.

    Raises:
        AccessDenied: the caller may see some queues only, and the store is another server.
    """
    lane = service.lane
    if command.together and lane.capabilities.takes_back and not caller.of_all_queues:
        raise AccessDenied(
            f"the token is for the queues {', '.join(caller.queues)}; name one of them"
        )

    def is_wanted(name: str) -> bool:
        if not command.together:
            return name == queue
        return name.startswith(queue) and caller.own(name) is not None

    in_store = msgspec.structs.replace(command, queue=queue, actor=None)
    steps = reading_past(in_store, is_wanted, takes_back=lambda: lane.capabilities.takes_back)
    return await arun_steps(steps, lane.acall)
