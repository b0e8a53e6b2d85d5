"""What an intake declares on the broker."""

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractQueue
from pamqp.common import FieldTable

DELAYED, DEAD = ".delayed", ".delayed.dead"
"""Behind the name of the target: the names of what an intake declares."""

CONFIRMED: FieldTable = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
"""The broker keeps a rejected message of a quorum queue until the dead letters have confirmed it,
and tries again if nobody takes it. That strategy needs this kind of overflow."""


async def declare_dead_letters(channel: AbstractChannel, exchange: str, queue_type: str) -> None:
    """Declare the exchange and the queue of what cannot be stored; see `declare_topology`."""
    name = exchange + DEAD
    dead_letters = await channel.declare_exchange(name, ExchangeType.FANOUT, durable=True)
    arguments: FieldTable = {"x-queue-type": queue_type}
    queue = await channel.declare_queue(name, durable=True, arguments=arguments)
    await queue.bind(dead_letters)


async def declare_topology(
    channel: AbstractChannel, exchange: str, queue_type: str
) -> AbstractQueue:
    """Declare what an intake needs beside its target `X`, and return the queue that it consumes.

    `X.delayed` (fanout) takes what is published with a delay, into the queue `X.delayed`. What
    cannot be stored goes to the exchange `X.delayed.dead` (fanout), into the queue
    `X.delayed.dead`; so does what the broker itself gives up, such as a message that expires.

    Args:
        channel: is closed by the broker if something is there already with other settings.
        exchange: the target.
        queue_type: "quorum" or "classic".
    """
    await declare_dead_letters(channel, exchange, queue_type)
    delayed, dead = exchange + DELAYED, exchange + DEAD
    intake = await channel.declare_exchange(delayed, ExchangeType.FANOUT, durable=True)
    arguments: FieldTable = {"x-queue-type": queue_type, "x-dead-letter-exchange": dead}
    if queue_type == "quorum":
        arguments |= CONFIRMED
    queue = await channel.declare_queue(delayed, durable=True, arguments=arguments)
    await queue.bind(intake)
    return queue
