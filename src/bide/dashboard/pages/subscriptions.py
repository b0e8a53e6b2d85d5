"""Subscriptions: which queues are pushed where, and how the receivers are."""

from typing import Any

from bide.dashboard.reading import FORECAST_EVERY, StoreReader
from bide.dashboard.view import Page, View
from bide.server.subscription_status import SubscriptionOut, masked, shown
from bide.targets.http.circuit import Circuit
from bide.targets.http.records import Records

LISTED = 500
"""How many subscriptions a page lists."""


def records_of(store: StoreReader) -> Records:
    """Return the subscriptions of a store."""
    return Records(store.lane, store.clock)


async def subscriptions(view: View) -> Page:
    """Return the page of subscriptions."""

    async def read() -> list[tuple[Any, SubscriptionOut]]:
        records = records_of(view.store)
        found = await records.listed()
        circuits = await records.peers.circuits()
        deliveries = await records.peers.deliveries()
        now = view.store.clock.now()
        return [
            (one, shown(one, circuits.get(one.key, Circuit()), now, None, deliveries.get(one.key)))
            for one in found
        ]

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
