"""A publisher: messages in, what the broker said about each out."""

import asyncio
from typing import Literal, NamedTuple

from aio_pika import Message as AmqpMessage
from aio_pika.abc import AbstractChannel, AbstractExchange
from aio_pika.exceptions import ChannelClosed, DeliveryError, PublishError

from bide.clock import Clock
from bide.targets.rabbitmq.address import Address
from bide.targets.rabbitmq.broker import (
    LOST,
    Broker,
    Gate,
    Refused,
    reason_of,
    stray_cancel_is_loss,
)

__all__ = ["Outcome", "Publisher", "Result"]

Outcome = Literal["confirmed", "unroutable", "nacked", "refused", "away"]

BLOCKED = "the broker accepts no messages for now: its memory or disk is low"


class Result(NamedTuple):
    """What became of one message."""

    outcome: Outcome
    """Refused: the exchange does not exist, or the user may not. Away: no answer came."""
    reason: str = ""
    """In words, for a message that was not confirmed; never a secret."""


CONFIRMED = Result("confirmed")


class Publisher:
    """Publishes to one exchange, persistent and mandatory, and waits for the broker's confirm.

    Any number of messages may be in flight. While the broker is away, `publish` connects again,
    and publishes again what was not confirmed: consumers may get such a message twice.

    Args:
        address: the broker and the exchange.
        clock: what pauses are waited by.
        gate: which addresses may be connected to; all if it is `None`.
    """

    def __init__(self, address: Address, clock: Clock, gate: Gate | None = None) -> None:
        self._address = address
        self._broker = Broker(address, clock, gate)
        self._opening = asyncio.Lock()
        self._channel: AbstractChannel | None = None

    async def publish(self, message: AmqpMessage, key: str, patience: float) -> Result:
        """Publish a message.

        Args:
            message: as `to_amqp` makes it.
            key: its routing key.
            patience: seconds for all attempts together.
        """
        reason, attempt = "the broker did not answer in time", 0
        channel: AbstractChannel | None = None
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        with stray_cancel_is_loss():
                            channel = await self._open()
                            await self._broker.unblocked()
                            exchange = await _exchange(channel, self._address.exchange)
                            await exchange.publish(message, key, mandatory=True)
                        return CONFIRMED
                    except PublishError as error:
                        return Result("unroutable", reason_of(error))
                    except DeliveryError as error:
                        return Result("nacked", reason_of(error))
                    except (Refused, ChannelClosed) as error:
                        return Result("refused", reason_of(error))
                    except LOST as error:
                        reason = reason_of(error)
                    attempt += 1
                    await self._broker.pause(attempt)
        except TimeoutError:
            if await self.blocked():
                return Result("away", BLOCKED)
            # A connection without confirms may be half open: the next message gets another one.
            if channel is not None and channel is self._channel:
                self._broker.drop()
            return Result("away", reason)

    async def check(self, patience: float) -> Result:
        """See whether the broker is there, and has the exchange; publish nothing."""
        try:
            async with asyncio.timeout(patience):
                with stray_cancel_is_loss():
                    channel = await self._broker.channel()
                    if self._address.exchange:
                        await channel.get_exchange(self._address.exchange, ensure=True)
                    await channel.close()
        except (Refused, ChannelClosed) as error:
            return Result("refused", reason_of(error))
        except LOST as error:
            return Result("away", reason_of(error))
        return Result("confirmed", "the broker is there, and has the exchange")

    async def blocked(self) -> bool:
        """Tell whether the broker has said that it accepts no messages for now."""
        try:
            async with asyncio.timeout(0):
                await self._broker.unblocked()
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Close the connection."""
        await self._broker.close()

    async def _open(self) -> AbstractChannel:
        async with self._opening:
            channel = self._channel
            if channel is None or channel.is_closed or not self._broker.connected:
                channel = self._channel = await self._broker.channel()
            return channel


async def _exchange(channel: AbstractChannel, name: str) -> AbstractExchange:
    # Not looked up: publishing needs no right to configure, and the broker says if it is missing.
    return await channel.get_exchange(name, ensure=False) if name else channel.default_exchange
