"""Dead letters: what nobody could handle."""

from typing import Annotated

from msgspec import UNSET, Meta

from bide.model.commands import Scan
from bide.model.limits import MAX_HTTP_IDS, MAX_HTTP_PAGE
from bide.model.replies import Outcomes, Page
from bide.queue.undoing import look_at_dead, reviving
from bide.server import wire
from bide.server.call import Call
from bide.server.change_wire import RevivedOut, UndoableRevive
from bide.server.operation import QUEUE, Routes
from bide.server.routes.undoing import change

route = Routes("dead letters")


class DeadQuery(wire.Request):
    """Which page of dead letters."""

    limit: Annotated[int, Meta(ge=1, le=MAX_HTTP_PAGE)] = 100
    cursor: str | None = None


@route("listDead", "GET", f"{QUEUE}/dead", "read")
async def list_dead(call: Call, query: DeadQuery) -> wire.Messages:
    """List dead letters."""
    scan = Scan(call.arguments.queue, "dead", cursor=query.cursor, limit=query.limit)
    return call.page(await call.ask(Page, scan))


@route("revive", "POST", f"{QUEUE}/revive", "admin", problems=(429, 507))
async def revive(call: Call, asked: UndoableRevive) -> RevivedOut:
    """Have dead letters delivered again."""
    ids = asked.ids
    bulk = reviving(call.arguments, ids, asked.delay)
    if asked.dry_run:
        count = await call.look(look_at_dead(call.arguments.queue, bulk.ids))
        return RevivedOut(count=count)
    if asked.undo:
        done = await change(call, bulk, asked.cursor)
        return RevivedOut(UNSET, done.count, done.more, done.undo, done.cursor)
    if ids is None:
        page = await call.ask(Page, Scan(call.arguments.queue, "dead", limit=MAX_HTTP_IDS))
        ids = [message.id for message in page.messages]
    command = call.arguments.revive(ids, asked.delay)
    return RevivedOut((await call.ask(Outcomes, command)).outcomes)
