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
from bide.server.subscriptions.subscription_wire import SubscriptionOut, shown
from bide.targets.http.subscription import masked
from bide.worker.periodic.chain import moment_of
from bide.worker.periodic.progress import schedule_progress, source_progress
from bide.worker.periodic.source import source_of

HELD = 20
"""How many held messages are listed of each queue."""


async def workers(view: PageView) -> HtmlPage:
    """Return the page of workers."""
    glance = await view.store.glance(view.access, after=view.request.get("after"))
    busy = [name for name in glance.names if glance.sample.queues[name].sizes.leased]

    async def read() -> list[Summary]:
        scans = [Scan(name, "leased", limit=HELD, max_bytes=READ_BYTES // 8) for name in busy]
        summaries: list[Summary] = []
        for scan in scans:
            summaries += map(summary_of, (await view.store.ask(Page, scan)).messages)
        return summaries

    held = await view.store.recent.get(("held", *busy), SAMPLE_EVERY, read)
    leased = sum(glance.sample.queues[name].sizes.leased for name in busy)
    return HtmlPage("workers.html", {"glance": glance, "held": held, "leased": leased})


TICKS = 3
"""How many of its next ticks a schedule shows."""


async def periodic(view: PageView) -> HtmlPage:
    """Return the page of schedules and sources."""
    names = await view.store.names(view.access, own=True)
    homes = [name for name in names if source_of(name) is not None][:QUEUES]
    after = view.access.caller.prefix(view.request.get("after"))
    plain = [name for name in await view.store.names(view.access) if name > after]
    queues = plain[:QUEUES]

    async def read() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        run = view.store.run
        schedules = await asyncio.gather(*[run(_schedule(name)) for name in queues])
        sources = await asyncio.gather(*[run(source_progress(home)) for home in homes])
        return (
            [schedule for schedule in schedules if schedule],
            [source for source in sources if source],
        )

    schedules, sources = await view.store.recent.get(
        ("periodic", tuple(queues), tuple(homes)), FORECAST_EVERY, read
    )
    following = view.own(queues[-1]) if len(plain) > QUEUES else None
    return HtmlPage(
        "periodic.html",
        {
            "schedules": schedules,
            "sources": sources,
            "following": following,
        },
    )


def _schedule(queue: str) -> Steps[dict[str, Any] | None]:
    """Read the facts about a schedule, if the first message of a queue is a tick."""
    for state in ("next", "leased"):
        page: Page = yield Scan(queue, state, limit=1)
        if page.messages:
            if moment_of(page.messages[0].id) is None:
                return None
            break
    else:
        return None
    try:
        return (yield from schedule_progress(queue, TICKS))
    except InvalidArgument as error:  # cronsim or the zone is not here, or a newer bide put it
        return {"queue": queue, "unreadable": str(error)}


LISTED = 500
"""How many subscriptions a page lists."""


async def subscriptions(view: PageView) -> HtmlPage:
    """Return the page of subscriptions."""

    async def read() -> list[SubscriptionOut]:
        records = view.store.records
        return await shown(records, await records.listed(), view.store.clock.now())

    if view.store.remote:  # its server keeps them
        return HtmlPage("subscriptions.html", {"subscriptions": [], "more": 0})
    every = await view.store.recent.get("subscriptions", FORECAST_EVERY, read)
    caller = view.access.caller
    rows = [
        {
            "name": caller.name_of(subscription.name),
            "queue": queue,
            "shown": subscription,
            "url": masked(subscription.url),
        }
        for subscription in every
        if (queue := caller.own(subscription.queue)) is not None
    ]
    return HtmlPage(
        "subscriptions.html", {"subscriptions": rows[:LISTED], "more": len(rows[LISTED:])}
    )
