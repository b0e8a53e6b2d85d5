"""One subscription, as one server process works on it."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import msgspec

from bide.clock import sleep
from bide.consuming import policy
from bide.consuming.consumer import FOREVER, Consumer
from bide.consuming.handler import Handler
from bide.consuming.handling import Handling
from bide.consuming.policy import RELEASE, Verdict
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.store_client import StoreClient
from bide.model.commands import Claim
from bide.model.errors import StoreError
from bide.model.replies import Claimed
from bide.targets.http.answer import Answer, Failed, verdict
from bide.targets.http.circuit import Circuit
from bide.targets.http.client import Busy
from bide.targets.http.deliveries import Deliveries
from bide.targets.http.pace import Pace
from bide.targets.http.push_stats import PushStats
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription
from bide.targets.port import Target

__all__ = ["SubscriptionWorker"]

AGAIN = 1.0
"""After so many seconds at most a subscription that was not as it is known here is looked at."""

FULL = 0.25
"""Seconds after which to look again whether this process has a connection left."""

OVERDUE = 5_000
"""After so many milliseconds beyond the time-out a server does not wait any more for the one whose
turn it is to see whether the receiver is back."""

_log = logging.getLogger("bide.server.push")


class SubscriptionWorker:
    """Claims what is due, sends it, and settles it by what the receiver answers.

    Args:
        subscription: what is sent where.
        target: returns what sends the messages of a subscription.
        records: where subscriptions are kept.
        store_client: runs its commands on the store.
        holder: as whom it claims.
        lease: for how many milliseconds a message is held at a time; it is extended while the
            receiver takes its time.
        stale: called when the subscription is not any more as it is known here.
    """

    def __init__(
        self,
        subscription: Subscription,
        target: Callable[[Subscription], Target],
        records: Records,
        store_client: StoreClient,
        holder: str,
        lease: int,
        *,
        stale: Callable[[], None] = lambda: None,
    ) -> None:
        self.subscription = subscription
        self.circuit = Circuit()
        self.deliveries = Deliveries()
        """What came of its requests so far."""
        self._target = target
        self._records = records
        self._store_client = store_client
        self._clock = store_client.clock
        self._loop = asyncio.get_running_loop()
        self._holder = holder
        self._stale = stale
        self._share = subscription.concurrency
        self._sending = 0
        self._probes = True
        self._held_until = 0.0
        queue_handlers = QueueHandlers(subscription.source, lease, subscription.concurrency, {})
        queue_handlers.handlers[None] = self._handler()
        self.consumer = Consumer(
            queue_handlers, (), SimpleNamespace(), store_client, holder, judge=self._judge
        )
        """What starts, extends and settles the deliveries."""
        self._pace = Pace(subscription.rate, self._clock.monotonic())
        self._changed = asyncio.Event()
        self._telling: set[asyncio.Task[None]] = set()
        self._untold = False

    # What it is told.

    def become(self, subscription: Subscription, places: int, rate: float | None) -> None:
        """Go on as the subscription is now, with this server's share of what it may do."""
        news = self.subscription.tag != subscription.tag
        if news or (places, rate) != (self._share, self._pace.rate):
            if news:
                self.circuit, self._held_until, self._untold = Circuit(), 0.0, False
            self.subscription = subscription
            self._share = places
            self._pace.set(rate, self._clock.monotonic())
            queue_handlers = self.consumer.queue_handlers
            queue_handlers.concurrency = max(places, 1)
            queue_handlers.handlers[None] = self._handler()
            self._look_again()

    def hear(self, circuit: Circuit | None) -> None:
        """A server has told how it stands with the receiver; `None`: nobody has."""
        if circuit is not None:  # who had not seen a change yet may have told of another receiver
            circuit = circuit.at(self.subscription.receiver)
        if circuit is not None and circuit.changed > self.circuit.changed:
            self.circuit, self._untold = circuit, False
            self._look_again()
        elif self._untold:
            self._tell_others()

    def probe(self, mine: bool) -> None:
        """It is this server, or another one, that sends one message to a receiver that was dead."""
        if mine != self._probes:
            self._probes = mine
            self._look_again()

    def current(self) -> Deliveries:
        """Return what came of its requests so far, and how many are under way."""
        self.deliveries.running = len(self.consumer.running)
        return self.deliveries

    @property
    def sent(self) -> PushStats:
        """What it has sent so far."""
        key = self.subscription.key
        return PushStats({key: self.consumer.current()}, {key: self.current()})

    def _handler(self) -> Handler:
        one = self.subscription
        return Handler(
            queue=one.source, name=f"push {one.name}", function=self._push, is_async=True,
            decode=None, order="d", timeout=one.timeout / 1000, retry=one.backoff,
            still_wanted=None,
        )  # fmt: skip

    def _look_again(self) -> None:
        """Let whoever waits for anything see what has changed."""
        self._changed.set()
        self.consumer.vacancy.set()

    # Claiming.

    async def claim(self) -> None:
        """Claim what may be sent now, and send it."""
        consumer = self.consumer
        while True:
            self._changed.clear()
            count, pause = self._room()
            if not count:
                consumer.vacancy.clear()
                await self._until(consumer.vacancy.wait(), pause)
                continue
            command = Claim(
                consumer.queue_handlers.queue, count, consumer.queue_handlers.lease, self._holder
            )
            reply = await self._claimed(command)
            if reply is None or not reply.messages:
                continue
            wanted = False
            try:
                wanted = not self._changed.is_set() and await self._still()
            finally:
                if not wanted:  # the subscription has changed meanwhile
                    consumer.give_back(reply)
            if wanted:
                self._pace.take(len(reply.messages))
                consumer.start(reply)

    def _room(self) -> tuple[int, float | None]:
        """Return how many may be claimed now; if none, after how many seconds to look again.

        `None`: only when something has changed.
        """
        now, moment = self._clock.now(), self._clock.monotonic()
        if self.subscription.paused:
            return 0, None
        running = len(self.consumer.running)
        free = self._target(self.subscription).free - (running - self._sending)
        if free <= 0:
            return 0, FULL
        # At most half of the connections that others leave: a receiver that hangs cannot take all.
        room = min(self._share, max(1, (free + running) // 2)) - running
        match self.circuit.state(now):
            case "open":
                return 0, (self.circuit.until - now) / 1000
            case "half-open":
                late = self.circuit.until + self.subscription.timeout + OVERDUE - now
                if not self._probes and late > 0:
                    return 0, late / 1000
                room = 1 - running
        if room <= 0:
            return 0, None
        if moment < self._held_until:
            return 0, self._held_until - moment
        count = self._pace.room(min(room, policy.CLAIM_MOST), moment)
        return count, None if count else self._pace.wait(moment)

    async def _claimed(self, command: Claim) -> Claimed | None:
        """Return what a claim brings; `None` when something has changed meanwhile."""
        asking = self._loop.create_task(
            self._store_client.patiently(Claimed, command, self, FOREVER)
        )
        changing = self._loop.create_task(self._changed.wait())
        try:
            await asyncio.wait((asking, changing), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        except asyncio.CancelledError:
            if asking.done():
                self.consumer.give_back(asking.result())
            raise
        finally:
            changing.cancel()
            asking.cancel()  # what it brings from now on goes back by itself

    async def _still(self) -> bool:
        """Tell whether what was claimed is to be sent: looked up now, not remembered."""
        try:
            still = await self._records.still(self.subscription)
        except StoreError:
            still = False
        if not still:
            self._held_until = self._clock.monotonic() + AGAIN  # until the pusher has looked
            self._stale()
        return still

    async def _until(self, event: Awaitable[object], seconds: float | None) -> None:
        waits = [asyncio.ensure_future(event)]
        if seconds is not None:
            waits.append(asyncio.ensure_future(sleep(self._clock, max(0.0, seconds))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    # Sending.

    async def _push(self, one: Handling) -> None:
        """Send one message.

        Raises:
            Failed: the receiver has not taken it.
        """
        one.given = to = self.subscription
        self._sending += 1
        try:
            answer = await self._target(to).send(one.message, to)
        finally:
            self._sending -= 1
        self._note(answer, to)
        if answer.gone:
            await self._gone(to)
        if not answer.good:
            raise Failed(answer)

    def _judge(self, one: Handling, error: BaseException) -> Verdict | None:
        match error:
            case Failed():
                answer = error.answer
            case asyncio.CancelledError() if one.timed_out:
                to: Subscription = one.given or self.subscription
                answer = Answer(None, f"no answer within {to.timeout / 1000:g} s")
                self._note(answer, to)
            case Busy():
                return RELEASE._replace(delay=round(FULL * 1000))
            case asyncio.CancelledError():
                return RELEASE
            case _:
                return None
        retry = one.handler.retry
        is_open = self.circuit.since is not None
        return verdict(one.message, answer, retry, random.random(), is_open=is_open)

    def _note(self, answer: Answer, to: Subscription) -> None:
        """Let the circuit know what came of a request, and be quiet if that was asked for."""
        now, circuit = self._clock.now(), self.circuit
        self.deliveries.note(answer, now)
        if to.url != self.subscription.url:
            return  # of the receiver that it was before: nothing follows for the one it is now
        if answer.again:
            moment = self._clock.monotonic() + answer.again / 1000
            self._held_until = max(self._held_until, moment)
            self._look_again()
        if answer.good:
            turned = circuit.succeeded(now)
            if turned:
                _log.warning(
                    "%s: the receiver is back", self.subscription.key, extra=self._fields("closed")
                )
        elif answer.counts and not answer.gone:
            was = circuit.since
            turned = circuit.failed(
                answer.text, now, most=self.subscription.failures, pause=self.subscription.probe
            )
            if turned and was is None:
                _log.error(
                    "%s: %d failures in a row, nothing is sent for now: %s",
                    self.subscription.key, circuit.failures, answer.text,
                    extra=self._fields("open") | {"reason": answer.text},
                )  # fmt: skip
        else:
            turned = False
        if turned:
            self._tell_others()
            self._look_again()

    def _fields(self, circuit: str) -> dict[str, object]:
        one = self.subscription
        return {
            "subscription": one.name, "namespace": one.namespace or "", "queue": one.queue,
            "circuit": circuit,
        }  # fmt: skip

    def _tell_others(self) -> None:
        told = msgspec.structs.replace(self.circuit, receiver=self.subscription.receiver)
        task = self._loop.create_task(self._tell_circuit(told))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_circuit(self, told: Circuit) -> None:
        try:
            await self._records.peers.tell_circuit(self.subscription.key, told)
            self._untold = False
        except StoreError as error:
            self._untold = True  # it is tried again when the subscriptions are looked at
            _log.warning("%s: others were not told of it: %s", self.subscription.key, error)

    async def _gone(self, to: Subscription) -> None:
        """The receiver wants nothing any more: somebody has to look at that."""
        reason = "the receiver answered 410 Gone"
        if self.subscription.paused or to.url != self.subscription.url:
            return
        _log.error("%s: paused, since %s", self.subscription.key, reason)
        try:
            self.subscription = await self._records.pause_this(self.subscription, reason)
        except StoreError as error:
            _log.warning("%s: could not be paused: %s", self.subscription.key, error)
        self._look_again()
