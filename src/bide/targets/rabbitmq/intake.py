"""An intake: messages that were published with a delay go from RabbitMQ into the store."""

import asyncio
import logging
import random
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from aio_pika import DeliveryMode
from aio_pika import Message as AmqpMessage
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity

from bide.clock import sleep
from bide.consuming.store_client import PAUSES, StoreClient
from bide.model.body import MAX_BODY
from bide.model.commands import Find, Put
from bide.model.errors import BideError, InvalidArgument, StoreError
from bide.model.identity import check_queue
from bide.model.message import Item, Message
from bide.model.replies import Found, Outcomes, Reply
from bide.targets.http.subscription import Subscription, usual_concurrency
from bide.targets.rabbitmq import arrivals, topology
from bide.targets.rabbitmq.address import Address
from bide.targets.rabbitmq.broker import LOST, Broker, Refused, reason_of, stray_cancel_is_loss
from bide.targets.rabbitmq.intake_stats import IntakeStats
from bide.targets.rabbitmq.publisher import Publisher

__all__ = ["Intake"]

PREFETCH = 1_000
"""How many messages the broker hands over that are not acknowledged yet."""

BATCH = 4 * 1024 * 1024
"""How many bytes of bodies are stored at a time."""

CHECK = 10.0
"""After so many seconds it is looked again whether the target exchange is there."""

REMIND = 60.0
"""After so many seconds it is said again that the broker is away."""

DEAD_LETTER = 15.0
"""Seconds for publishing a dead letter."""

REASON = "bide-reason"
"""The header of a dead letter that says why it is one."""

_log = logging.getLogger("bide.targets.rabbitmq")


R = TypeVar("R", bound=Reply)


class Arrived(NamedTuple):
    """A message as it came, and as it is stored."""

    message: AbstractIncomingMessage
    item: Item


class Intake:
    """Takes the messages of one exchange into one queue of the store.

    A message is acknowledged once it is stored. While the store is full or away, those that have
    come are kept here, up to `PREFETCH`, and tried again.

    Args:
        address: the broker, the target exchange, and the queue of the store; see `intakes`.
        access: the way to the store.
        queue_type: of the queues that it declares: "quorum" or "classic".
        limit: how many bytes a body may have.
    """

    def __init__(
        self,
        address: Address,
        access: StoreClient,
        *,
        queue_type: str = "quorum",
        limit: int = MAX_BODY,
    ) -> None:
        self.address = address
        self.queue = check_queue(address.queue or address.exchange)
        self.taken = IntakeStats()
        self._access = access
        self._clock = access.clock
        self._type = queue_type
        self._limit = limit
        self._broker = Broker(address, access.clock)
        self._dead = Publisher(
            address._replace(exchange=topology.names(address.exchange)[1]), access.clock
        )
        self._recent: dict[str, int] = {}
        """The last messages that were stored, with hashes of their bodies. The broker may not have
        seen their acknowledgement, and deliver them again after a user has cancelled them."""
        self._missing = False
        self._checked = 0.0

    @property
    def subscription(self) -> Subscription:
        """What has its messages published to the target exchange when they are due."""
        namespace, _, queue = self.queue.rpartition("/")
        return Subscription(
            name=f"rabbitmq:{queue}", namespace=namespace or None, queue=queue,
            url=self.address.url, concurrency=usual_concurrency(self.address.url),
        )  # fmt: skip

    async def declare(self) -> None:
        """Declare what it needs on the broker; see `topology`.

        Raises:
            Refused: the target exchange is not there, or the broker refuses the connection.
            Exception: one of `LOST`, the broker is away, or refuses to declare.
        """
        await self._look_for_target()
        if self._missing:
            raise Refused(
                f"the exchange {self.address.exchange!r} does not exist on {self.address.host}; "
                "declare it first"
            )
        channel = await self._broker.channel(confirms=False)
        await topology.declare(channel, self.address.exchange, self._type)
        await channel.close()

    async def run(self) -> None:
        """Take messages until this is cancelled, however often the broker goes away."""
        said, attempt = float("-inf"), 0
        try:
            while True:
                attempt += 1
                try:
                    with stray_cancel_is_loss():
                        await self._session()
                except (Refused, *LOST) as error:
                    now = self._clock.monotonic()
                    if self.taken.connected:
                        attempt = 1
                    if attempt == 1 or now - said >= REMIND:
                        said = now
                        _log.error(
                            "%s: nothing is taken for now: %s",
                            self.address.exchange, reason_of(error),
                        )  # fmt: skip
                finally:
                    self.taken.connected = self.taken.waiting = 0
                self._broker.drop()
                await self._broker.pause(attempt)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._broker.close()
        await self._dead.close()

    async def _session(self) -> None:
        """Take messages until the channel is closed; whatever was not acknowledged comes again."""
        await self._look_for_target()
        channel = await self._broker.channel(confirms=False)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await topology.declare(channel, self.address.exchange, self._type)
        inbox: list[AbstractIncomingMessage] = []
        news, over = asyncio.Event(), asyncio.Event()

        async def come(message: AbstractIncomingMessage) -> None:
            inbox.append(message)
            news.set()

        def end(*_: object) -> None:
            over.set()
            news.set()

        channel.close_callbacks.add(end)
        (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(end)
        await queue.consume(come)
        _log.info("taking messages of %s into %s", queue.name, self.queue)
        self.taken.connected = 1
        while not over.is_set():
            await news.wait()
            news.clear()
            while inbox and not over.is_set():
                count = _fitting(inbox)
                batch = inbox[:count]
                del inbox[:count]
                await self._take(channel, batch)
        raise ConnectionError("the broker ended the channel, or its consumer")

    async def _take(
        self, channel: AbstractChannel, batch: Sequence[AbstractIncomingMessage]
    ) -> None:
        """Store a batch, or make dead letters of its messages, and acknowledge it as a whole."""
        if self._clock.monotonic() - self._checked >= CHECK:
            await self._look_for_target()
        arrived: list[Arrived] = []
        for message in batch:
            try:
                if self._missing:
                    raise InvalidArgument(f"the exchange {self.address.exchange!r} does not exist")
                item = arrivals.item_of(message, self._limit)
                if message.redelivered and self._recent.get(item.id) == hash(item.data):
                    self.taken.repeated += 1  # stored, and perhaps cancelled since
                else:
                    arrived.append(Arrived(message, item))
            except InvalidArgument as error:
                await self._refuse(message, str(error))
        await self._store(channel, arrived)
        await batch[-1].ack(multiple=True)

    async def _store(self, channel: AbstractChannel, arrived: list[Arrived]) -> None:
        """Store messages, each under its id, or under one of its own if that is in use."""
        while arrived:
            first: dict[str, Arrived] = {}
            # Of several with one id, one at a time.
            again = [one for one in arrived if first.setdefault(one.item.id, one) is not one]
            try:
                known = await self._put(channel, list(first.values()))
            except BideError as error:
                if len(first) > 1:  # one by one, so that only the culprit is refused
                    for one in first.values():
                        await self._store(channel, [one])
                else:
                    await self._refuse(arrived[0].message, str(error))
                arrived = again
                continue
            found = await self._find(channel, known)
            arrived = again
            for one, there in zip(known, found, strict=True):
                if there is None:
                    arrived.append(one)  # the other one is gone meanwhile
                elif arrivals.is_same(one.item, there):
                    self.taken.repeated += 1
                else:
                    self.taken.renamed += 1
                    arrived.append(Arrived(one.message, arrivals.renamed(one.item)))
                    _log.warning(
                        "%s: the message_id %r is in use, its message is stored as %s",
                        self.address.exchange, one.item.id, arrived[-1].item.id,
                    )  # fmt: skip

    async def _put(self, channel: AbstractChannel, arrived: list[Arrived]) -> list[Arrived]:
        """Store messages; return those whose ids are in use."""
        command = Put(self.queue, [one.item for one in arrived])
        reply = await self._ask(channel, Outcomes, command)
        known = [one for one, out in zip(arrived, reply.outcomes, strict=True) if not out.done]
        self._recent |= {one.item.id: hash(one.item.data) for one in arrived}
        for id in list(islice(self._recent, max(0, len(self._recent) - PREFETCH))):
            del self._recent[id]
        self.taken.stored += len(arrived) - len(known)
        return known

    async def _find(
        self, channel: AbstractChannel, arrived: list[Arrived]
    ) -> Sequence[Message | None]:
        if not arrived:
            return []
        command = Find(self.queue, [one.item.id for one in arrived])
        return (await self._ask(channel, Found, command)).messages

    async def _ask(self, channel: AbstractChannel, kind: type[R], command: Put | Find) -> R:
        """Have a command carried out, however long the store is away."""
        attempt = 0
        while True:
            try:
                reply = await self._access.once(kind, command)
            except StoreError:  # `StoreClient` has said so
                if channel.is_closed:
                    raise ConnectionError("the channel was closed, the store is away") from None
                attempt += 1
                self.taken.waiting = 1
                await sleep(self._clock, PAUSES.delay(attempt, random.random()) / 1000)
            else:
                self.taken.waiting = 0
                return reply

    async def _refuse(self, message: AbstractIncomingMessage, reason: str) -> None:
        """Publish a message to the dead-letter exchange, with the reason in a header."""
        told = "" if message.message_id is None else f" {message.message_id!r}"
        _log.error("%s: message%s is a dead letter: %s", self.address.exchange, told, reason)
        headers = {**message.headers, REASON: reason[:1_000]}
        letter = AmqpMessage(
            message.body, headers=headers, content_type=message.content_type,
            content_encoding=message.content_encoding, message_id=message.message_id,
            correlation_id=message.correlation_id, reply_to=message.reply_to, type=message.type,
            timestamp=message.timestamp, app_id=message.app_id, priority=message.priority,
            delivery_mode=DeliveryMode.PERSISTENT,
        )  # fmt: skip
        result = await self._dead.publish(letter, message.routing_key or "", DEAD_LETTER)
        if result.outcome != "confirmed":
            raise ConnectionError(f"a dead letter could not be published: {result.reason}")
        self.taken.refused += 1

    async def _look_for_target(self) -> None:
        """See whether the target exchange is there. The broker closes the channel if it is not."""
        channel = await self._broker.channel(confirms=False)
        try:
            await channel.get_exchange(self.address.exchange, ensure=True)
            self._missing = False
        except ChannelNotFoundEntity:
            self._missing = True
        else:
            await channel.close()
        self._checked = self._clock.monotonic()


def _fitting(inbox: Sequence[AbstractIncomingMessage]) -> int:
    """Return how many messages are stored at a time: all, or as many as `BATCH` bytes hold."""
    sizes = accumulate(len(message.body) for message in inbox)
    return max(1, sum(1 for size in sizes if size <= BATCH))
