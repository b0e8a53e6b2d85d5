"""The state of all subscriptions of a store, for a server that does not push."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from bide.targets.http.circuit import Circuit
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription

FRESH = 1.0
"""Seconds for which one look into the store answers all readers."""


class Known(NamedTuple):
    """A subscription and its circuit."""

    subscription: Subscription
    circuit: Circuit


class Survey:
    """Reads from the store, once a second at most, what the servers that push have stored.

    Args:
        records: the subscriptions of the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._lock = asyncio.Lock()
        self._known: Mapping[str, Known] = {}
        self._over = float("-inf")

    async def known(self) -> Mapping[str, Known]:
        """Return all subscriptions by their keys, at most a second old.

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
