"""The pusher: all subscriptions of a store, as one server works on them."""

import asyncio
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any
from zlib import crc32

from bide.clock import SYSTEM_CLOCK, Clock, sleep
from bide.consuming.store_client import StoreClient
from bide.lane.lane import Lane
from bide.model.errors import Closed, StoreError
from bide.targets.http.addresses import Gate
from bide.targets.http.answer import Answer
from bide.targets.http.client import Busy, HttpClient, Lookup, lookup
from bide.targets.http.deliveries import Deliveries
from bide.targets.http.peers import share
from bide.targets.http.push_stats import PushStats
from bide.targets.http.records import Records
from bide.targets.http.sender import Sender
from bide.targets.http.subscription import Subscription
from bide.targets.http.subscription_worker import SubscriptionWorker
from bide.targets.port import Target
from bide.targets.rabbitmq.address import Address, is_amqp

if TYPE_CHECKING:
    from bide.targets.rabbitmq.intake import Intake
    from bide.targets.rabbitmq.target import RabbitMQ

__all__ = ["Pusher"]

LEASE = 30.0
"""For how many seconds a message is held at a time, if nobody says otherwise."""

LOOK = 1.0
"""Every so many seconds it looks for subscriptions that are new or have changed."""

SEEN = 2.0
"""Every so many seconds it tells other servers that it is there."""

INTERRUPTED = 5.0
"""Seconds to tell the store what became of the last messages."""

_log = logging.getLogger("bide.server.push")


class _Works:
    """An outlet, and the tasks that keep it going."""

    def __init__(self, outlet: SubscriptionWorker) -> None:
        self.outlet = outlet
        loop, consumer = asyncio.get_running_loop(), outlet.consumer
        self.claims = loop.create_task(outlet.claim())
        self.chores = [
            loop.create_task(chore()) for chore in (consumer.settle, consumer.beat, consumer.report)
        ]

    @property
    def failure(self) -> BaseException | None:
        """What has ended one of its tasks, which never end by themselves."""
        for task in (self.claims, *self.chores):
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None


class Pusher:
    """Sends the due messages of all subscriptions of a store.

    Any number of servers may do so on one store: they claim what they send, so nothing is sent
    twice while all is well, and what one of them held when it died goes out by another.

    Args:
        lane: the way to the store.
        clock: what it waits by.
        networks: networks that may be sent to though they are not public, such as "10.1.0.0/16".
        gate: which addresses may be sent to, instead of `networks`.
        lease: for how many seconds a message is held at a time. It is extended while the receiver
            takes its time; of a server that died another one takes over after that.
        holder: as whom it claims; host and process otherwise.
        lookup: finds the addresses of a host; by default the system's resolver.
        tls: checks certificates; against the system's authorities by default.
        connections: how many may be open; a quarter of the file descriptors by default.
        intakes: exchanges of RabbitMQ whose delayed messages are taken into the store, and
            published when they are due.
        queue_type: of the queues that intakes declare: "quorum" or "classic".
    """

    def __init__(
        self,
        lane: Lane,
        clock: Clock = SYSTEM_CLOCK,
        *,
        networks: Iterable[str] = (),
        gate: Gate | None = None,
        lease: float = LEASE,
        holder: str | None = None,
        lookup: Lookup = lookup,
        tls: ssl.SSLContext | None = None,
        connections: int | None = None,
        intakes: Iterable[Address] = (),
        queue_type: str = "quorum",
    ) -> None:
        self.records = Records(lane, clock)
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._store_client = StoreClient(lane, clock)
        self._clock = clock
        self._gate = gate or Gate(networks)
        self._lease = round(lease * 1000)
        self._hurrying = asyncio.Event()
        self._options: dict[str, Any] = {"lookup": lookup, "tls": tls, "limit": connections}
        self._sender: Sender | None = None
        self._rabbitmq: RabbitMQ | None = None
        self._addresses = list(intakes)
        self._queue_type = queue_type
        self._intakes: dict[Intake, asyncio.Task[None]] = {}
        self._unsubscribed: list[Subscription] = []
        self._works: dict[str, _Works] = {}
        self._leaving: dict[asyncio.Task[None], SubscriptionWorker] = {}
        self._past = PushStats()
        self._look = asyncio.Event()
        self._there = [self.holder]
        self._seen = float("-inf")
        self.looked = 0
        """How often it has looked for what is new."""

    @property
    def outlets(self) -> dict[str, SubscriptionWorker]:
        """What is at work, by the keys of the subscriptions."""
        return {key: works.outlet for key, works in self._works.items()}

    @property
    def sent(self) -> PushStats:
        """What it has sent so far, with what came of it."""
        outlets = [works.outlet for works in self._works.values()] + [*self._leaving.values()]
        taken = PushStats(taken={one.address.exchange: one.taken for one in self._intakes})
        return reduce(PushStats.plus, [outlet.sent for outlet in outlets], self._past.plus(taken))

    def target(self, subscription: Subscription) -> Target:
        """Return what sends the messages of a subscription."""
        if is_amqp(subscription.url):
            if self._rabbitmq is None:
                from bide.targets.rabbitmq.target import RabbitMQ

                self._rabbitmq = RabbitMQ(
                    self._clock, self._gate, {one.broker for one in self._addresses}
                )
            return self._rabbitmq
        if self._sender is None:
            client = HttpClient(self._clock, self._gate, **self._options)
            self._sender = Sender(self._clock, client)
        return self._sender

    def look(self) -> None:
        """Look at once for what has changed."""
        self._look.set()

    def hurry(self) -> None:
        """Do not wait any more for what is under way, once this is stopping: hand it back."""
        self._hurrying.set()

    async def run(self, grace: float = 30.0) -> None:
        """Push until this is cancelled; then finish what is under way, or hand it back.

        Args:
            grace: how many seconds the requests under way get to end by themselves.
        """
        try:
            for address in self._addresses:
                self._take(address)
            while True:
                self._look.clear()
                try:
                    await self._refresh()
                except Closed:
                    raise
                except StoreError as error:
                    _log.warning("the subscriptions could not be looked at: %s", error)
                self.looked += 1
                await _either(self._look.wait(), sleep(self._clock, LOOK))
        finally:
            await self._stop(grace)

    def _take(self, address: Address) -> None:
        from bide.targets.rabbitmq.intake import Intake

        intake = Intake(address, self._store_client, queue_type=self._queue_type)
        self._intakes[intake] = asyncio.create_task(intake.run())
        self._unsubscribed.append(intake.subscription)

    async def _subscribe(
        self, wanted: Subscription, known: Mapping[str, Subscription]
    ) -> Subscription:
        """Have what an intake takes published when it is due; keep what a user has set."""
        there = known.get(wanted.key)
        if there is None or there.signed:
            return (await self.records.put(wanted)).subscription
        fields = {"url": wanted.url, "queue": wanted.queue}
        return await self.records.change(wanted.namespace, wanted.name, **fields) or there

    async def _refresh(self) -> None:
        for taking in self._intakes.values():
            if taking.done():
                taking.result()  # it never ends by itself: this raises what has ended it
        known = {one.key: one for one in await self.records.listed(tidy=True)}
        while self._unsubscribed:
            kept = await self._subscribe(self._unsubscribed[-1], known)
            known[kept.key] = kept
            self._unsubscribed.pop()
        peers = self.records.peers
        circuits = await peers.circuits() if known else {}
        if known and self._clock.monotonic() - self._seen >= SEEN:
            self._there = await peers.present(self.holder, self._told())
            self._seen = self._clock.monotonic()
        there, place = self._there, self._there.index(self.holder)
        for key, works in list(self._works.items()):
            if (failure := works.failure) is not None:
                _log.error("push of %s has failed, and begins anew", key, exc_info=failure)
                self._end(key)
            elif (
                key not in known or known[key].source != works.outlet.consumer.queue_handlers.queue
            ):
                self._end(key)
        if self._rabbitmq is not None:
            self._rabbitmq.keep(one.url for one in known.values())
        for key, subscription in known.items():
            turn = crc32(key.encode())
            places = share(subscription.concurrency, place, len(there), turn)
            rate = None if subscription.rate is None else subscription.rate / len(there)
            outlet = (self._works.get(key) or self._begin(key, subscription)).outlet
            outlet.become(subscription, places, rate)
            outlet.hear(circuits.get(key))
            # Another server each time: the receiver may be out of reach from one of them alone.
            turn = crc32(f"{key} {outlet.circuit.until}".encode())
            outlet.probe(share(1, place, len(there), turn) == 1)

    def _told(self) -> dict[str, Deliveries]:
        found = {key: outlet.current() for key, outlet in self.outlets.items()}
        return {key: told for key, told in found.items() if told.answers or told.running}

    def _begin(self, key: str, subscription: Subscription) -> _Works:
        outlet = SubscriptionWorker(
            subscription, self.target, self.records, self._store_client, f"push:{self.holder}",
            self._lease, stale=self.look,
        )  # fmt: skip
        works = self._works[key] = _Works(outlet)
        return works

    def _end(self, key: str) -> None:
        works = self._works.pop(key)
        leaving = asyncio.get_running_loop().create_task(self._finish(works, None))
        self._leaving[leaving] = works.outlet
        leaving.add_done_callback(self._left)

    def _left(self, leaving: asyncio.Task[None]) -> None:
        self._past = self._past.plus(self._leaving.pop(leaving).sent.ceased())

    async def _finish(self, works: _Works, grace: float | None) -> None:
        """Claim no more; let what runs end within the grace, then hand it back."""
        consumer = works.outlet.consumer
        works.claims.cancel()
        await asyncio.gather(works.claims, return_exceptions=True)
        consumer.leave()
        quiet = asyncio.ensure_future(consumer.until_quiet())
        try:
            if works.failure is None:
                await _either(quiet, self._patience(grace))
            for act in (consumer.hand_back, consumer.abandon):
                if not quiet.done():
                    act()
                    await _either(quiet, sleep(self._clock, INTERRUPTED))
            if not quiet.done():
                _log.error("the store could not be told of the last messages; their leases lapse")
        finally:
            for task in (quiet, *works.chores):
                task.cancel()
            await asyncio.gather(quiet, *works.chores, return_exceptions=True)
            consumer.close()

    async def _patience(self, grace: float | None) -> None:
        """Wait until what is under way has had its time."""
        over = None if grace is None else sleep(self._clock, grace)
        await _either(self._hurrying.wait(), over)

    async def _stop(self, grace: float) -> None:
        for taking in self._intakes.values():
            taking.cancel()
        await asyncio.gather(*self._intakes.values(), return_exceptions=True)
        leaving = dict(self._leaving)
        ending = [self._finish(works, grace) for works in self._works.values()]
        await asyncio.gather(*ending, return_exceptions=True)
        self._past, self._works = self.sent, {}
        for outlet in leaving.values():
            outlet.consumer.hand_back()
        if leaving:
            await _either(asyncio.wait(leaving), sleep(self._clock, INTERRUPTED))
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await self.close()
        try:
            await self.records.peers.leave(self.holder)
        except (StoreError, Closed) as error:
            _log.debug("others were not told of the end: %s", error)

    async def close(self) -> None:
        """Close all connections."""
        targets: list[Target | None] = [self._sender, self._rabbitmq]
        for target in targets:
            if target is not None:
                await target.close()

    async def ping(self, subscription: Subscription) -> Answer:
        """See whether the receiver is there; send no message."""
        sending = asyncio.ensure_future(self.target(subscription).ping(subscription))
        over = sleep(self._clock, subscription.timeout / 1000)
        await _either(sending, over)
        if sending.done():
            error = sending.exception()
            return Answer(None, str(error)) if isinstance(error, Busy) else sending.result()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return Answer(None, f"no answer within {subscription.timeout / 1000:g} s")


async def _either(one: Any, other: Any) -> None:
    """Wait until one of two has come to pass, and end what was begun here for the other."""
    waits = [asyncio.ensure_future(it) for it in (one, other) if it is not None]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        mine = [wait for wait in waits if wait is not one and wait is not other]
        for wait in mine:  # a future that was handed in goes on
            wait.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
