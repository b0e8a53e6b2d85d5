"""What the tests of RabbitMQ speak with: an exchange and a queue of their own, and a store."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from bide.clock import SYSTEM_CLOCK
from bide.consuming.store_client import StoreClient
from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.model.commands import Count, Find
from bide.model.message import Message
from bide.model.replies import Counts, Found
from bide.targets.amqp import parse
from bide.targets.rabbitmq.intake import Intake
from bide.targets.rabbitmq.publisher import Publisher
from bide.testing import FlakyEngine
from tests.system.rabbitmq.broker import Broker

PATIENCE = 60.0


class Stage:
    """`exchange` (direct) leads to `queue` with the key "k"."""

    def __init__(self, broker: Broker, path: Path) -> None:
        self.broker = broker
        self.exchange = f"x{secrets.token_hex(4)}"
        self.queue = f"{self.exchange}.inbox"
        self.path = path
        self.engine = FlakyEngine(SqliteEngine(path, durability="normal", timeout=0.05))
        self.lane = Lane(lambda: self.engine, SYSTEM_CLOCK)
        self.channel: AbstractChannel

    def url(self, query: str = "", user: str = "guest", port: int | None = None) -> str:
        """Return the URL of the exchange."""
        start = f"amqp://{user}:{user}@127.0.0.1:{port or self.broker.port}/"
        return f"{start}?exchange={self.exchange}{query}"

    def play(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test on an event loop, with a channel of its own."""

        async def whole() -> None:
            connection = await aio_pika.connect(self.broker.url)
            try:
                self.channel = await connection.channel(on_return_raises=True)
                exchange = await self.channel.declare_exchange(self.exchange, durable=True)
                queue = await self.channel.declare_queue(self.queue, durable=True)
                await queue.bind(exchange, "k")
                await asyncio.wait_for(story(), PATIENCE * 2)
            finally:
                await connection.close()
                self.lane.close()
                self.engine.close()  # a lane that was never asked has none to close

        asyncio.run(whole())

    @asynccontextmanager
    async def publisher(self, url: str | None = None, **options: Any) -> AsyncIterator[Publisher]:
        publisher = Publisher(parse(url or self.url()), SYSTEM_CLOCK, **options)
        try:
            yield publisher
        finally:
            await publisher.close()

    @asynccontextmanager
    async def intake(self, url: str | None = None) -> AsyncIterator[Intake]:
        """An intake that has begun to take messages."""
        intake = Intake(parse(url or self.url()), StoreClient(self.lane, SYSTEM_CLOCK))
        task = asyncio.create_task(intake.run())
        try:
            await until(lambda: task.done() or intake.taken.connected)
            yield intake
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def send(self, body: bytes = b"hi", key: str = "k", **properties: Any) -> None:
        """Publish to the exchange for delayed messages."""
        exchange = await self.channel.get_exchange(f"{self.exchange}.delayed", ensure=False)
        await exchange.publish(aio_pika.Message(body, **{"delivery_mode": 2} | properties), key)

    async def receive(
        self, queue: str | None = None, *, keep: bool = False
    ) -> AbstractIncomingMessage:
        """Wait for the next message in a queue of the broker, and take it, or leave it there."""
        found = await self.channel.get_queue(queue or self.queue, ensure=False)
        deadline = time.monotonic() + PATIENCE
        while (message := await found.get(no_ack=not keep, fail=False)) is None:
            assert time.monotonic() < deadline, f"no message came to {found.name}"
            await asyncio.sleep(0.02)
        if keep:
            await message.nack(requeue=True)
        return message

    async def count(self, queue: str | None = None) -> int:
        """Return how many messages are ready in a queue of the broker."""
        declared = await self.channel.declare_queue(queue or self.queue, passive=True)
        return declared.declaration_result.message_count or 0

    async def arrived(self, count: int, queue: str | None = None) -> None:
        """Wait until so many messages are ready in a queue of the broker."""
        deadline = time.monotonic() + PATIENCE
        while await self.count(queue) < count:
            assert time.monotonic() < deadline, f"{count} messages do not arrive"
            await asyncio.sleep(0.01)

    async def find(self, id: str, queue: str | None = None) -> Message | None:
        reply = await self.lane.acall(Find(queue or self.exchange, [id]))
        assert isinstance(reply, Found)
        return reply.messages[0]

    async def counts(self, queue: str | None = None) -> Counts:
        reply = await self.lane.acall(Count(queue or self.exchange))
        assert isinstance(reply, Counts)
        return reply

    async def stored(self, count: int) -> None:
        """Wait until so many messages have been put into the queue of the intake."""
        await self.reached(count, "flow.put")

    async def reached(self, count: int, what: str, queue: str | None = None) -> None:
        """Wait until a count of the store has reached a number."""
        deadline = time.monotonic() + PATIENCE
        while attrgetter(what)(await self.counts(queue)) < count:
            assert time.monotonic() < deadline, f"{what} does not reach {count}"
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something comes to pass."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)
