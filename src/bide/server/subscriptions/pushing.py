"""Push as a part of the service: what it knows of subscriptions, and the pusher beside it."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bide.clock import Clock, sleep
from bide.lane.lane import Lane
from bide.model.errors import BideError, Closed, StoreError
from bide.server.settings import Settings
from bide.targets.amqp import intakes
from bide.targets.http.addresses import Gate
from bide.targets.http.receiver import Answer
from bide.targets.http.records import Records, Survey
from bide.targets.http.stats import Known, PushStats
from bide.targets.http.subscription import Subscription

if TYPE_CHECKING:
    from bide.targets.http.subscription_worker import SubscriptionWorker
    from bide.targets.pusher import Pusher

LOOK = 1.0
"""Every so many seconds it looks whether there are subscriptions, as long as there are none."""

AGAIN = 1.0
"""After so many seconds a pusher that has failed begins anew."""

_log = logging.getLogger("bide.server.push")


class Pushing:
    """Sends what is due to subscriptions, for as long as the service runs.

    Args:
        lane: the way to the store.
        clock: what it waits by.
        settings: what the server was told.
    """

    def __init__(self, lane: Lane, clock: Clock, settings: Settings) -> None:
        self.records = Records(lane, clock)
        self.gate = Gate(settings.push_networks)
        self._lane = lane
        self._clock = clock
        self._settings = settings
        self._pusher: Pusher | None = None
        self._sent = PushStats()
        self._survey = Survey(self.records)
        self._task: asyncio.Task[None] | None = None
        self.failure: str | None = None
        """Why nothing is pushed though it should be."""
        self._stopping = False

    def begin(self) -> None:
        """Begin to push, if the server was told to, and not to stop meanwhile."""
        # A store behind another server is that one's to push from.
        wanted = self._settings.push and not self._settings.behind
        if wanted and not self._stopping and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self, *, hurry: bool = False) -> None:
        """Claim no more; let what is under way finish within the grace, then hand it back.

        Args:
            hurry: hand it back at once.
        """
        if hurry and self._pusher is not None:
            self._pusher.hurry()
        if self._task is not None and not self._stopping:
            running = sum(len(worker.running) for worker in self.workers.values())
            if running:
                grace = self._settings.grace
                _log.info("stopping; pushes under way: %d, with %g s to finish", running, grace)
            self._task.cancel()
        self._stopping = True

    async def end(self) -> None:
        """Wait until all is finished or handed back."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._pusher is not None:
            await self._pusher.close()

    def look(self) -> None:
        """Look at once for what has changed."""
        if self._pusher is not None:
            self._pusher.look()

    @property
    def workers(self) -> "dict[str, SubscriptionWorker]":
        """What is at work in this process, by the keys of the subscriptions."""
        return {} if self._pusher is None else self._pusher.workers

    async def known(self) -> Mapping[str, Known]:
        """Return all subscriptions by their keys, with the circuits that those who push tell of.

        Raises:
            StoreError: they are not pushed from here, and the store cannot be read.
        """
        if self._task is not None and self._pusher is not None and self._pusher.looked:
            workers = self._pusher.workers.items()
            return {key: Known(worker.subscription, worker.circuit) for key, worker in workers}
        return {} if self._settings.behind else await self._survey.known()

    @property
    def sent(self) -> PushStats:
        """What this process has sent so far."""
        return self._sent if self._pusher is None else self._sent.plus(self._pusher.sent)

    async def ping(self, subscription: Subscription) -> Answer:
        """Send a request that carries no message, to see what the receiver says."""
        return await self._made().ping(subscription)

    def _made(self) -> "Pusher":
        # Only now: a server without subscriptions does not load what sends.
        from bide.targets.pusher import Pusher

        if self._pusher is None:
            self._pusher = Pusher(
                self._lane, self._clock, gate=self.gate, lease=self._settings.push_lease,
                intakes=intakes(self._settings.rabbitmq),
            )  # fmt: skip
        return self._pusher

    async def _run(self) -> None:
        """Push; begin again after a failure that nobody expected."""
        loop = asyncio.get_running_loop()
        while True:
            recovery = loop.call_later(2 * LOOK, setattr, self, "failure", None)
            try:
                await self._until_wanted()
                _log.info("pushing to subscriptions")
                return await self._made().run(self._settings.grace)
            except Closed:
                return  # the service is over
            except Exception as error:  # noqa: BLE001  (it is logged, and told at /readyz)
                _log.exception("push has failed, and begins anew")
                told = str(error) if isinstance(error, BideError) else type(error).__name__
                self.failure = f"push has failed, and begins anew: {told}"
                self._sent, self._pusher = self.sent, None
            finally:
                recovery.cancel()
            await sleep(self._clock, AGAIN)

    async def _until_wanted(self) -> None:
        while not self._settings.rabbitmq:
            try:
                if await self.records.listed():
                    return
            except Closed:
                raise
            except StoreError as error:
                _log.warning("the subscriptions could not be looked at: %s", error)
            await sleep(self._clock, LOOK)
