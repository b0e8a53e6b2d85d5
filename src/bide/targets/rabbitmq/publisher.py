"""Publish to RabbitMQ: messages in, what the broker said about each out; a target of push."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import Literal

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import (
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)

from bide.clock import Clock
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.targets.amqp import Address, parse
from bide.targets.http.addresses import AddressGate
from bide.targets.http.receiver import ReceiverAnswer
from bide.targets.http.subscription import Subscription
from bide.targets.rabbitmq.broker import LOST, Broker, Refused, reason_of, stray_cancel_is_loss
from bide.targets.rabbitmq.messages import UNFIT, Publication, to_amqp

Outcome = Literal["confirmed", "unroutable", "nacked", "unfit", "refused", "away"]

SMALL = 16_384
"""The maximum bytes of a body that is written without waiting for the socket."""

BLOCKED = "the broker accepts no messages for now: its memory or disk is low"


STATUS: dict[Outcome, int | None] = {
    "confirmed": 200,
    "unroutable": 312,
    "unfit": 400,
    "refused": 503,
    "nacked": 506,
    "away": None,
}
"""Outcomes as reply codes, by whose first digit answers are counted. 312 and 506 are AMQP's. Unfit:
AMQP cannot hold the message. Refused: the exchange does not exist, or the user may not. Away: no
answer came."""


class _Answer(ReceiverAnswer):
    """An answer of a broker."""

    __slots__ = ()

    @property
    def counts(self) -> bool:
        """Whether it counts as a failure in the circuit: only if the broker is away.

        What the broker rejects, it may accept with another routing key, or for another queue.
        """
        return self.away


REJECTED = (PublishError, DeliveryError, Refused, *UNFIT)
"""What is raised when another attempt would end in the same way."""


def answer(outcome: Outcome, reason: str = "") -> ReceiverAnswer:
    """Return an outcome as an answer, with the reason of a failure."""
    return _Answer(STATUS[outcome], reason)


def _failed(error: Exception) -> ReceiverAnswer:
    """Return the answer for a message that another attempt would not bring further."""
    match error:
        case PublishError():
            return answer("unroutable", reason_of(error))
        case DeliveryError():
            return answer("nacked", reason_of(error))
        case ChannelPreconditionFailed():
            return answer("unfit", reason_of(error))
        case Refused() | ChannelClosed():
            return answer("refused", reason_of(error))
        case _:
            return answer("unfit", f"not a valid message of AMQP: {error}")


class _Line:
    """A channel to a broker: opened when it is needed, and opened again after it was closed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._opening = asyncio.Lock()
        """Held while a channel is opened: callers that come meanwhile use the same one."""
        self.channel: AbstractChannel | None = None
        """The last one that was opened."""

    async def open(self) -> AbstractChannel:
        """Return the channel, or a new one if it is closed."""
        async with self._opening:
            channel = self.channel
            if channel is None or channel.is_closed or not self._broker.connected:
                channel = self.channel = await self._broker.channel()
            return channel


class Publisher:
    """Publishes to one exchange, persistent and mandatory, and waits for the broker's confirm.

    Any number of messages may be in flight. While the broker is away, `publish` connects again,
    and publishes again what was not confirmed: consumers may get such a message twice.

    Args:
        address: the broker and the exchange.
        clock: measures pauses.
        gate: which addresses may be connected to; all if it is `None`.
    """

    def __init__(self, address: Address, clock: Clock, gate: AddressGate | None = None) -> None:
        self.address = address
        self._broker = Broker(address, clock, gate)
        self._line, self._single_line = _Line(self._broker), _Line(self._broker)
        """The channel for all messages, and one that has a single message at a time."""
        self._single_lock = asyncio.Lock()
        """Held by the message that is published on the second of them."""
        self.in_flight: dict[str | None, asyncio.Event] = {}
        """The `message_id` of each message that is being published, and what is set at its end."""

    async def publish(self, publication: Publication, patience: float) -> ReceiverAnswer:
        """Publish a message.

        Args:
            publication: as `to_amqp` makes it.
            patience: seconds for all attempts together.
        """
        reason, attempt = "the broker did not answer in time", 0
        line, channel = self._line, None
        try:
            async with asyncio.timeout(patience), self._only(publication.properties.message_id):
                while True:
                    try:
                        is_single = line is self._single_line
                        with stray_cancel_is_loss():
                            async with self._single_lock if is_single else nullcontext():
                                channel = await line.open()
                                await self._broker.unblocked()
                                await self._publish(channel, publication)
                        return answer("confirmed")
                    except ChannelClosed as error:
                        # The broker closes the channel for one of the messages in flight on it, and
                        # does not say which. With one message at a time it is this one.
                        if is_single or isinstance(error, ChannelNotFoundEntity):
                            return _failed(error)
                        line = self._single_line
                        continue
                    except REJECTED as error:
                        return _failed(error)
                    except LOST as error:
                        reason = reason_of(error)
                    attempt += 1
                    await self._broker.pause(attempt)
        except TimeoutError:
            if await self.blocked():
                return answer("away", BLOCKED)
            # A connection without confirms may be half open: the next message gets another one.
            if channel is not None and channel is line.channel:
                self._broker.drop()
            return answer("away", reason)

    async def _publish(self, channel: AbstractChannel, publication: Publication) -> None:
        """Publish a message on a channel, and wait for the confirm.

        Raises:
            Exception: one of `REJECTED`, another attempt would end in the same way.
            Exception: one of `LOST`, the channel or the connection is lost.
        """
        body, properties, key = publication
        # The exchange is not looked up: publishing needs no right to configure, and the broker
        # says if it is missing.
        underlay = await channel.get_underlay_channel()
        await underlay.basic_publish(  # type: ignore[call-arg]  # knows no wait
            body,
            exchange=self.address.exchange,
            routing_key=key,
            properties=properties,
            mandatory=True,
            # A small body is in the buffer of the socket at once: waiting would only cost a turn.
            wait=len(body) > SMALL,
        )

    @asynccontextmanager
    async def _only(self, id: str | None) -> AsyncIterator[None]:
        """Wait until no other message with this `message_id`, of any queue, is in flight.

        The client library uses it to find the message that the broker has returned as unroutable.
        """
        while (end_of_other := self.in_flight.get(id)) is not None:
            await end_of_other.wait()
        self.in_flight[id] = end = asyncio.Event()
        try:
            yield
        finally:
            del self.in_flight[id]
            end.set()

    async def check(self, patience: float) -> ReceiverAnswer:
        """See whether the broker is there, and has the exchange; publish nothing.

        Args:
            patience: seconds for the answer.
        """
        try:
            async with asyncio.timeout(patience):
                with stray_cancel_is_loss():
                    channel = await self._broker.channel()
                    if self.address.exchange:
                        await channel.get_exchange(self.address.exchange, ensure=True)
                    await channel.close()
        except (Refused, ChannelClosed) as error:
            return answer("refused", reason_of(error))
        except LOST as error:
            return answer("away", reason_of(error))
        return answer("confirmed", "the broker is there, and has the exchange")

    async def blocked(self) -> bool:
        """Tell whether the broker has said that it accepts no messages for now."""
        try:
            async with asyncio.timeout(0):  # returns at once if it need not wait
                await self._broker.unblocked()
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Close the connection once no message is in flight: one would open it again."""
        while self.in_flight:
            await next(iter(self.in_flight.values())).wait()
        await self._broker.close()


class RabbitMQ:
    """Publishes the messages of subscriptions, on one connection for each URL.

    Args:
        clock: measures pauses.
        gate: which addresses may be connected to.
        trusted: the URLs of brokers that may be connected to wherever they are.
    """

    def __init__(self, clock: Clock, gate: AddressGate, trusted: Collection[str] = ()) -> None:
        self._trusted = trusted
        self._clock = clock
        self._gate = gate
        self.publishers: dict[str, Publisher] = {}
        """By the URL of the subscription."""
        self._closing: set[asyncio.Task[None]] = set()
        """What closes publishers that are no longer needed."""

    def room_for(self, to: Subscription, under_way: int, *, failing: bool) -> int:
        """Return how many more messages may be sent: one connection carries any number."""
        return 1_000_000  # more than a subscription may have running

    async def send(
        self, message: Message, to: Subscription, *, failing: bool = False
    ) -> ReceiverAnswer:
        """Publish a message; return once the broker has confirmed or rejected it."""
        publisher = self._publisher(to.url)
        try:
            publication = to_amqp(message, publisher.address, to.headers)
        except InvalidArgument as error:
            return answer("unfit", f"not a valid message of AMQP: {error}")
        # Sooner than the consumer, which cancels this at the timeout and does not know the reason.
        return await publisher.publish(publication, to.timeout / 1000 * 0.9)

    async def ping(self, to: Subscription) -> ReceiverAnswer:
        """Check whether the broker accepts the connection and has the exchange."""
        # Not one of `publishers`: a server that only pings calls `keep` never, so it would stay.
        publisher = self._new(to.url)
        try:
            return await publisher.check(to.timeout / 1000)
        finally:
            self._close(publisher)

    def keep(self, urls: Iterable[str]) -> None:
        """Close the connections to other URLs."""
        for url in self.publishers.keys() - set(urls):
            self._close(self.publishers.pop(url))

    async def close(self) -> None:
        """Close all connections."""
        self.keep(())
        await asyncio.gather(*self._closing)

    def _publisher(self, url: str) -> Publisher:
        """Return the publisher of a URL, a new one if there is none."""
        if (publisher := self.publishers.get(url)) is None:
            publisher = self.publishers[url] = self._new(url)
        return publisher

    def _new(self, url: str) -> Publisher:
        address = parse(url)
        gate = None if address.broker in self._trusted else self._gate
        return Publisher(address, self._clock, gate)

    def _close(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
