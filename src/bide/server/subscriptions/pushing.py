"""Push as a part of the service: the pusher, and what it knows of the subscriptions."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from bide.clock import Clock
from bide.consuming.graceful_stop import unfinished
from bide.lane.lane import Lane
from bide.logs import logger
from bide.server.settings import Settings
from bide.targets.amqp import intakes
from bide.targets.http.addresses import AddressGate
from bide.targets.http.receiver import Circuit
from bide.targets.http.records import Records
from bide.targets.http.stats import Known
from bide.targets.pusher import Pusher
from bide.tasks import background

FRESH = 1.0
"""Seconds for which the subscriptions that were read from the store are used."""

_log = logger("bide.server.push")


class Pushing:
    """Sends due messages to subscriptions while the service runs.

    Args:
        lane: the lane of the store.
        clock: the clock of the store.
        settings: the settings of the server.
    """

    def __init__(self, lane: Lane, clock: Clock, settings: Settings) -> None:
        self.pusher = Pusher(
            lane,
            clock,
            gate=AddressGate(settings.push_networks),
            lease=settings.push_lease,
            intakes=intakes(settings.rabbitmq),
        )
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        """Pushes until it is cancelled; `None` before `begin`, or if this process does not push."""
        self._stopping = False
        """Whether `stop` was called."""
        self._known: Mapping[str, Known] = {}
        """What was read from the store by a process that does not push."""
        self._known_until = float("-inf")
        """Until when that is used, in seconds of the monotonic clock."""

    def begin(self) -> None:
        """Begin to push if the settings say so, unless the server is stopping."""
        # From a store behind another server, that server pushes.
        should_push = self._settings.push and not self._settings.behind
        if should_push and not self._stopping and self._task is None:
            run = partial(self.pusher.run, self._settings.grace)
            self._task = background("bide-push", run)

    def stop(self, *, hurry: bool = False) -> None:
        """Claim no more; release messages that are not sent within the grace.

        Args:
            hurry: release them at once.
        """
        if hurry:
            self.pusher.hurry()
        if self._task is not None and not self._stopping:
            if rest := unfinished(self.pusher.workers.values()):
                grace = self._settings.grace
                _log.info("stopping; pushes: %s, with %g s to finish", rest, grace)
            self._task.cancel()
        self._stopping = True

    async def end(self) -> None:
        """Wait until all messages are sent or released."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.pusher.close()

    async def known(self) -> Mapping[str, Known]:
        """Return all subscriptions by name, with the circuits that the pushers report.

        Raises:
            StoreError: this process does not push, and the store cannot be read.
        """
        if self.pusher.known or self._settings.behind:
            return self.pusher.known
        now = time.monotonic()
        if now >= self._known_until:
            self._known = await read_known(self.pusher.records)
            self._known_until = now + FRESH
        return self._known


async def read_known(records: Records) -> dict[str, Known]:
    """Read all subscriptions and their circuits from the store, by name.

    Raises:
        StoreError: the store cannot be read.
    """
    subscriptions = await records.listed()
    circuits = await records.peers.circuits() if subscriptions else {}
    return {
        subscription.name: Known(
            subscription, circuits.get(subscription.name, Circuit()).of(subscription.tag)
        )
        for subscription in subscriptions
    }
