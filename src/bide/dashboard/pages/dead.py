"""The dead letters, grouped by their last error."""

import re
from collections.abc import AsyncIterator

import msgspec

from bide.dashboard.pages.queue import counts_of
from bide.dashboard.reading import FORECAST_EVERY, READ_BYTES, StoreReader
from bide.dashboard.view import Page, View
from bide.model.commands import Scan
from bide.model.message import Message
from bide.model.replies import Page as Scanned

READ_OF_EACH = 200
"""How many dead letters are read of each queue where several are shown."""

READ_OF_ONE = 2_000
"""How many are read of one queue."""

LONGEST = 160
"""How many characters of an error make its kind."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+")


class Group(msgspec.Struct, frozen=True):
    """Dead letters of a queue whose last errors are alike."""

    kind: str
    count: int
    first: Message
    last: Message


async def dead(view: View) -> Page:
    """Return the page of the dead letters of one queue, or of each that has some."""
    named = view.request.get("queue")
    if named:
        queues = [view.queue()]
        total = {queues[0]: (await counts_of(view.store, queues[0])).sizes.dead}
        following = None
    else:
        glance = await view.store.glance(view.access, after=view.request.get("after"))
        counts = glance.sample.queues
        total = {name: counts[name].sizes.dead for name in glance.names if counts[name].sizes.dead}
        queues, following = list(total), glance.following
    most = READ_OF_ONE if named else READ_OF_EACH
    found = [(name, await _groups(view.store, name, most), total[name]) for name in queues]
    return Page("dead.html", {
        "named": named, "found": found, "most": most, "following": following,
    })  # fmt: skip


def error_kind(error: str | None) -> str:
    """Return what errors that differ in numbers alone have in common.

    Example:
        >>> error_kind("TimeoutError: no answer after 31 s\\nTraceback ...")
        'TimeoutError: no answer after # s'
    """
    line = " ".join((error or "").partition("\n")[0].split())  # a form changes line ends
    return _VARYING.sub("#", line)[:LONGEST]


async def _groups(store: StoreReader, queue: str, most: int) -> list[Group]:
    """Return the groups of a queue's oldest dead letters, the largest first."""

    async def read() -> list[Group]:
        found: dict[str, Group] = {}
        async for letter in letters(store, queue, most):
            kind = error_kind(letter.error)
            letter = msgspec.structs.replace(letter, data=b"null", json=True)  # bodies are large
            group = found.get(kind, Group(kind, 0, letter, letter))
            found[kind] = msgspec.structs.replace(group, count=group.count + 1, last=letter)
        return sorted(found.values(), key=lambda group: -group.count)

    return await store.recent.get(("dead", queue, most), FORECAST_EVERY, read)


async def letters(store: StoreReader, queue: str, most: int) -> AsyncIterator[Message]:
    """Return dead letters, oldest first."""
    scan = Scan(queue, "dead", limit=min(most, 500), max_bytes=READ_BYTES)
    read = 0
    while True:
        page = await store.ask(Scanned, scan)
        for letter in page.messages:
            yield letter
        read += len(page.messages)
        if page.cursor is None or read >= most:
            return
        scan = msgspec.structs.replace(scan, cursor=page.cursor)
