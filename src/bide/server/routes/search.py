"""Search the messages of all queues of a caller."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bide.lane.steps import arun_steps
from bide.model.message import Name, State
from bide.queue.search import Query, query_of, search_steps
from bide.server import wire
from bide.server.call import Call
from bide.server.operation import Routes

route = Routes("queues")

MOST_READ = 10_000
"""How many messages one request reads at most."""


class SearchQuery(wire.Selection):
    """What to search for; all that is given must hold."""

    queue: Annotated[str, Meta(max_length=128, pattern="^[A-Za-z0-9_.:-]*$")] = ""
    """How the names of the queues begin."""
    id: Name | None = None
    """How the id begins."""
    state: State | None = None
    error: str | None = None
    """A text in the reason of the last failure."""
    header: str | None = None
    """NAME, or NAME=TEXT for a header that contains a text; needs the right `bodies`."""
    body: str | None = None
    """A text in the body; needs the right `bodies`."""
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
    """How many there are to read; missing if an order of the store leads to those that match."""
    cursor: str | None = None
    """Give it with the next request; everything was searched when it is missing."""


@route("search", "GET", "/v1/search", "read", problems=(429,))
async def search(call: Call, query: SearchQuery) -> SearchOut:
    """Search the messages of all queues.

    By group, by a range of due times of delayed messages and, where the store has ids in order,
    by the beginning of an id, those that match are found at once. Anything else reads message
    by message, up to 10,000 for a request; repeat with the `cursor` while there is one.
    """
    given = {name: getattr(query, name) for name in Query.__struct_fields__}
    given["group"], given["after"], given["before"] = query.rule
    wanted = query_of(**given)
    caller, service = call.caller, call.service
    if wanted.reads_bodies:
        caller.need("bodies")
    names = [(name, caller.full(name)) for name in await service.names(caller, query.queue)]
    steps = search_steps(
        names, wanted, query.cursor, query.limit, query.read,
        ids_ordered=service.lane.capabilities.ids_ordered,
    )  # fmt: skip
    with call.counted(service.slow_calls):
        page = await arun_steps(steps, service.execute)
    bodies = caller.may("bodies")
    own = {full: name for name, full in names}
    found = [wire.shown(one, own[one.queue], bodies=bodies) for one in page.messages]
    return SearchOut(found, page.searched, page.total, page.cursor)
