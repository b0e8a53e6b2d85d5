"""Close groups, so that puts into them are refused, and open them again."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bide.model.commands import Cancel, Where
from bide.model.limits import MAX_HTTP_PAGE
from bide.model.message import Name
from bide.model.replies import Affected, ClosedGroup, GroupsClosed
from bide.queue.results import cursor_to, place_of
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.operation import QUEUE, Routes
from bide.server.problem import invalid
from bide.server.validate import check_has_groups

route = Routes("groups")


class CloseGroupRequest(wire.RequestModel):
    """The group to close."""

    group: Name
    keep: wire.Span = "1d"
    """For how long it is closed."""
    running: bool = False
    """Also ask the workers of leased messages to stop."""


class ReopenGroupRequest(wire.RequestModel):
    """The group to open."""

    group: Name


class GroupClosingOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A group that is closed now, and how many messages were cancelled."""

    group: str
    until: int
    """When it opens again, in Unix milliseconds."""
    count: int
    """How many messages this request has cancelled."""
    more: bool = False
    """Whether messages are left: repeat the request."""
    stopping: list[str] = msgspec.field(default_factory=list)
    """With `running`: the ids of the messages whose workers were asked to stop; they are not in
    the count."""


class ReopenedOut(msgspec.Struct):
    """Whether a group was closed."""

    group: str
    reopened: bool


class ClosedGroupsQuery(wire.RequestModel):
    """The page of closed groups."""

    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


class ClosedGroupsOut(msgspec.Struct):
    """A page of closed groups, those first that open first."""

    groups: list[ClosedGroup]
    cursor: str | None
    """The cursor of the next page; `null`: this is the last one."""


@route("closeGroup", "POST", f"{QUEUE}/close-group", "change", problems=(507,))
async def close_group(call: ApiCall, content: CloseGroupRequest) -> GroupClosingOut:
    """Close a group: cancel what waits in it, and refuse what is put into it.

    The group is closed by the first request, which cancels up to 1,000 messages; repeat it while
    `more` is true. To repeat it is safe. What would come back to wait in the group is cancelled.
    """
    check_has_groups(call.request.queue)
    command = call.arguments.close_group(content.group, content.keep)
    (closed,) = (await call.ask(GroupsClosed, command)).groups
    cancel = Cancel(
        command.queue, where=Where(closed.group), running=content.running, actor=command.actor
    )
    affected = await call.ask(Affected, cancel)
    return GroupClosingOut(
        group=closed.group,
        until=closed.until,
        count=affected.count,
        more=affected.more,
        stopping=affected.stopping,
    )


@route("reopenGroup", "POST", f"{QUEUE}/reopen-group", "change")
async def reopen_group(call: ApiCall, content: ReopenGroupRequest) -> ReopenedOut:
    """Open a closed group again."""
    reply = await call.ask(GroupsClosed, call.arguments.reopen_group(content.group))
    return ReopenedOut(content.group, reopened=bool(reply.groups))


@route("closedGroups", "GET", f"{QUEUE}/closed-groups", "read")
async def closed_groups(call: ApiCall, query: ClosedGroupsQuery) -> ClosedGroupsOut:
    """List the closed groups."""
    after = None
    if query.cursor is not None and (after := place_of(query.cursor, ClosedGroup)) is None:
        raise invalid("cursor", "cursor is not one of this list; begin without a cursor")
    reply = await call.ask(GroupsClosed, call.arguments.closed_groups(after, query.limit))
    return ClosedGroupsOut(reply.groups, cursor_to(reply.groups[-1]) if reply.more else None)
