"""Search over all queues: by id, by group, by due time."""

import asyncio
from itertools import islice

from bide.dashboard.reading import READ_BYTES
from bide.dashboard.view import Page, View
from bide.model.commands import Command, Find, Scan, Where
from bide.model.identity import check_name
from bide.model.message import Message
from bide.model.replies import Found
from bide.model.replies import Page as Scanned

__all__ = ["search"]

ROWS = 100
"""How many messages are listed."""

EACH = 50
"""How many messages are read of each queue."""

LOOKED = 200
"""In how many queues is looked."""


async def search(view: View) -> Page:
    """Return the page of a search; without a question, its form alone."""
    request = view.request
    id, group = request.get("q"), request.get("group")
    after, before = request.moment("after"), request.moment("before")
    names = await view.store.names(view.access)
    asked = bool(id or group or after is not None or before is not None)
    found: list[Message] = []
    more = False
    if asked:
        looked = names[:LOOKED]
        found, more = await _look(view, looked, id, group, after, before)
        found.sort(key=lambda message: message.due)
    return Page("search.html", {
        "id": id, "group": group, "after": request.get("after"), "before": request.get("before"),
        "asked": asked, "found": found[:ROWS], "more": more or len(found) > ROWS,
        "left": max(0, len(names) - LOOKED), "looked": min(len(names), LOOKED),
    })  # fmt: skip


async def _look(
    view: View, names: list[str], id: str, group: str, after: int | None, before: int | None
) -> tuple[list[Message], bool]:
    """Return what is found in some queues, and whether there is more."""
    commands: list[Command] = []
    for name in names:
        if id:
            commands.append(Find(name, [check_name(id)]))
        elif group:
            where = Where(check_name(group, "group"))
            commands.append(Scan(name, None, where, limit=EACH, max_bytes=READ_BYTES))
        else:
            where = Where(after=after, before=before)
            commands.append(Scan(name, "delayed", where, limit=EACH, max_bytes=READ_BYTES))
    found: list[Message] = []
    more = False
    rest = iter(commands)
    while part := list(islice(rest, 20)):
        for reply in await asyncio.gather(*[view.store.lane.acall(one) for one in part]):
            assert isinstance(reply, (Found, Scanned))
            there = [one for one in reply.messages if one is not None]
            found += [one for one in there if _fits(one, after, before)]
            more = more or (isinstance(reply, Scanned) and reply.cursor is not None)
    return found, more


def _fits(message: Message, after: int | None, before: int | None) -> bool:
    return (after is None or message.due >= after) and (before is None or message.due < before)
