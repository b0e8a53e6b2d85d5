"""The pusher: runs all subscriptions of a store in one process."""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bide.clock import SYSTEM_CLOCK, Clock, sleep
from bide.consuming.dead_holders import end_leases_of_dead
from bide.consuming.graceful_stop import stop
from bide.consuming.store_client import StoreClient
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model.errors import BideError, Closed, StoreError
from bide.model.message import Message
from bide.observing.heartbeat import Heartbeat, Report
from bide.observing.process_origin import of_this_process
from bide.observing.tally import Tally, total
from bide.targets.amqp import NOT_INSTALLED, Address, is_amqp, is_installed
from bide.targets.http.addresses import AddressGate
from bide.targets.http.client import HttpClient
from bide.targets.http.encryption import KEY, KEY_FILE
from bide.targets.http.receiver import Circuit, ReceiverAnswer
from bide.targets.http.records import Records
from bide.targets.http.sender import ReceiverBusy, Sender
from bide.targets.http.stats import Known, PushStats
from bide.targets.http.subscription import Subscription
from bide.targets.http.subscription_worker import SubscriptionWorker, Target
from bide.tasks import background, cancel, first_of

if TYPE_CHECKING:
    from bide.targets.rabbitmq.intake import Intake
    from bide.targets.rabbitmq.publisher import RabbitMQ

LEASE = 30.0
"""The default lease, in seconds."""

POLL = 1.0
"""Seconds between two polls for subscriptions that are new or have changed."""

SEEN = 2.0
"""Seconds between two signs of life for other servers."""

_log = logger("bide.server.push")


class Pusher:
    """Sends the due messages of all subscriptions of a store.

    Any number of servers may push from one store: each claims what it sends. If a server dies,
    others send its messages when their leases expire, or when one starts on its machine.

    Args:
        lane: the lane to the store.
        clock: measures waits.
        gate: decides which addresses are allowed; by default those that are public.
        lease: seconds. It is extended while a request runs.
        holder: identifies this pusher among all; by default made of host and process.
        client: sends requests; by default one with the defaults of `HttpClient`.
        intakes: exchanges of RabbitMQ whose delayed messages are stored, and published when they
            are due.
        queue_type: of the queues that intakes declare: "quorum" or "classic".
    """

    def __init__(
        self,
        lane: Lane,
        clock: Clock = SYSTEM_CLOCK,
        *,
        gate: AddressGate | None = None,
        lease: float = LEASE,
        holder: str | None = None,
        client: HttpClient | None = None,
        intakes: Iterable[Address] = (),
        queue_type: str = "quorum",
    ) -> None:
        self.records = Records(lane, clock)
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.claimer = f"push:{self.holder}"
        """The name of the holder in its claims."""
        self.store_client = StoreClient(lane, clock)
        self._clock = clock
        self.gate = gate or AddressGate()
        self.lease = round(lease * 1000)
        """The length of a lease, in milliseconds."""
        self._hurrying = asyncio.Event()
        """Set when running requests must not be waited for at the stop."""
        self.sender = Sender(clock, client or HttpClient(clock, self.gate))
        self._rabbitmq: RabbitMQ | None = None
        """What publishes to RabbitMQ; `None` until a subscription needs it."""
        self.intakes = [self._intake(address, queue_type) for address in intakes]
        self._intake_tasks: dict[Intake, asyncio.Task[None]] = {}
        """The tasks that run the intakes."""
        self._unsubscribed = [intake.subscription for intake in self.intakes]
        """The subscriptions of intakes that are not in the store yet."""
        self.workers: dict[str, SubscriptionWorker] = {}
        """The running subscriptions, by name."""
        self._ending: set[asyncio.Future[Any]] = set()
        """The ends of workers that finish their last requests."""
        self._look = asyncio.Event()
        """Set when the subscriptions must be read at once."""
        self.servers = [self.holder]
        """The holders of all servers that push, in the same order on each server."""
        self._present_at = float("-inf")
        """When this server last told the others that it is running, by the monotonic clock."""
        self.looked = 0
        """How often it has looked for changes."""
        self.failure: str | None = None
        """Why it failed when it last looked; `None`: it works."""

    @property
    def known(self) -> dict[str, Known]:
        """The running subscriptions and their circuits, by name."""
        return {
            name: Known(worker.subscription, worker.circuit)
            for name, worker in self.workers.items()
        }

    @property
    def sent(self) -> PushStats:
        """The figures so far."""
        workers = self.workers.items()
        # Exchanges of two brokers may have one name: `total` adds their figures.
        taken = total({intake.address.exchange: intake.taken} for intake in self.intakes)
        return PushStats(
            tallies={name: worker.current() for name, worker in workers},
            deliveries={name: worker.deliveries for name, worker in workers},
            taken=taken,
        )

    def target(self, subscription: Subscription) -> Target:
        """Return what sends the messages of a subscription."""
        if not is_amqp(subscription.url):
            return self.sender
        if self._rabbitmq is None:
            if not is_installed():
                return _NotInstalled()
            from bide.targets.rabbitmq.publisher import RabbitMQ

            trusted = {intake.address.broker for intake in self.intakes}
            self._rabbitmq = RabbitMQ(self._clock, self.gate, trusted)
        return self._rabbitmq

    def look(self) -> None:
        """Look for changes at once."""
        self._look.set()

    def hurry(self) -> None:
        """Do not wait for running requests at the stop: release their messages."""
        self._hurrying.set()

    async def run(self, grace: float = 30.0) -> None:
        """Push until this is cancelled; then finish running requests, or release their messages.

        Args:
            grace: seconds that running requests get to finish.
        """
        lane, origin = self.store_client.lane, of_this_process()
        heartbeat = Heartbeat(  # by the system's clock: the report is for people
            lane,
            SYSTEM_CLOCK,
            self.claimer,
            report=lambda: Report({self.claimer: list(self.tallies())}, origin=origin),
            tallies=self.tallies,
            after_first=lambda: end_leases_of_dead(lane.acall, self.tallies()),
        )
        heartbeat_tasks: list[asyncio.Task[None]] = []
        self._hurrying.clear()
        self.workers, self._present_at = {}, float("-inf")
        try:
            while True:
                self._look.clear()
                try:
                    await self._refresh()
                    self.failure = None
                except Closed:
                    raise
                except StoreError as error:
                    # Not a failure of push: /readyz asks the store itself.
                    _log.warning("the subscriptions could not be looked at: %s", error)
                except Exception as error:  # noqa: BLE001  (it is logged, and shown at /readyz)
                    why = str(error) if isinstance(error, BideError) else type(error).__name__
                    self.failure = f"push failed and is tried again: {why}"
                    _log.exception("push failed and is tried again")
                self.looked += 1
                # Other processes read the reports, so a store of this process alone needs none.
                if self.workers and not heartbeat_tasks and lane.capabilities.shared:
                    heartbeat_tasks.append(background("bide-heartbeat", heartbeat.keep))
                await first_of(self._look.wait(), sleep(self._clock, POLL))
        finally:
            await self._stop(grace)
            await cancel(heartbeat_tasks)

    def tallies(self) -> dict[str, Tally]:
        """Return what was done so far, by queue."""
        return total(
            {worker.subscription.queue: worker.current()} for worker in self.workers.values()
        )

    def _intake(self, address: Address, queue_type: str) -> "Intake":
        from bide.targets.rabbitmq.intake import Intake

        return Intake(address, self.store_client, queue_type=queue_type)

    async def _subscribe_intake(
        self, wanted: Subscription, known: Mapping[str, Subscription]
    ) -> Subscription:
        """Subscribe the exchange of an intake; keep settings that a user has changed.

        Args:
            wanted: the subscription that the intake needs.
            known: the subscriptions in the store, by name.

        Returns:
            The subscription as it is in the store now.
        """
        subscription = known.get(wanted.name)
        # One that is signed sends to a web server, and one that is encrypted lacks its key: neither
        # can become that of the intake by a change of URL.
        if subscription is None or subscription.signed or subscription.encrypted:
            return (await self.records.put(wanted)).subscription
        fields = {"url": wanted.url, "queue": wanted.queue}
        return await self.records.change(wanted.name, **fields) or subscription

    async def _refresh(self) -> None:
        """Read the subscriptions and what other servers say; start, change and end workers.

        Each intake needs a subscription that publishes its messages: it is stored first.
        """
        for intake in self.intakes:
            if intake not in self._intake_tasks:
                self._intake_tasks[intake] = background("bide-intake", intake.run)
        subscriptions = {
            subscription.name: subscription for subscription in await self.records.listed()
        }
        while self._unsubscribed:
            wanted = self._unsubscribed[-1]
            subscriptions[wanted.name] = await self._subscribe_intake(wanted, subscriptions)
            # Only now: if the store fails, the next call of `_refresh` tries again.
            self._unsubscribed.pop()
        circuits = await self.records.peers.circuits() if subscriptions else {}
        if subscriptions and self._clock.monotonic() - self._present_at >= SEEN:
            await self._show_presence()
        self._end_outdated(subscriptions)
        if self._rabbitmq is not None:  # it closes the connections to all other brokers
            self._rabbitmq.keep(subscription.url for subscription in subscriptions.values())
        await self._follow(subscriptions, circuits)

    async def _show_presence(self) -> None:
        """Tell other servers that this one is running, with its figures; read who else is."""
        figures = {
            name: deliveries
            for name, deliveries in self.sent.deliveries.items()
            if deliveries.answers or deliveries.running
        }
        self.servers = await self.records.peers.present(self.holder, figures)
        self._present_at = self._clock.monotonic()

    def _end_outdated(self, subscriptions: Mapping[str, Subscription]) -> None:
        """End the workers that have failed, or whose subscription is gone or has another queue."""
        for name, worker in list(self.workers.items()):
            if (failure := worker.failure) is not None:
                _log.error("push of %s has failed, and starts again", name, exc_info=failure)
                self._end(self.workers.pop(name))
            elif (
                name not in subscriptions
                or subscriptions[name].queue != worker.queue_handlers.queue
            ):
                self._end(self.workers.pop(name))

    async def _follow(
        self, subscriptions: Mapping[str, Subscription], circuits: Mapping[str, Circuit]
    ) -> None:
        """Give each worker its subscription and share of the limits; exchange circuits.

        Of the circuit in the store and that of this process, the one that changed last counts.
        """
        place = self.servers.index(self.holder)
        newer_here = {}
        for name, subscription in subscriptions.items():
            worker = self.workers.get(name) or self._begin(name, subscription)
            worker.follow(subscription, place, len(self.servers))
            circuit = worker.circuit
            stored = circuits.get(name, Circuit(tag=circuit.tag))
            if stored.tag == circuit.tag and stored.changed > circuit.changed:
                worker.adopt_circuit(stored)
            elif (stored.tag, stored.changed) != (circuit.tag, circuit.changed):
                newer_here[name] = circuit
        if newer_here:
            await self.records.peers.store_circuits(newer_here)

    def _begin(self, name: str, subscription: Subscription) -> SubscriptionWorker:
        """Start the worker of a subscription."""
        if not self.workers and not self.records.keys:  # once, not for each subscription
            _log.warning(
                "secrets, headers and URLs of subscriptions are stored in clear text; "
                "bide subscription new-key makes a key for %s or %s",
                KEY,
                KEY_FILE,
            )
        worker = self.workers[name] = SubscriptionWorker(subscription, self)
        worker.open()
        return worker

    def _end(self, worker: SubscriptionWorker) -> None:
        """Let a worker finish its requests, until the pusher is in a hurry."""
        stopping = stop([worker], self._clock, None, self._hurrying)
        # The exceptions are those of a failed worker, which `_end_outdated` has logged.
        end = asyncio.gather(stopping, return_exceptions=True)
        self._ending.add(end)
        end.add_done_callback(self._ending.discard)

    async def _stop(self, grace: float) -> None:
        """Finish running requests, for `grace` seconds at most; release the rest and close."""
        await cancel(self._intake_tasks.values())
        self._intake_tasks.clear()
        for worker in self.workers.values():
            self._end(worker)
        all_ended = asyncio.gather(*self._ending)
        await first_of(all_ended, self._hurrying.wait(), sleep(self._clock, grace))
        self._hurrying.set()  # workers that still run release their messages
        await all_ended
        await self.close()
        try:
            await self.records.peers.leave(self.holder)
        except BideError as error:
            _log.debug("the end could not be stored for other servers: %s", error)

    async def close(self) -> None:
        """Close all connections."""
        await self.sender.close()
        if self._rabbitmq is not None:
            await self._rabbitmq.close()
            self._rabbitmq = None

    async def ping(self, subscription: Subscription) -> ReceiverAnswer:
        """Check whether the receiver answers; send no message."""
        if subscription.encrypted:
            return ReceiverAnswer(None, subscription.reason)
        seconds = subscription.timeout / 1000
        try:
            async with asyncio.timeout(seconds):
                return await self.target(subscription).ping(subscription)
        except ReceiverBusy as error:
            return ReceiverAnswer(None, str(error))
        except TimeoutError:
            return ReceiverAnswer(None, f"no answer within {seconds:g} s")


class _NotInstalled:
    """Replaces RabbitMQ where its package is missing: as a receiver that never answers."""

    def room_for(self, to: Subscription, under_way: int, *, failing: bool) -> int:
        return 1 - under_way

    async def send(self, message: Message, to: Subscription, *, failing: bool) -> ReceiverAnswer:
        return ReceiverAnswer(None, NOT_INSTALLED)

    async def ping(self, to: Subscription) -> ReceiverAnswer:
        return ReceiverAnswer(None, NOT_INSTALLED)
