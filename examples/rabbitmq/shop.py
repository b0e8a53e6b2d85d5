"""A shop that cancels orders which stay unpaid, with RabbitMQ.

python -m examples.rabbitmq.shop declare     # the exchange "shop" and a queue for it
python -m examples.rabbitmq.shop consume     # prints what comes; end it with Ctrl-C
python -m examples.rabbitmq.shop order 42    # to be cancelled in ten seconds
bide cancel shop order-42                    # it was paid
"""

import asyncio
import os
import sys
from collections import OrderedDict

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

BROKER = os.environ.get("BROKER", "amqp://guest:guest@localhost/")
KEY = "order.timeout"


async def declare() -> None:
    """Declare the exchange and a queue, as any program of RabbitMQ does. bide changes neither."""
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("shop", "topic", durable=True)
        queue = await channel.declare_queue(
            "timeouts", durable=True, arguments={"x-queue-type": "quorum"}
        )
        await queue.bind(exchange, "order.*")


async def order(number: int, seconds: float = 10) -> None:
    """Publish to "shop.delayed": it arrives at "shop", with its routing key, when it is due."""
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        delayed = await channel.get_exchange("shop.delayed")
        message = aio_pika.Message(
            b'{"order": %d}' % number,
            message_id=f"order-{number}",  # cancel and reschedule by it
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers={"x-delay": round(seconds * 1000)},
        )
        await delayed.publish(message, KEY)  # returns once the broker has confirmed it


async def consume(enough: asyncio.Event) -> None:
    """Handle what is due, each message once even if the broker delivers it twice."""
    seen: OrderedDict[str, None] = OrderedDict()  # in production: a table of your database

    async def handle(message: AbstractIncomingMessage) -> None:
        async with message.process():  # acks, or has it delivered again if this raises
            if message.message_id in seen:
                return
            seen[message.message_id or ""] = None
            if len(seen) > 100_000:
                seen.popitem(last=False)
            print(f"{message.message_id} timed out: {message.body.decode()}", flush=True)

    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        await channel.set_qos(100)
        queue = await channel.get_queue("timeouts")
        await queue.consume(handle)
        await enough.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["declare"]:
            asyncio.run(declare())
        case ["order", number]:
            asyncio.run(order(int(number)))
        case ["consume"]:
            asyncio.run(consume(asyncio.Event()))
        case _:
            sys.exit(__doc__)
