"""The action log: who did what, from where."""

import asyncio

from bide.dashboard.access import Access
from bide.dashboard.log_file import Entries, last_entries
from bide.dashboard.reading import SAMPLE_EVERY
from bide.dashboard.view import Page, Refused, View
from bide.server.action_log import Entry

FILTERS = ("who", "act", "queue", "target")


async def log(view: View) -> Page:
    """Return the page of the action log.

    Raises:
        Refused: the visitor may not see it.
    """
    access, request, path = view.access, view.request, view.log
    if not access.log:
        raise Refused(403, "no-access")
    filters = {name: request.get(name) for name in FILTERS}
    before = request.number("before")

    def wanted(entry: Entry) -> bool:
        if access.namespace is not None and entry.namespace != access.namespace:
            return False
        if not access.caller.of_all_queues and _own(access, entry) is None:
            return False
        return all(not text or getattr(entry, name) == text for name, text in filters.items())

    async def read() -> Entries:
        assert path is not None
        return await asyncio.to_thread(last_entries, path, wanted, before)

    found, problem = Entries([], None), ""
    if path is not None:
        key = "log", access.namespace, access.queues, before, *filters.values()
        try:
            found = await view.store.recent.get(key, SAMPLE_EVERY, read)
        except OSError as error:
            problem = error.strerror or "not a regular file"
    return Page("log.html", {
        "found": found.found, "older": found.older, "filters": filters, "problem": problem,
        "kept": path is not None, "live": before is None,
    })  # fmt: skip


def _own(access: Access, entry: Entry) -> str | None:
    """Return the visitor's name of the queue of an entry, `None` if it is not for them."""
    if entry.queue is None:
        return None
    return access.caller.own(f"{entry.namespace}/{entry.queue}" if entry.namespace else entry.queue)
