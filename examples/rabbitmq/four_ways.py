"""Ways to delay a message with RabbitMQ, measured: who is late, by how much, and what it costs.

    python -m examples.rabbitmq.four_ways [URL of a broker]

Each way gets a message that is due in 5 s, then 20 that are due in 1.5 s. The plugin is missing: it
is archived, and not part of RabbitMQ.
"""

import asyncio
import os
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import aio_pika
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from pamqp.common import FieldTable

from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.targets.amqp import parse
from bide.targets.pusher import Pusher

FAR, NEAR, COUNT = 5.0, 1.5, 20

LEVELS = 4
"""Of the cascade here; NServiceBus and Celery declare 28, for 8.5 years."""


class Measured(NamedTuple):
    """How messages that were due soon fared behind one that was due later."""

    way: str
    late: list[float]
    """Seconds after the due time, of each."""
    writes: float
    """How often the broker wrote a message into a queue, on average."""
    overtaken: int
    """How many of them came before the one that was due later."""

    def __str__(self) -> str:
        ms = sorted(late * 1000 for late in self.late)
        median = f"{statistics.median(ms):8.1f} ms"
        return f"{self.way:<34}{median}{ms[-1]:8.1f} ms{ms[0]:9.1f} ms{self.writes:10.1f}"


class Way:
    """One way on a broker: exchanges and queues of its own, which are deleted at the end."""

    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel
        self.name = f"way-{secrets.token_hex(4)}"

    async def queue(self, name: str, **arguments: object) -> str:
        """Declare a queue that goes with the connection."""
        given: FieldTable = {key.replace("_", "-"): value for key, value in arguments.items()}  # type: ignore[misc]
        await self.channel.declare_queue(name, exclusive=True, arguments=given)
        return name

    async def measure(
        self, way: str, publish: Callable[[str, float], Awaitable[float]]
    ) -> Measured:
        """Publish, and see how late what comes to the queue `self.name` is."""
        due: dict[str, float] = {}
        late: dict[str, float] = {}
        writes: list[float] = []
        done = asyncio.Event()

        async def come(message: AbstractIncomingMessage) -> None:
            await message.ack()
            id = str(message.message_id)
            late[id] = time.time() - due[id]
            if len(late) == COUNT + 1:
                done.set()

        queue = await self.channel.get_queue(self.name)
        await queue.consume(come)
        for number in range(COUNT + 1):
            seconds = NEAR if number else FAR
            due[str(number)] = time.time() + seconds
            writes.append(await publish(str(number), seconds))
        await asyncio.wait_for(done.wait(), 60)
        times = [late[str(n)] for n in range(1, COUNT + 1)]
        return Measured(way, times, statistics.mean(writes), overtaken=[*late].index("0"))


async def time_to_live(way: Way) -> Measured:
    """A queue without consumers, whose messages expire into the queue of the consumer.

    Only the head of a queue expires: what is due soon waits for what is due later before it.
    """
    await way.queue(way.name)
    wait = await way.queue(
        f"{way.name}.wait", x_dead_letter_exchange="", x_dead_letter_routing_key=way.name
    )

    async def publish(id: str, seconds: float) -> float:
        message = Message(b"{}", message_id=id, expiration=seconds)
        await way.channel.default_exchange.publish(message, wait)
        return 2

    return await way.measure("per-message TTL + dead letters", publish)


async def cascade(way: Way) -> Measured:
    """A queue for each binary digit of the delay in seconds, as NServiceBus and Celery declare.

    The routing key holds the digits: at level n, a 1 leads through a queue with a TTL of 2**n
    seconds, a 0 past it, to the next lower level.
    """
    deliver = await way.channel.declare_exchange(
        f"{way.name}.deliver", ExchangeType.TOPIC, auto_delete=True
    )
    await way.queue(way.name)
    await (await way.channel.get_queue(way.name)).bind(deliver, f"#.{way.name}")
    below, exchange = deliver, deliver
    for level in range(LEVELS):
        exchange = await way.channel.declare_exchange(
            f"{way.name}.level-{level}", ExchangeType.TOPIC, auto_delete=True
        )
        place = ".".join("*" * (LEVELS - 1 - level))
        digit = f"{place}." if place else ""
        queue = await way.queue(
            f"{way.name}.level-{level}",
            x_message_ttl=1000 * 2**level,
            x_dead_letter_exchange=below.name,
        )
        await (await way.channel.get_queue(queue)).bind(exchange, f"{digit}1.#")
        await below.bind(exchange, f"{digit}0.#")
        below = exchange

    async def publish(id: str, seconds: float) -> float:
        digits = f"{round(seconds + 0.499):0{LEVELS}b}"  # whole seconds, and never early
        message = Message(b"{}", message_id=id)
        await exchange.publish(message, f"{'.'.join(digits)}.{way.name}")
        return digits.count("1") + 1

    return await way.measure("cascade of TTL queues", publish)


async def with_bide(way: Way) -> Measured:
    """An exchange of the user's, and bide's beside it."""
    broker = os.environ["BROKER"]
    target = await way.channel.declare_exchange(way.name)
    await way.queue(way.name)
    await (await way.channel.get_queue(way.name)).bind(target, "k")
    lane = Lane(MemoryEngine)
    pusher = Pusher(lane, intakes=[parse(f"{broker}?exchange={way.name}")], queue_type="classic")
    running = asyncio.create_task(pusher.run(5))
    while not any(one.connected for one in pusher.sent.taken.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    delayed = await way.channel.get_exchange(f"{way.name}.delayed")

    async def publish(id: str, seconds: float) -> float:
        headers: dict[str, int] = {"x-delay": round(seconds * 1000)}
        await delayed.publish(
            Message(
                b"{}", message_id=id, headers=dict(headers), delivery_mode=DeliveryMode.PERSISTENT
            ),
            "k",
        )
        return 2

    try:
        return await way.measure("bide", publish)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        lane.close()
        for suffix in ("", ".delayed", ".delayed.dead"):
            await way.channel.exchange_delete(way.name + suffix)
            await way.channel.queue_delete(way.name + suffix)


async def main() -> list[Measured]:
    """Measure each way, and print what was found."""
    found = []
    print(f"{COUNT} messages due in {NEAR} s, behind one due in {FAR} s")
    print(f"{'way':<34}{'late, median':>11}{'most':>11}{'least':>12}{'writes':>10}")
    for way in (time_to_live, cascade, with_bide):
        async with await aio_pika.connect(os.environ["BROKER"]) as connection:
            found.append(await way(Way(await connection.channel())))
            print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    if sys.argv[1:]:
        os.environ["BROKER"] = sys.argv[1]
    os.environ.setdefault("BROKER", "amqp://guest:guest@localhost/")
    asyncio.run(main())
