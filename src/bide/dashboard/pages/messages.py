"""One message, the search over all queues, and the dead letters by their last error."""

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from bide.dashboard.pages.queues import counts_of
from bide.dashboard.reading import FORECAST_EVERY, READ_BYTES, Listed, StoreReader
from bide.dashboard.summary import Summary, summary_of
from bide.dashboard.view import HtmlPage, PageRefused, PageView
from bide.lane.steps import following
from bide.model.commands import Find, History, Scan
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.message import Message, size_of
from bide.model.repeat import Cron, Every
from bide.model.replies import Ends, Found, Page
from bide.model.window import Window
from bide.observing.explanation import Explanation
from bide.observing.seen_runs import SeenRun
from bide.queue.search import Query, query_of

ACTIONS_BY_STATE = {
    "delayed": ("reschedule", "edit", "run_now", "hold", "resume", "cancel", "copy"),
    "ready": ("reschedule", "edit", "run_now", "hold", "resume", "cancel", "copy"),
    "leased": ("cancel", "release", "copy"),
    "dead": ("edit", "revive", "purge", "copy"),
    "acked": ("copy",),
    "expired": ("copy",),
}
"""What can be done with a message, by its state."""


class RuleFields(NamedTuple):
    """The fields of a form for the rule of a message."""

    cron: str = ""
    every: str = ""
    timezone: str = ""
    hours: str = ""
    """The hours of its window."""
    hours_timezone: str = ""


def rule_fields(message: Message) -> RuleFields | None:
    """Return the rule of a message for a form; `None`: it cannot be edited here."""
    if message.state not in ("delayed", "ready"):  # a dead letter has no due time
        return None
    try:
        rule, window = message.repeat, message.window
    except InvalidArgument:
        return None
    fields = RuleFields()
    if isinstance(rule, Cron):
        fields = RuleFields(rule.expression, timezone=rule.timezone)
    elif isinstance(rule, Every):
        fields = RuleFields(every=rule.period)
    if window is None:
        return fields
    return fields._replace(hours=window.hours, hours_timezone=window.timezone)


def _window(message: Message) -> Window | None:
    """Return the window of a message; `None`: it has none, or it cannot be read here."""
    try:
        return message.window
    except InvalidArgument:
        return None


def _fits_run(action: str, run: SeenRun | None) -> bool:
    """Return whether an action fits the run of a message; `None`: the message does not repeat."""
    match action:
        case "run_now":
            return run is not None and run.status != "unread"
        case "hold":
            return run is not None and run.status != "unread" and not run.is_held
        case "resume":
            return run is not None and run.is_held
    return True


async def message(view: PageView) -> HtmlPage:
    """Return the page of a message."""
    full, id = view.queue(), view.request.get("id")
    reply = await view.store.ask(Found, Find(full, [check_name(id)]))
    (message,) = reply.messages
    ends = (await view.store.ask(Ends, History(full, id, max_bytes=READ_BYTES))).ends
    if message is None and not ends:
        raise PageRefused(404, "no-message", id)
    facts = await view.store.explain(full, id)
    explanation = Explanation(id, view.own(full), facts)
    if view.refreshes:
        ends = []  # the live part has no bodies and no results
    elif message is not None or any(end.result for end in ends):
        view.log_shown_bodies(view.own(full), 1, id)
    if message is None:  # only the history knows it
        context = {"explanation": explanation, "queue": view.own(full), "id": id, "ends": ends}
        return HtmlPage("ended.html", context)
    return HtmlPage(
        "message.html",
        {
            "explanation": explanation,
            "run": explanation.run,
            "local_date": message.local_date,
            "rule": rule_fields(message),
            "window": _window(message),
            "queue": view.own(full),
            "body": None if view.refreshes else view.shown.body(message),
            "editable": None if view.refreshes else view.shown.editable(message),
            "headers": {} if view.refreshes else view.shown.headers(message),
            "version": view.shown.version(message),
            "message": msgspec.structs.replace(message, data=b"", headers=None, successor=None),
            "successor": None if message.successor is None else message.successor.due(0),
            "size": size_of(message),
            "ends": ends,
            "actions": [
                action
                for action in ACTIONS_BY_STATE[message.state]
                if view.access.may(action)
                and not (action == "cancel" and message.stopping is not None)
                and _fits_run(action, explanation.run)
            ],
        },
    )


ROWS = 100
"""How many messages a page lists."""

TEXTS = ("group", "error", "header", "body")


async def search(view: PageView) -> HtmlPage:
    """Return the page of a search; without a question, its form alone."""
    request = view.request
    names = ("q", "prefix", *TEXTS, "after", "before", "repeats")
    filters = {name: request.get(name) for name in names}
    listing = await _listing(view, filters) if any(filters.values()) else None
    if listing is not None:
        view.log_shown_bodies(filters["prefix"], len(listing.messages))
    return HtmlPage(
        "search.html",
        {
            "filters": filters,
            "listing": listing,
            "paged": bool(request.get("cursor")),
        },
    )


async def _listing(view: PageView, filters: dict[str, str]) -> Listed:
    """Search the queues that the visitor may see.

    Raises:
        PageRefused: the search would tell the visitor of bodies that it may not see.
    """
    query = _query(view, filters)
    if query.reads_bodies and not view.access.bodies:
        raise PageRefused(403, "not-allowed", "search in bodies and headers")
    full_names = await view.store.names(view.access, filters["prefix"])
    names = [(view.own(full), full) for full in full_names]
    page = await view.store.search(
        names, query, view.request.get("cursor"), ROWS, view.shown, seen=view.shown.redacted
    )
    page.messages.sort(key=lambda message: message.due)
    return page


def _query(view: PageView, filters: dict[str, str]) -> Query:
    """Return the question of a form.

    Raises:
        InvalidArgument: a value is not valid.
    """
    after, before = view.request.moment("after"), view.request.moment("before")
    texts = {name: filters[name] for name in TEXTS if filters[name]}
    return query_of(
        id=filters["q"] or None,
        after=None if after is None else after / 1000,
        before=None if before is None else before / 1000,
        repeats=filters["repeats"] == "1",
        **texts,
    )


READ_OF_EACH = 200
"""How many dead letters are read of each queue where several are shown."""

READ_OF_ONE = 2_000
"""How many are read of one queue."""

MOST_CHARACTERS = 160
"""How many characters of an error make its kind."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+")


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead letters of a queue whose last errors are alike."""

    kind: str
    """What the errors have in common; see `error_kind`."""
    count: int
    first: Summary
    """The one that died first."""
    last: Summary
    """The one that died last."""


async def dead(view: PageView) -> HtmlPage:
    """Return the page of the dead letters of one queue, or of each that has some."""
    chosen_queue = view.request.get("queue")
    if chosen_queue:
        full = view.queue()
        totals = {full: (await counts_of(view.store, full)).sizes.dead}
        following = None
    else:
        glance = await view.store.glance(view.access, after=view.request.get("after"))
        counts = glance.sample.queues
        totals = {name: counts[name].sizes.dead for name in glance.names if counts[name].sizes.dead}
        following = glance.following
    most = READ_OF_ONE if chosen_queue else READ_OF_EACH
    sections = [
        (name, await _groups(view.store, name, most), total) for name, total in totals.items()
    ]
    return HtmlPage(
        "dead.html",
        {
            "named": chosen_queue,
            "sections": sections,
            "most": most,
            "following": following,
        },
    )


def error_kind(error: str | None) -> str:
    """Return what errors that differ in numbers alone have in common.

    Example:
        >>> error_kind("TimeoutError: no answer after 31 s\\nTraceback ...")
        'TimeoutError: no answer after # s'
    """
    first_line, _, _traceback = (error or "").partition("\n")
    words = first_line.split()  # without line ends of its own, which a form changes
    return _VARYING.sub("#", " ".join(words))[:MOST_CHARACTERS]


async def _groups(store: StoreReader, queue: str, most: int) -> list[DeadGroup]:
    """Return the groups of a queue's oldest dead letters, the largest first."""

    async def read() -> list[DeadGroup]:
        groups: dict[str, DeadGroup] = {}
        async for letter in letters(store, queue, most):
            kind = error_kind(letter.error)
            last = summary_of(letter)
            group = groups.get(kind, DeadGroup(kind, 0, last, last))
            groups[kind] = msgspec.structs.replace(group, count=group.count + 1, last=last)
        return sorted(groups.values(), key=lambda group: -group.count)

    return await store.recent.get(("dead", queue, most), FORECAST_EVERY, read)


async def letters(store: StoreReader, queue: str, most: int) -> AsyncIterator[Message]:
    """Return dead letters, oldest first; about `most`, in whole pages of a scan."""
    scan: Scan | None = Scan(queue, "dead", limit=min(most, 500), max_bytes=READ_BYTES)
    read_count = 0
    while scan is not None and read_count < most:
        page = await store.ask(Page, scan)
        for letter in page.messages:
            yield letter
        read_count += len(page.messages)
        scan = following(scan, page)
