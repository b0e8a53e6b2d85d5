"""A survey: how it stands with all subscriptions of a store, for a server that pushes none."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from bide.targets.http.circuit import Circuit
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription

__all__ = ["Known", "Survey"]

FRESH = 1.0
"""For how many seconds the store is not looked into again, however many ask."""


class Known(NamedTuple):
    """What is known of a subscription, and of how its receiver fares."""

    subscription: Subscription
    circuit: Circuit


class Survey:
    """Looks into the store, once a second at most, for what those who push have told there.

    Args:
        records: the subscriptions of the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._lock = asyncio.Lock()
        self._known: Mapping[str, Known] = {}
        self._over = float("-inf")

    async def known(self) -> Mapping[str, Known]:
        """Return all subscriptions by their keys, as they were a second ago or later.

        Raises:
            StoreError: the store cannot be read.
        """
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() >= self._over:
                self._known, self._over = await self._look(), clock() + FRESH
            return self._known

    async def _look(self) -> dict[str, Known]:
        listed = await self._records.listed()
        circuits = await self._records.peers.circuits() if listed else {}
        return {
            one.key: Known(one, circuits.get(one.key, Circuit()).at(one.receiver)) for one in listed
        }
