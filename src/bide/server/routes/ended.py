"""The messages of a queue that have ended."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bide.model.ended import Attempt, Ended, Ending
from bide.model.limits import MAX_HTTP_PAGE
from bide.model.replies import EndedPage
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.operation import QUEUE, Routes

route = Routes("messages")


class EndedQuery(wire.RequestModel):
    """The ended messages to list."""

    how: Ending | None = None
    """Only those whose last end was this."""
    after: wire.When | None = None
    """Only those whose last end was at this time or later."""
    before: wire.When | None = None
    """Only those whose last end was before this time."""
    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


class EndedMessageOut(msgspec.Struct):
    """A message that has ended, and its last end. Times are Unix milliseconds."""

    id: str
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

    @classmethod
    def of(cls, ended: Ended) -> "EndedMessageOut":
        """Convert an entry of a list."""
        return cls(
            id=ended.id,
            how=ended.how,
            moment=ended.moment,
            by=ended.by,
            due=ended.due,
            attempt=ended.attempt,
            attempts=ended.attempts,
        )


class EndedMessagesOut(msgspec.Struct, omit_defaults=True):
    """Some messages that have ended, and where the next page begins."""

    messages: list[EndedMessageOut]
    cursor: str | None = None
    """Send it with the next request; if it is missing, there is no next page."""


@route("listEnded", "GET", f"{QUEUE}/ended", "read")
async def list_ended(call: ApiCall, query: EndedQuery) -> EndedMessagesOut:
    """List the messages that have ended.

    Each id once, with its last end, the oldest end first, for as long as the `history` of the queue
    says. A page may have few messages, or none, and a cursor: the server looks at so many ends at a
    time.
    """
    after, before = wire.moment(query.after, "after"), wire.moment(query.before, "before")
    command = call.arguments.list_ended(query.how, after, before, query.limit)
    page = await call.ask(EndedPage, msgspec.structs.replace(command, cursor=query.cursor))
    return EndedMessagesOut(list(map(EndedMessageOut.of, page.messages)), page.cursor)
