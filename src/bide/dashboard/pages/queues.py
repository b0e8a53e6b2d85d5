"""All queues, the audit, and one queue with its messages by state, due time, group or id."""

from collections.abc import Callable
from typing import Any, get_args

from bide.dashboard.reading import SAMPLE_EVERY, Glance, StoreReader
from bide.dashboard.rendering import SPANS, histogram, sparkline
from bide.dashboard.view import Page, Refused, View
from bide.model.commands import Count, Scan, Where
from bide.model.identity import check_name
from bide.model.message import Message, State
from bide.model.replies import Counts
from bide.model.times import limits_of
from bide.observing.sample import main_cause, rates
from bide.queue.results import Audit
from bide.queue.search import Query

GONE = ("acked", "cancelled", "expired", "purged")


async def audit(view: View) -> Page:
    """Return the page of the audit, by the counters alone."""
    glance = await view.store.glance(view.access, after=view.request.get("after"))
    found = [Audit.of(view.own(name), glance.sample.queues[name]) for name in glance.names]
    return Page("audit.html", {
        "found": found, "gone": GONE, "following": glance.following, "recounted": False,
    })  # fmt: skip


DEFAULT_SPAN = "24h"

STATES = ("delayed", "ready", "leased", "dead")


async def overview(view: View) -> Page:
    """Return the first page."""
    request = view.request
    prefix, after = request.get("prefix"), request.get("after")
    glance = await view.store.glance(view.access, prefix, after)
    span = span_of(view)
    forecast = await view.store.forecast(glance.names, span.bucket, span.buckets)
    rows = [_row(glance, name, view.now) for name in glance.names]
    pace = [_pace(glance, number) for number in range(1, len(glance.samples))]
    return Page("overview.html", {
        "glance": glance, "rows": rows, "prefix": prefix, "span": span,
        "chart": histogram(forecast, span), "states": STATES,
        "sums": {state: sum(getattr(row["counts"].sizes, state) for row in rows)
                 for state in STATES},
        "late": max((row["late"] for row in rows if row["late"] is not None), default=None),
        "pace": {
            name: (pace[-1][number] if pace else None, sparkline([one[number] for one in pace]))
            for number, name in enumerate(("put", "done", "failed"))
        },
    })  # fmt: skip


def span_of(view: View) -> Any:
    """Return how far the forecast of a page looks ahead."""
    return SPANS.get(view.request.get("span")) or SPANS[DEFAULT_SPAN]


def _row(glance: Glance, name: str, now: int) -> dict[str, Any]:
    counts = glance.sample.queues[name]
    return {
        "name": name,
        "counts": counts,
        "late": None if counts.oldest is None else max(0, now - counts.oldest),
        "lateness": glance.sample.lateness.get(name),
        "cause": main_cause(glance.sample.causes.get(name)).partition(" ")[::2],
        "rates": rates(glance.before, glance.sample, name),
    }


def _pace(glance: Glance, number: int) -> tuple[float, float, float]:
    """Return what happened in all queues together before a sample, per second."""
    before, sample = glance.samples[number - 1], glance.samples[number]
    found = [one for name in glance.names if (one := rates(before, sample, name)) is not None]
    put, done, failed = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    return put, done, failed


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
    group = check_name(filters["group"], "group") if filters["group"] else None
    query = Query(
        id=filters["prefix"] or None, group=group, after=request.moment("after"),
        before=request.moment("before"), error=filters["error"] or None,
    )  # fmt: skip
    states = get_args(State) if tab == "all" else WAITING if tab == "next" else (tab,)
    given = {name for name, value in filters.items() if value}
    state: Any = None if tab == "all" else tab
    where, ordered = None, set[str]()
    if group is not None:
        state, where, ordered = None, Where(group), {"group"} if tab == "all" else set()
    elif state == "delayed" and given & {"after", "before"}:
        where, ordered = Where(after=query.after, before=query.before), {"after", "before"}
    scan = Scan(queue, state, where, request.get("cursor") or None)
    if given <= ordered:
        return scan, None
    return scan, lambda one: one.state in states and query.matches(one, lambda seen: seen)
