"""Subscriptions: which queues are pushed where, and how the receivers are."""

from bide.dashboard.reading import FORECAST_EVERY, StoreReader
from bide.dashboard.view import Page, View
from bide.server.subscription_status import SubscriptionOut, all_shown, masked
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription

LISTED = 500
"""How many subscriptions a page lists."""


def records_of(store: StoreReader) -> Records:
    """Return the subscriptions of a store."""
    return Records(store.lane, store.clock)


async def subscriptions(view: View) -> Page:
    """Return the page of subscriptions."""

    async def read() -> list[tuple[Subscription, SubscriptionOut]]:
        records = records_of(view.store)
        return await all_shown(records, await records.listed(), view.store.clock.now())

    if view.store.remote:  # its server keeps them
        return Page("subscriptions.html", {"found": [], "more": 0})
    every = await view.store.recent.get("subscriptions", FORECAST_EVERY, read)
    caller = view.access.caller
    mine = [
        {"name": name, "queue": queue, "told": told, "url": masked(told.url)}
        for one, told in every
        if (name := one.known_as(caller.namespace)) is not None
        and (queue := caller.own(one.source)) is not None
    ]
    return Page("subscriptions.html", {"found": mine[:LISTED], "more": len(mine[LISTED:])})
