"""Workers and what they hold, schedules, sources and subscriptions."""

import asyncio
from typing import Any

from bide.dashboard.reading import FORECAST_EVERY, QUEUES, READ_BYTES, SAMPLE_EVERY
from bide.dashboard.summary import Summary, summary_of
from bide.dashboard.view import HtmlPage, PageView
from bide.lane.steps import Steps
from bide.model.commands import Scan
from bide.model.errors import InvalidArgument
from bide.model.replies import Page
from bide.server.subscriptions.subscription_wire import SubscriptionOut, subscriptions_out
from bide.targets.http.subscription import masked
from bide.worker.periodic.progress import schedule_progress, source_progress
from bide.worker.periodic.source import source_of

MOST_HELD = 20
"""How many held messages are listed of each queue."""


async def workers(view: PageView) -> HtmlPage:
    """Return the page of workers."""
    glance = await view.store.glance(view.access, after=view.request.get("after"))
    busy = [name for name in glance.names if glance.sample.queues[name].sizes.leased]

    async def read() -> list[Summary]:
        scans = [Scan(name, "leased", limit=MOST_HELD, max_bytes=READ_BYTES // 8) for name in busy]
        summaries: list[Summary] = []
        for scan in scans:
            summaries += map(summary_of, (await view.store.ask(Page, scan)).messages)
        return summaries

    held = await view.store.recent.get(("held", *busy), SAMPLE_EVERY, read)
    leased = sum(glance.sample.queues[name].sizes.leased for name in busy)
    return HtmlPage("workers.html", {"glance": glance, "held": held, "leased": leased})


TICK_COUNT = 3
"""How many of its next ticks a schedule shows."""


async def periodic(view: PageView) -> HtmlPage:
    """Return the page of schedules and sources."""
    all_names = await view.store.names(view.access, own=True)
    source_queues = [name for name in all_names if source_of(name) is not None][:QUEUES]
    after = view.access.caller.prefix(view.request.get("after"))
    remaining = [name for name in await view.store.names(view.access) if name > after]
    queues = remaining[:QUEUES]

    async def read() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        run = view.store.run
        schedules = await asyncio.gather(*[run(_schedule(name)) for name in queues])
        sources = await asyncio.gather(*[run(source_progress(name)) for name in source_queues])
        return (
            [schedule for schedule in schedules if schedule],
            [source for source in sources if source],
        )

    schedules, sources = await view.store.recent.get(
        ("periodic", tuple(queues), tuple(source_queues)), FORECAST_EVERY, read
    )
    following = view.own(queues[-1]) if len(remaining) > QUEUES else None
    return HtmlPage(
        "periodic.html",
        {
            "schedules": schedules,
            "sources": sources,
            "following": following,
        },
    )


def _schedule(queue: str) -> Steps[dict[str, Any] | None]:
    """Read the facts about a schedule; `None` if the queue belongs to none."""
    try:
        return (yield from schedule_progress(queue, TICK_COUNT))
    except InvalidArgument as error:  # cronsim or the zone is not here, or a newer bide put it
        return {"queue": queue, "unreadable": str(error)}


MOST_SUBSCRIPTIONS = 500
"""How many subscriptions a page lists."""


async def subscriptions(view: PageView) -> HtmlPage:
    """Return the page of subscriptions."""

    async def read() -> list[SubscriptionOut]:
        records = view.store.records
        return await subscriptions_out(records, await records.listed(), view.store.clock.now())

    if view.store.remote:  # its server keeps them
        return HtmlPage("subscriptions.html", {"subscriptions": [], "more": 0})
    all_subscriptions = await view.store.recent.get("subscriptions", FORECAST_EVERY, read)
    caller = view.access.caller
    rows = [
        {
            "name": caller.name_of(subscription.name),
            "queue": queue,
            "shown": subscription,
            "url": masked(subscription.url),
        }
        for subscription in all_subscriptions
        if (queue := caller.own(subscription.queue)) is not None
    ]
    return HtmlPage(
        "subscriptions.html",
        {"subscriptions": rows[:MOST_SUBSCRIPTIONS], "more": len(rows[MOST_SUBSCRIPTIONS:])},
    )
