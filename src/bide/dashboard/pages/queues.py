"""All queues, the audit, and one queue with its messages by state, due time, group or id."""

from typing import Any

from bide.dashboard.reading import READ_BYTES, SAMPLE_EVERY, Glance, StoreReader
from bide.dashboard.rendering import sparkline
from bide.dashboard.time_axis import DEFAULT_SPAN, SPANS, Span, TimeAxis, fitting_span, time_axis
from bide.dashboard.view import HtmlPage, PageRefused, PageView
from bide.model.commands import Count, ListEnded
from bide.model.ended import ENDINGS
from bide.model.identity import check_prefix
from bide.model.past import Past, PastCommand
from bide.model.replies import GONE, SIZES, Counts, EndedPage, Forecasted
from bide.model.times import limits_of
from bide.observing.sample import Rates, main_cause, rates
from bide.queue.arguments import check_ending
from bide.queue.results import Audit
from bide.queue.search import Query


async def audit(view: PageView) -> HtmlPage:
    """Return the page of the audit, by the counters alone."""
    glance = await view.store.glance(view.access, after=view.request.get("after"))
    audits = [Audit.of(view.own(name), glance.sample.queues[name]) for name in glance.names]
    return HtmlPage(
        "audit.html",
        {
            "audits": audits,
            "gone": GONE,
            "following": glance.following,
            "recounted": False,
        },
    )


async def overview(view: PageView) -> HtmlPage:
    """Return the first page."""
    request = view.request
    prefix, after = request.get("prefix"), request.get("after")
    glance = await view.store.glance(view.access, prefix, after)
    span, axis = await _axis_of(view, glance.names, view.access.caller.prefix(prefix))
    rows = [_row(glance, name, view.now) for name in glance.names]
    rates_of_samples = [_total_rates(glance, number) for number in range(1, len(glance.samples))]
    return HtmlPage(
        "overview.html",
        {
            "glance": glance,
            "rows": rows,
            "prefix": prefix,
            "span": span,
            "axis": axis,
            "states": SIZES,
            "sums": {
                state: sum(getattr(row["counts"].sizes, state) for row in rows) for state in SIZES
            },
            "late": max((row["late"] for row in rows if row["late"] is not None), default=None),
            "pace": {name: _latest_and_line(rates_of_samples, name) for name in Rates._fields},
        },
    )


def _latest_and_line(rates_of_samples: list[Rates], name: str) -> tuple[float | None, str]:
    """Return the newest of some rates, and all of them as a line; see `sparkline`.

    Args:
        rates_of_samples: the rates, the oldest first.
        name: the field of `Rates`.
    """
    values = [getattr(sample_rates, name) for sample_rates in rates_of_samples]
    return values[-1] if values else None, sparkline(values)


async def _axis_of(
    view: PageView, queues: list[str], past_of: str, *, together: bool = True
) -> tuple[Span, TimeAxis | None]:
    """Return the axis of time of a page, and how far it reaches.

    Args:
        view: the page.
        queues: the queues of the forecast, by their names in the store.
        past_of: the queue of the past, or with `together` how the names of several begin.
        together: see `PastCommand`.

    Returns:
        `None` for an axis of which the forecast and the past are still being read.
    """

    async def axis(span: Span) -> tuple[Forecasted | None, Past | None]:
        command = PastCommand(past_of, span.by, span.slots, together)
        forecast = await view.store.forecast(queues, span.bucket, span.buckets)
        return forecast, await view.store.past(view.access, command)

    chosen = SPANS.get(view.request.get("span"))
    span = chosen or DEFAULT_SPAN
    forecast, past = await axis(span)
    if chosen is None and (fitting := fitting_span(forecast, past, view.now)) != span:
        span = fitting
        forecast, past = await axis(span)
    if forecast is None and past is None:
        return span, None
    return span, time_axis(forecast, past, span, view.now)


def _row(glance: Glance, name: str, now: int) -> dict[str, Any]:
    """Return what the first page shows of a queue.

    Args:
        glance: the queues of the page.
        name: the name of the queue in the store.
        now: the store's clock, in Unix milliseconds.
    """
    counts = glance.sample.queues[name]
    cause, _, share = main_cause(glance.sample.causes.get(name)).partition(" ")
    return {
        "name": name,
        "counts": counts,
        "late": None if counts.oldest is None else max(0, now - counts.oldest),
        "lateness": glance.sample.lateness.get(name),
        "cause": (cause, share),
        "rates": rates(glance.before, glance.sample, name),
    }


def _total_rates(glance: Glance, number: int) -> Rates:
    """Return what happened in all queues together between a sample and the one before it.

    Args:
        glance: the queues and their samples.
        number: the place of the sample, 1 or more.
    """
    before, sample = glance.samples[number - 1], glance.samples[number]
    rates_of_queues = [rates(before, sample, name) for name in glance.names]
    known_rates = [queue_rates for queue_rates in rates_of_queues if queue_rates is not None]
    return Rates(
        put=sum(queue_rates.put for queue_rates in known_rates),
        done=sum(queue_rates.done for queue_rates in known_rates),
        failed=sum(queue_rates.failed for queue_rates in known_rates),
    )


ROWS = 50
"""How many messages a page lists."""

ENDED = "ended"
"""The tab of what has ended, of a queue with `history`."""

TABS = ("next", "delayed", "ready", "leased", "dead", "acked", "expired", ENDED, "all")
"""What can be listed; "next": ready, then delayed."""


async def queue(view: PageView) -> HtmlPage:
    """Return the page of a queue."""
    full, request = view.queue(), view.request
    counts = await counts_of(view.store, full)
    was_never_used = not (counts.flow.put or counts.kept or counts.sizes.total)
    if was_never_used:  # a queue that does not exist has such counts, too
        names_in_store = await view.store.names(view.access, request.get("queue"), own=True)
        if full not in names_in_store:
            raise PageRefused(404, "no-queue", request.get("queue"))
    span, axis = await _axis_of(view, [full], full, together=False)
    tabs = [name for name in TABS if name != ENDED or counts.history]
    tab: Any = request.get("state") if request.get("state") in tabs else TABS[0]
    filters = {name: request.get(name) for name in ("group", "prefix", "error", "after", "before")}
    query = Query(
        id=check_prefix(filters["prefix"]) or None,
        state=None if tab in ("all", ENDED) else tab,
        group=check_prefix(filters["group"], "group") or None,
        after=request.moment("after"),
        before=request.moment("before"),
        error=filters["error"] or None,
    )
    own = view.own(full)
    cursor = request.get("cursor")
    # The live part of the page, which asks for itself again, has no list.
    has_list = not view.refreshes
    ended = await _ended(view, full) if has_list and tab == ENDED else None
    searched_queues = [(own, full)] if has_list and tab != ENDED else []
    listing = await view.store.search(
        searched_queues, query, "" if tab == ENDED else cursor, ROWS, view.shown, counts=False
    )
    view.log_shown_bodies(own, sum(1 for message in listing.messages if message.preview))
    return HtmlPage(
        "queue.html",
        {
            "queue": own,
            "counts": counts,
            "span": span,
            "axis": axis,
            "tabs": tabs,
            "tab": tab,
            "filters": filters,
            "listing": listing,
            "ended": ended,
            "endings": ENDINGS,
            "how": request.get("how"),
            "late": None if counts.oldest is None else max(0, view.now - counts.oldest),
            "filtered": any(filters.values()),
            "ruled": _is_rule(view, tab, filters),
            "paged": bool(cursor),
            "limits": limits_of(counts),
        },
    )


async def _ended(view: PageView, queue: str) -> EndedPage:
    """Return a page of the messages of a queue that have ended.

    Raises:
        InvalidArgument: a value of the filter, or the cursor, is not valid.
    """
    request = view.request
    command = ListEnded(
        queue,
        check_ending(request.get("how")) if request.get("how") else None,
        request.moment("after"),
        request.moment("before"),
        request.get("cursor") or None,
        ROWS,
        READ_BYTES,
    )
    return await view.store.ask(EndedPage, command)


def _is_rule(view: PageView, tab: str, filters: dict[str, str]) -> bool:
    """Tell whether a list has all that wait and match a rule: a group, a range of due times."""
    names = {name for name, value in filters.items() if value}
    begins_later = (view.request.moment("after") or 0) > view.now  # what is due then is delayed
    lists_all = tab in ("next", "all") or (tab == "delayed" and begins_later)
    return lists_all and bool(names) and names <= {"group", "after", "before"}


async def counts_of(store: StoreReader, queue: str) -> Counts:
    """Return the counters of a queue."""
    return await store.recent.get(
        ("counts", queue), SAMPLE_EVERY / 2, lambda: store.ask(Counts, Count(queue))
    )
