"""What has happened in a queue, minute by minute or hour by hour."""

from typing import Literal

import msgspec

from bide.model.past import PastSlot, past_command
from bide.server import wire
from bide.server.access.rights import PAST_PATH
from bide.server.call import ApiCall
from bide.server.operation import Routes

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
    queue = call.arguments.queue  # its name in the store
    reply = await call.visit.past(
        past_command(queue, wire.span(query.lasting), query.by, name="for")
    )
    return PastOut(reply.start, reply.slot, reply.slots, reply.why_empty)
