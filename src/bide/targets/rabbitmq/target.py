"""RabbitMQ as the target of subscriptions: a message goes out, an answer comes back."""

import asyncio
from collections.abc import Collection, Iterable

from bide.clock import Clock
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.targets.amqp import parse
from bide.targets.http.addresses import Gate
from bide.targets.http.answer import Answer
from bide.targets.http.subscription import Subscription
from bide.targets.rabbitmq.fields import to_amqp
from bide.targets.rabbitmq.publisher import Outcome, Publisher, Result

STATUS: dict[Outcome, int | None] = {
    "confirmed": 200, "unroutable": 312, "unfit": 400, "refused": 503, "nacked": 506, "away": None,
}  # fmt: skip
"""Outcomes as reply codes, by whose first digit answers are counted. 312 and 506 are AMQP's."""


class _Answer(Answer):
    """An answer of a broker."""

    __slots__ = ()

    @property
    def away(self) -> bool:
        """Whether it says nothing about the message."""
        return self.status in (None, STATUS["refused"])

    @property
    def counts(self) -> bool:
        """Whether it is a failure of the broker: another routing key, or queue, may fare better."""
        return self.away


class RabbitMQ:
    """Publishes the messages of subscriptions, on one connection for each URL.

    Args:
        clock: what pauses are waited by.
        gate: which addresses may be connected to.
        trusted: the URLs of brokers that may be connected to wherever they are.
    """

    def __init__(self, clock: Clock, gate: Gate, trusted: Collection[str] = ()) -> None:
        self._trusted = trusted
        self._clock = clock
        self._gate = gate
        self._publishers: dict[str, Publisher] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def free(self) -> int:
        """How many more messages may be under way: one connection carries any number."""
        return 1_000_000

    async def send(self, message: Message, to: Subscription) -> Answer:
        """Publish a message; return once the broker has confirmed or rejected it."""
        publisher = self._publisher(to.url)
        try:
            publication = to_amqp(message, publisher.address, to.headers)
        except InvalidArgument as error:
            return _answer(Result("unfit", f"not a valid message of AMQP: {error}"))
        # Sooner than the consumer, which would not know why.
        return _answer(await publisher.publish(publication, to.timeout / 1000 * 0.9))

    async def ping(self, to: Subscription) -> Answer:
        """See whether the broker lets us in, and has the exchange."""
        publisher = self._new(to.url)  # of a server that only pings, nobody closes what is kept
        try:
            return _answer(await publisher.check(to.timeout / 1000))
        finally:
            self._close(publisher)

    def keep(self, urls: Iterable[str]) -> None:
        """Close the connections to other URLs."""
        for url in self._publishers.keys() - set(urls):
            self._close(self._publishers.pop(url))

    async def close(self) -> None:
        """Close all connections."""
        self.keep(())
        await asyncio.gather(*self._closing)

    def _publisher(self, url: str) -> Publisher:
        if (found := self._publishers.get(url)) is None:
            found = self._publishers[url] = self._new(url)
        return found

    def _new(self, url: str) -> Publisher:
        address = parse(url)
        gate = None if address.broker in self._trusted else self._gate
        return Publisher(address, self._clock, gate)

    def _close(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _answer(result: Result) -> Answer:
    return _Answer(STATUS[result.outcome], result.reason)
