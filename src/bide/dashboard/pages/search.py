"""Search over all queues: by id, group, due time, error, header and body."""

from bide.dashboard.reading import SEARCHED
from bide.dashboard.view import Page, Refused, View
from bide.queue.search import Query, SearchPage, query_of, search_steps

ROWS = 100
"""How many messages a page lists."""

TEXTS = ("group", "error", "header", "body")


async def search(view: View) -> Page:
    """Return the page of a search; without a question, its form alone."""
    request = view.request
    filters = {name: request.get(name) for name in ("q", "prefix", *TEXTS, "after", "before")}
    found = await _found(view, filters) if any(filters.values()) else None
    return Page("search.html", {
        "filters": filters, "found": found, "paged": bool(request.get("cursor")),
    })  # fmt: skip


async def _found(view: View, filters: dict[str, str]) -> SearchPage:
    query = _query(view, filters)
    if query.reads_bodies and not view.access.bodies:
        raise Refused(403, "not-allowed", "search in bodies and headers")
    listed = await view.store.names(view.access, filters["prefix"])
    names = [(view.own(full), full) for full in listed]
    page = await view.store.run(
        search_steps(
            sorted(names), query, view.request.get("cursor") or None, ROWS, SEARCHED,
            ids_ordered=view.store.lane.capabilities.ids_ordered, seen=view.redacted,
        )
    )  # fmt: skip
    page.messages.sort(key=lambda message: message.due)
    return page


def _query(view: View, filters: dict[str, str]) -> Query:
    after, before = view.request.moment("after"), view.request.moment("before")
    texts = {name: filters[name] for name in TEXTS if filters[name]}
    return query_of(
        id=filters["q"] or None, after=None if after is None else after / 1000,
        before=None if before is None else before / 1000, **texts,
    )  # fmt: skip
