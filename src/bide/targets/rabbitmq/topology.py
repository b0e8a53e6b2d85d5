"""What an intake declares on the broker, for a target exchange `X` that it leaves untouched.

`X.delayed` (fanout) takes what is published with a delay, into the queue `X.delayed`. What cannot
be stored goes to the exchange `X.delayed.dead` (fanout), into the queue `X.delayed.dead`; so does
what the broker itself gives up, such as a message that expires before it is stored.
"""

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractQueue
from pamqp.common import FieldTable

DELAYED, DEAD = ".delayed", ".delayed.dead"


def names(exchange: str) -> tuple[str, str]:
    """Return the names of the exchange that takes messages, and of the one for dead letters.

    Example:
        >>> names("shop")
        ('shop.delayed', 'shop.delayed.dead')
    """
    return exchange + DELAYED, exchange + DEAD


async def declare(channel: AbstractChannel, exchange: str, queue_type: str) -> AbstractQueue:
    """Declare the exchanges and queues of an intake, and return the queue that it consumes.

    Args:
        channel: is closed by the broker if something is there already with other settings.
        exchange: the target.
        queue_type: "quorum" or "classic".
    """
    delayed, dead = names(exchange)
    kind: FieldTable = {"x-queue-type": queue_type}
    letters = await channel.declare_exchange(dead, ExchangeType.FANOUT, durable=True)
    letters_queue = await channel.declare_queue(dead, durable=True, arguments=kind)
    await letters_queue.bind(letters)
    intake = await channel.declare_exchange(delayed, ExchangeType.FANOUT, durable=True)
    kind = {"x-queue-type": queue_type, "x-dead-letter-exchange": dead}
    queue = await channel.declare_queue(delayed, durable=True, arguments=kind)
    await queue.bind(intake)
    return queue
