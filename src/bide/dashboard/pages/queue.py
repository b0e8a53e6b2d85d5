"""One queue: its counters, its forecast, and its messages by state, due time, group or id."""

from collections.abc import Callable
from typing import Any, get_args

from bide.dashboard.chart import histogram
from bide.dashboard.pages.overview import span_of
from bide.dashboard.reading import SAMPLE_EVERY, StoreReader
from bide.dashboard.view import Page, Refused, View
from bide.model.commands import Count, Scan, Where
from bide.model.identity import check_name
from bide.model.message import Message, State
from bide.model.replies import Counts
from bide.model.times import limits_of

ROWS = 50
"""How many messages a page lists."""

TABS = ("next", "delayed", "ready", "leased", "dead", "acked", "expired", "all")
"""What can be listed; "next": ready, then delayed."""

WAITING = ("ready", "delayed")


async def queue(view: View) -> Page:
    """Return the page of a queue."""
    full, request = view.queue(), view.request
    counts = await counts_of(view.store, full)
    if not (counts.flow.put or counts.kept or counts.sizes.total):
        known = await view.store.names(view.access, request.get("queue"), own=True)
        if full not in known:
            raise Refused(404, "no-queue", request.get("queue"))
    span = span_of(view)
    forecast = await view.store.forecast([full], span.bucket, span.buckets)
    tab = request.get("state") if request.get("state") in TABS else TABS[0]
    filters = {name: request.get(name) for name in ("group", "prefix", "error", "after", "before")}
    scan, matches = _scan_of(view, full, tab, filters)
    found = await view.store.search(scan, matches, ROWS)
    return Page("queue.html", {
        "queue": view.own(full), "counts": counts, "span": span, "chart": histogram(forecast, span),
        "tabs": TABS, "tab": tab, "filters": filters, "found": found, "searched": bool(matches),
        "late": None if counts.oldest is None else max(0, view.now - counts.oldest),
        "filtered": any(filters.values()), "ruled": _is_rule(view, tab, filters),
        "paged": bool(request.get("cursor")), "limits": limits_of(counts),
    })  # fmt: skip


def _is_rule(view: View, tab: str, filters: dict[str, str]) -> bool:
    """Tell whether a list has all that wait and match a rule: a group, a range of due times."""
    given = {name for name, value in filters.items() if value}
    later = (view.request.moment("after") or 0) > view.now  # what is due then is delayed
    lists_all = tab in ("next", "all") or (tab == "delayed" and later)
    return lists_all and bool(given) and given <= {"group", "after", "before"}


async def counts_of(store: StoreReader, queue: str) -> Counts:
    """Return the counters of a queue."""
    return await store.recent.get(
        ("counts", queue), SAMPLE_EVERY / 2, lambda: store.ask(Counts, Count(queue))
    )


def _scan_of(
    view: View, queue: str, tab: str, filters: dict[str, str]
) -> tuple[Scan, Callable[[Message], bool] | None]:
    """Return what to read for a list, and which of the messages it shows.

    The store is only given conditions that it has an order for, so that no page reads more than
    its share: due times of delayed messages, and groups.
    """
    request = view.request
    after, before = request.moment("after"), request.moment("before")
    group = check_name(filters["group"], "group") if filters["group"] else None
    state: Any = None if tab == "all" else tab
    tests: list[Callable[[Message], bool]] = []
    where = None
    if group is not None:
        where = Where(group)
        if state is not None:
            wanted = WAITING if state == "next" else (state,)
            tests.append(lambda message: message.state in wanted)
        state = None
    elif state == "delayed" and (after is not None or before is not None):
        where, after, before = Where(after=after, before=before), None, None
    if after is not None:
        tests.append(lambda message: message.due >= after)
    if before is not None:
        tests.append(lambda message: message.due < before)
    if filters["prefix"]:
        tests.append(lambda message: message.id.startswith(filters["prefix"]))
    if filters["error"]:
        tests.append(lambda message: filters["error"] in (message.error or ""))
    assert state in (None, "next", *get_args(State))
    scan = Scan(queue, state, where, request.get("cursor") or None)
    return scan, (lambda message: all(test(message) for test in tests)) if tests else None
