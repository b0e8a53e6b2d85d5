"""One subscription in one process: claim its due messages, send and settle them."""

import asyncio
import random
from types import SimpleNamespace
from typing import Protocol
from zlib import crc32

from bide.consuming.claiming import CLAIM_MOST
from bide.consuming.consumer import Consumer
from bide.consuming.handling import Handler, Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.store_client import StoreClient
from bide.consuming.verdict import RELEASE, Verdict
from bide.logs import logger
from bide.model.errors import StoreError
from bide.model.message import Message
from bide.model.replies import Claimed
from bide.observing.tally import Tally
from bide.targets.http.peers import share
from bide.targets.http.receiver import Circuit, Failed, Pace, ReceiverAnswer, verdict
from bide.targets.http.records import Overtaken, Records
from bide.targets.http.sender import ReceiverBusy
from bide.targets.http.stats import Deliveries
from bide.targets.http.subscription import Subscription


class Target(Protocol):
    """Sends messages to the receivers of one kind."""

    def room_for(self, to: Subscription, under_way: int, *, failing: bool) -> int:
        """Return how many more messages of a subscription may be sent now.

        Args:
            to: the subscription.
            under_way: how many of its messages are being sent, or are about to be.
            failing: whether its receiver has failed since it last accepted a message.
        """

    async def send(self, message: Message, to: Subscription, *, failing: bool) -> ReceiverAnswer:
        """Send a message; return what came of it. Any number may be sent at a time."""

    async def ping(self, to: Subscription) -> ReceiverAnswer:
        """See whether the receiver is there."""


class PushProcess(Protocol):
    """What a worker needs of the process that runs it: `bide.targets.pusher`."""

    lease: int
    """The length of a lease, in milliseconds."""
    claimer: str
    """The name of the holder in claims."""
    store_client: StoreClient
    records: Records

    def target(self, subscription: Subscription) -> Target:
        """Return what sends to the receiver of a subscription."""

    def look(self) -> None:
        """Read the subscriptions now."""


AGAIN = 1.0
"""The most seconds until a changed subscription is read again."""

FULL = 0.25
"""Seconds between two checks whether this process has a free connection."""

OVERDUE = 5_000
"""Milliseconds, beyond the timeout, after which the next server sends a probe that is due."""

_log = logger("bide.server.push")


class SubscriptionWorker(Consumer):
    """Claims the due messages of a subscription, and sends them to its receiver.

    Args:
        subscription: what is sent where.
        pusher: what runs the subscriptions of this process.
    """

    def __init__(self, subscription: Subscription, pusher: PushProcess) -> None:
        super().__init__(
            QueueHandlers(subscription.queue, pusher.lease, subscription.concurrency),
            (),
            SimpleNamespace(),
            pusher.store_client,
            pusher.claimer,
        )
        self.circuit = Circuit()
        self.deliveries = Deliveries()
        """The answers of the receiver so far."""
        self._pusher = pusher
        self.pace = Pace(None)
        self._place, self._among = 0, 1
        """The number of this server, from 0, and how many there are."""
        self._held_until = 0.0
        """Until when nothing is sent, by the monotonic clock; 0: no wait was asked for."""
        # Sets the subscription, the share of the limits and the handler.
        self.follow(subscription, 0, 1)

    # Called by the pusher.

    def follow(self, subscription: Subscription, place: int, among: int) -> None:
        """Follow a change of the subscription, or of the servers that share its limits.

        Args:
            subscription: as it is now.
            place: the number of this server, from 0.
            among: how many servers there are.
        """
        is_changed = self.circuit.tag != subscription.tag
        if not is_changed and (place, among) == (self._place, self._among):
            return
        if is_changed:
            self.circuit = Circuit(tag=subscription.tag)
            self._held_until = 0.0
        self.subscription, self._place, self._among = subscription, place, among
        self._divide(subscription, place, among)
        self.queue_handlers.concurrency = max(self.share, 1)
        self.queue_handlers.handlers[None] = Handler(
            f"push {subscription.name}",
            self._push,
            is_async=True,
            timeout=subscription.timeout / 1000,
            retry=subscription.backoff,
        )
        self.recall()  # a claim on its way was made by the old share

    def _divide(self, subscription: Subscription, place: int, among: int) -> None:
        """Set this server's share of the running requests, and of the rate.

        With fewer requests than servers, some servers have no share: they send probes only.
        """
        # By the name: else the same servers would have one more for each subscription.
        turn = crc32(subscription.name.encode())
        self.share = share(subscription.concurrency, place, among, turn)
        portion = self.share / subscription.concurrency if self.share else 1 / among
        # The same `Pace` goes on: a new one forgets the last requests, and lets one start at once.
        self.pace.rate = None if subscription.rate is None else subscription.rate * portion

    def adopt_circuit(self, circuit: Circuit) -> None:
        """Take over the circuit of another server."""
        self.circuit = circuit
        self.recall()

    def current(self) -> Tally:
        """Return the totals so far, and how much is running."""
        self.deliveries.running = len(self.running)
        return super().current()

    # Claiming.

    def room(self) -> tuple[int, float | None]:
        """Return how many messages may be sent now, or how many seconds to wait.

        The seconds are `None` if some may be sent, or if nobody knows: then `recall`, or a request
        that ends, makes the worker ask again.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        if self.subscription.paused:
            return 0, None
        running = len(self.running)
        target = self._pusher.target(self.subscription)
        free = target.room_for(self.subscription, running, failing=self.circuit.failures > 0)
        if free <= 0:
            return 0, FULL
        room = min(self.share - running, free)
        match self.circuit.state(now):
            case "open":
                return 0, (self.circuit.until - now) / 1000
            case "half-open":
                until_turn = self._until_turn_to_probe(now)
                if until_turn > 0:
                    return 0, until_turn / 1000
                room = 1 - running
        if room <= 0:
            return 0, None
        if monotonic < self._held_until:
            return 0, self._held_until - monotonic
        count = self.pace.room(min(room, CLAIM_MOST), monotonic)
        return count, None if count else self.pace.wait(monotonic)

    def _until_turn_to_probe(self, now: int) -> int:
        """Return in how many milliseconds this server sends the probe; 0 or less: now.

        Another server begins each time: one of them may not reach the receiver. The next one does
        not wait for its answer: the first may lack the key, or a connection.
        """
        first = crc32(f"{self.subscription.name} {self.circuit.until}".encode())
        servers_before = (self._place - first) % self._among
        if servers_before == 0:
            return 0
        patience = self.subscription.timeout + OVERDUE
        return self.circuit.until + servers_before * patience - now

    async def admits(self, reply: Claimed) -> bool:
        """Tell whether claimed messages may be sent: the subscription in the store is the same."""
        if self._recalled:  # something changed since the claim was sent
            return False
        try:
            is_same = await self._pusher.records.is_unchanged(self.subscription)
        except StoreError:
            is_same = False
        if is_same:
            self.pace.take(len(reply.messages))
        else:
            self._held_until = self._clock.monotonic() + AGAIN  # until the pusher has looked
            self._pusher.look()
        return is_same

    # Sending.

    async def _push(self, handling: Handling) -> None:
        """Send one message.

        Raises:
            Failed: the receiver did not accept it.
        """
        to = self.subscription
        handling.extra_argument = to  # for `judge`: it may have changed by then
        failing = self.circuit.failures > 0
        answer = await self._pusher.target(to).send(handling.message, to, failing=failing)
        probe = self._note(answer, to)
        if answer.gone:
            await self._pause(to)
        if not answer.good:
            raise Failed(answer, probe=probe)

    def judge(self, handling: Handling, error: BaseException) -> Verdict:
        """Return how to settle a message by what the receiver answered."""
        match error:
            case Failed():
                answer, probe = error.answer, error.probe
            case asyncio.CancelledError() if handling.timed_out:
                # `_push` was cancelled before it could count the answer.
                to: Subscription = handling.extra_argument or self.subscription
                answer = ReceiverAnswer(None, f"no answer within {to.timeout / 1000:g} s")
                probe = self._note(answer, to)
            case ReceiverBusy():
                return RELEASE._replace(delay=round(FULL * 1000))
            case asyncio.CancelledError():  # the pusher stops
                return RELEASE
            case _:
                return super().judge(handling, error)
        retry = handling.handler.retry
        is_open = self.circuit.since is not None
        return verdict(
            handling.message, answer, retry, random.random(), is_open=is_open, probe=probe
        )

    def _note(self, answer: ReceiverAnswer, to: Subscription) -> bool:
        """Count an answer in the circuit, and respect its Retry-After.

        Args:
            answer: of the receiver.
            to: the subscription as it was when the request was sent.

        Returns:
            Whether the request was a probe.
        """
        now, circuit = self._clock.now(), self.circuit
        self.deliveries.note(answer, now)
        if to.tag != circuit.tag:
            return False  # the subscription has changed since: the receiver may be another one
        was_probe = circuit.state(now) == "half-open"
        if answer.retry_after:
            retry_at = self._clock.monotonic() + answer.retry_after / 1000
            self._held_until = max(self._held_until, retry_at)
            self.recall()
        was_closed = circuit.since is None
        has_turned = False
        if answer.good:
            has_turned = circuit.succeeded(now)
        elif (answer.counts or was_probe) and not answer.gone:  # a probe with 429 has failed, too
            has_turned = circuit.failed(answer.text, now, most=to.failures, pause=to.probe)
        if has_turned:
            self.recall()
            self._log_turn(answer, to, was_closed=was_closed)
        return was_probe

    def _log_turn(self, answer: ReceiverAnswer, to: Subscription, *, was_closed: bool) -> None:
        """Log that the circuit has closed, or opened; a probe that failed is not worth a line."""
        about = {"subscription": to.name, "namespace": to.namespace or "", "queue": to.queue}
        if answer.good:
            _log.warning("%s: the receiver is back", to.name, extra=about | {"circuit": "closed"})
        elif was_closed:
            _log.error(
                "%s: %d failures in a row, nothing is sent for now: %s",
                to.name,
                self.circuit.failures,
                answer.text,
                extra=about | {"circuit": "open", "reason": answer.text},
            )

    async def _pause(self, to: Subscription) -> None:
        """Pause the subscription: the receiver wants no more messages."""
        reason = "the receiver answered 410 Gone"
        try:
            paused = await self._pusher.records.pause(to.name, reason, to.tag)
        except Overtaken:
            self._pusher.look()  # it may have been changed because of that; the next 410 pauses it
        except StoreError as error:
            _log.warning("%s: could not be paused: %s", to.name, error)
        else:
            _log.error("%s: paused, since %s", to.name, reason)
            self.subscription = paused or to
        self.recall()
