"""An intake: messages that were published with a delay go from RabbitMQ into the store."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity

from bide.clock import sleep
from bide.consuming.store_client import PAUSES, StoreClient
from bide.lane.steps import arun_steps, first_of
from bide.logs import logger
from bide.model.commands import Command, Find, Put
from bide.model.errors import BideError, InvalidArgument, StoreError
from bide.model.identity import check_queue
from bide.model.message import Item, Message
from bide.model.replies import Found, Outcomes, Page, Reply
from bide.targets.amqp import Address
from bide.targets.http.stats import IntakeStats
from bide.targets.http.subscription import Subscription, usual_concurrency
from bide.targets.rabbitmq.broker import LOST, Broker, Refused, reason_of, stray_cancel_is_loss
from bide.targets.rabbitmq.messages import dead_letter_of, is_same, item_of, renamed
from bide.targets.rabbitmq.publisher import Publisher
from bide.targets.rabbitmq.redelivery import Unacknowledged, digest_of
from bide.targets.rabbitmq.topology import DEAD, declare_dead_letters, declare_topology

PREFETCH = 500
"""How many messages the broker hands over that are not acknowledged yet."""

BATCH = 4 * 1024 * 1024
"""Bytes of bodies after which a batch is stored; the last two messages may exceed them."""

CHECK = 10.0
"""Seconds between two checks that the target exchange exists."""

FORGET = 1.0
"""Seconds without messages, after which the records of what is acknowledged are removed."""

REMIND = 60.0
"""Seconds between two log entries that the broker is unavailable."""

DEAD_LETTER = 15.0
"""Seconds for publishing a dead letter."""

BEING_PUBLISHED = 0.02, 0.05, 0.1, 0.3, 0.5
"""Seconds to wait between looks at a message that is being published, for its id to become free."""

_log = logger("bide.targets.rabbitmq")


R = TypeVar("R", bound=Reply)
T = TypeVar("T")


async def completed(steps: Coroutine[Any, Any, T]) -> T:
    """Run steps to their end, even if this is cancelled meanwhile."""
    task = asyncio.create_task(steps)
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait([task])


class Arrived(NamedTuple):
    """A message as it came, as it is stored, and what identifies it when it comes again."""

    message: AbstractIncomingMessage
    item: Item
    digest: str


class Intake:
    """Takes the messages of one exchange into one queue of the store.

    A message is acknowledged once it is stored. While the store is full or away, those that have
    come are kept here, up to `PREFETCH`, and tried again.

    Args:
        address: the broker, the target exchange, and the queue of the store; see `intakes`.
        access: the way to the store.
        queue_type: of the queues that it declares: "quorum" or "classic".
    """

    def __init__(
        self, address: Address, access: StoreClient, *, queue_type: str = "quorum"
    ) -> None:
        self.address = address
        self.queue = check_queue(address.queue or address.exchange)
        self.taken = IntakeStats()
        """What it has done so far."""
        self._access = access
        self._clock = access.clock
        self._queue_type = queue_type
        self._broker = Broker(address, access.clock)
        dead_letters = address._replace(exchange=address.exchange + DEAD)
        self._dead_letter_publisher = Publisher(dead_letters, access.clock)
        self._unacknowledged = Unacknowledged(self.queue)
        """Of the current session."""
        self._target_is_missing = False
        """Whether the target exchange did not exist at the last check."""
        self.checked_at = 0.0
        """When that was, by the monotonic clock."""

    @property
    def subscription(self) -> Subscription:
        """What publishes its messages to the target exchange when they are due."""
        namespace, slash, queue = self.queue.rpartition("/")
        return Subscription(
            name=f"{namespace}{slash}rabbitmq:{queue}",
            queue=self.queue,
            url=self.address.url,
            concurrency=usual_concurrency(self.address.url),
        )

    async def declare(self) -> None:
        """Declare what it needs on the broker, unless that is away, so that errors show at once.

        Raises:
            InvalidArgument: the target exchange is not there, or the broker refuses the connection
                or the declaration.
        """
        exchange = self.address.exchange
        try:
            await self._check_target()
            if self._target_is_missing:
                raise InvalidArgument(
                    f"the exchange {exchange!r} does not exist on {self.address.host}; declare it "
                    "first"
                )
            channel = await self._broker.channel(confirms=False)
            await declare_topology(channel, exchange, self._queue_type)
        except ChannelClosed as error:
            raise InvalidArgument(
                f"{exchange}: {reason_of(error)}; bide needs the right to configure "
                f"{exchange}.delayed and {exchange}.delayed.dead, and queues that are there must "
                "be as it declares them: see --queue-type, or delete them while they are empty"
            ) from error
        except Refused as error:
            raise InvalidArgument(str(error)) from error
        except LOST as error:  # `run` declares them once the broker is back
            _log.warning("%s: %s", exchange, reason_of(error))
        finally:
            await self.close()

    async def run(self) -> None:
        """Take messages until this is cancelled, however often the broker goes away."""
        logged_at, attempt = float("-inf"), 0  # an attempt is a session, or one that did not begin
        try:
            while True:
                attempt += 1
                try:
                    with stray_cancel_is_loss():
                        await self._session()
                except (Refused, *LOST) as error:
                    now = self._clock.monotonic()
                    if self.taken.connected:  # the session had begun: it is the first failure
                        attempt = 1
                    if attempt == 1 or now - logged_at >= REMIND:
                        logged_at = now
                        _log.error(
                            "%s: nothing is taken for now: %s",
                            self.address.exchange,
                            reason_of(error),
                        )
                finally:
                    self.taken.connected = self.taken.waiting = 0
                self._broker.drop()
                await self._broker.pause(attempt)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._broker.close()
        await self._dead_letter_publisher.close()

    async def _session(self) -> None:
        """Take messages until the channel is closed; whatever was not acknowledged comes again.

        Raises:
            Refused: the broker refuses the connection.
            Exception: one of `LOST`, at the end of the channel.
        """
        await self._check_target()
        self._unacknowledged = Unacknowledged(self.queue)
        channel = await self._broker.channel(confirms=False)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await declare_topology(channel, self.address.exchange, self._queue_type)
        inbox: asyncio.Queue[Any] = asyncio.Queue()  # of messages; `None` is the end

        def end(*_: object) -> None:
            inbox.put_nowait(None)

        channel.close_callbacks.add(end)
        (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(end)
        await queue.consume(inbox.put)
        _log.info("taking messages from %s into %s", queue.name, self.queue)
        self.taken.connected = 1
        while True:
            try:
                async with asyncio.timeout(FORGET if self._unacknowledged.over else None):
                    batch = [await inbox.get()]
            except TimeoutError:
                for forget in self._unacknowledged.forget():
                    await self._ask(channel, Outcomes, forget)
                continue
            size = 0
            while batch[-1] is not None and not inbox.empty() and size < BATCH:
                size += len(batch[-1].body)
                batch.append(inbox.get_nowait())
            if batch[-1] is None or channel.is_closed:
                raise ConnectionError("the broker ended the channel, or its consumer")
            await self._take(channel, batch)

    async def _take(
        self, channel: AbstractChannel, batch: Sequence[AbstractIncomingMessage]
    ) -> None:
        """Store a batch, or make dead letters of its messages, and acknowledge it as a whole."""
        if self._clock.monotonic() - self.checked_at >= CHECK:
            await self._check_target()
        await self._store(channel, await self._new(channel, batch))
        # Those that became dead letters may be processed already.
        if unprocessed := [message for message in batch if not message.processed]:
            await unprocessed[-1].ack(multiple=True)
        await channel.set_qos(prefetch_count=PREFETCH)  # answered after the broker has seen the ack
        self._unacknowledged.acknowledged()

    async def _new(
        self, channel: AbstractChannel, batch: Sequence[AbstractIncomingMessage]
    ) -> list[Arrived]:
        """Return the messages of a batch that are to be stored; make dead letters of unfit ones.

        A message comes again if the connection was lost between its storing and its ack; its
        digest was recorded in the store. If no message has its id now, it was cancelled or
        published since. If another one has it, this one may be stored under a new id, or be gone
        and its id used again. It is stored once more: twice is better than never.
        """
        recorded: set[str] = set()
        if any(message.redelivered for message in batch):
            recorded = await self._recorded(channel)
        arrived: list[Arrived] = []
        seen_before: list[Arrived] = []
        for message in batch:
            arrival = await self._read(message)
            if arrival is None:
                continue
            was_recorded = message.redelivered and arrival.digest in recorded
            (seen_before if was_recorded else arrived).append(arrival)
        stored_messages = await self.find(channel, seen_before)
        for arrival, stored in zip(seen_before, stored_messages, strict=True):
            if stored is None or is_same(arrival.item, stored):
                self.taken.repeated += 1
            else:
                arrived.append(arrival)
        return arrived

    async def _read(self, message: AbstractIncomingMessage) -> Arrived | None:
        """Return a message as the store keeps it; `None`: it is a dead letter now."""
        if self._broker.was_left_out(message):
            await self._refuse(message, "it cannot be decoded, or is huge", as_it_is=True)
            return None
        try:
            if self._target_is_missing:
                raise InvalidArgument(f"the exchange {self.address.exchange!r} does not exist")
            item = item_of(message)
        except InvalidArgument as error:
            await self._refuse(message, str(error))
            return None
        return Arrived(message, item, digest_of(message, item))

    async def _store(self, channel: AbstractChannel, arrived: list[Arrived]) -> None:
        """Store messages, each under its id, or under a new one if that is in use."""
        while arrived:
            first_by_id: dict[str, Arrived] = {}
            # Of several with one id, one at a time: the others come in the next round.
            later = [
                arrival
                for arrival in arrived
                if first_by_id.setdefault(arrival.item.id, arrival) is not arrival
            ]
            try:
                ids_in_use = await self._put(channel, list(first_by_id.values()))
            except BideError as error:
                if len(first_by_id) > 1:  # one by one, so that only the culprit is refused
                    for arrival in first_by_id.values():
                        await self._store(channel, [arrival])
                else:
                    await self._refuse(arrived[0].message, str(error))
                arrived = later
                continue
            arrived = later + await self._resolve(channel, ids_in_use)

    async def _resolve(self, channel: AbstractChannel, ids_in_use: list[Arrived]) -> list[Arrived]:
        """Return what is still to be stored of messages whose ids other messages have.

        What is stored under the id may be the same message, which has come again.
        """
        stored_messages = await self.find(channel, ids_in_use)
        for pause in BEING_PUBLISHED:
            if not any(message and message.state == "leased" for message in stored_messages):
                break
            await sleep(self._clock, pause)
            stored_messages = await self.find(channel, ids_in_use)
        remaining: list[Arrived] = []
        for arrival, stored in zip(ids_in_use, stored_messages, strict=True):
            if stored is None:
                remaining.append(arrival)  # the id is free again
            # What is being published may come from its consumer, under the same id: it is new.
            elif stored.state in ("delayed", "ready") and is_same(arrival.item, stored):
                self.taken.repeated += 1
            else:
                self.taken.renamed += 1
                new_arrival = arrival._replace(item=renamed(arrival.item))
                remaining.append(new_arrival)
                _log.warning(
                    "%s: the message_id %r is in use, its message is stored as %s",
                    self.address.exchange,
                    arrival.item.id,
                    new_arrival.item.id,
                )
        return remaining

    async def _put(self, channel: AbstractChannel, arrived: list[Arrived]) -> list[Arrived]:
        """Store messages; return those whose ids are in use.

        Raises:
            BideError: the store refuses one of them.
        """
        # Completed: else a cancel in between would leave what is stored without its record.
        ids_in_use, record_commands = await self._patiently(
            channel, lambda: completed(self._put_recorded(arrived))
        )
        for command in record_commands:
            await self._ask(channel, Outcomes, command)
        self.taken.stored += len(arrived) - len(ids_in_use)
        return ids_in_use

    async def _put_recorded(self, arrived: list[Arrived]) -> tuple[list[Arrived], list[Command]]:
        """Store messages with the record of them: the lane makes that one transaction on SQLite.

        While the store is full or away, the record comes after the messages. It might fit alone,
        and what is recorded and not in the store counts as cancelled or published.

        Returns:
            Those whose ids are in use, and the commands about records that are left to do.
        """
        put = Put(self.queue, [arrival.item for arrival in arrived])
        digests = [arrival.digest for arrival in arrived]
        storing = asyncio.ensure_future(self._access.once(Outcomes, put))
        if self.taken.waiting:
            await storing
            remaining = self._unacknowledged.record(digests)
        else:
            commands = self._unacknowledged.record(digests)
            recording = map(self._access.lane.acall, commands)
            _, *results = await asyncio.gather(storing, *recording, return_exceptions=True)
            if storing.exception():
                for retract in self._unacknowledged.retract(commands):
                    await self._access.lane.acall(retract)
            remaining = [
                command
                for command, result in zip(commands, results, strict=True)
                if isinstance(result, BaseException)
            ]
        outcomes = storing.result().outcomes  # raises what the put has raised
        ids_in_use = [
            arrival for arrival, outcome in zip(arrived, outcomes, strict=True) if not outcome.done
        ]
        return ids_in_use, remaining

    async def _recorded(self, channel: AbstractChannel) -> set[str]:
        """Return the digests of what is stored and may not be acknowledged, of all processes."""
        steps = first_of(self._unacknowledged.scan(), sys.maxsize)
        records = await arun_steps(steps, lambda scan: self._ask(channel, Page, scan))
        return self._unacknowledged.read(records)

    async def find(
        self, channel: AbstractChannel, arrived: list[Arrived]
    ) -> Sequence[Message | None]:
        """Return what the store has under the ids of messages; `None`: nothing."""
        if not arrived:
            return []
        command = Find(self.queue, [arrival.item.id for arrival in arrived])
        return (await self._ask(channel, Found, command)).messages

    async def _ask(self, channel: AbstractChannel, reply_type: type[R], command: Command) -> R:
        """Execute a command; wait while the store is unavailable."""
        return await self._patiently(channel, lambda: self._access.once(reply_type, command))

    async def _patiently(self, channel: AbstractChannel, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` returns; ask again while the store is unavailable.

        Raises:
            ConnectionError: the channel was closed meanwhile: its messages come again.
        """
        attempt = 0
        while True:
            try:
                reply = await ask()
            except StoreError:  # `StoreClient` has said so
                if channel.is_closed:
                    raise ConnectionError("the channel was closed, the store is away") from None
                attempt += 1
                self.taken.waiting = 1
                await sleep(self._clock, PAUSES.delay(attempt, random.random()) / 1000)
            else:
                self.taken.waiting = 0
                return reply

    async def _refuse(
        self, message: AbstractIncomingMessage, reason: str, *, as_it_is: bool = False
    ) -> None:
        """Publish a message to the dead-letter exchange, with the reason in a header.

        With `as_it_is`, or if that cannot be done, the broker does it, without the reason.

        Raises:
            ConnectionError: it could not be published, so it comes again.
        """
        letter = None if as_it_is else dead_letter_of(message, reason)
        if letter is None:
            # Without exchange and queue, as when a user has deleted them, the broker would drop
            # the message.
            channel = await self._broker.channel(confirms=False)
            await declare_dead_letters(channel, self.address.exchange, self._queue_type)
            await channel.close()
            await message.reject(requeue=False)
        else:
            answer = await self._dead_letter_publisher.publish(letter, DEAD_LETTER)
            if not answer.good:
                raise ConnectionError(f"a dead letter could not be published: {answer.text}")
        id_text = "" if message.message_id is None else f" {message.message_id!r}"
        _log.error("%s: message%s is a dead letter: %s", self.address.exchange, id_text, reason)
        self.taken.refused += 1

    async def _check_target(self) -> None:
        """See whether the target exchange is there. The broker closes the channel if it is not."""
        channel = await self._broker.channel(confirms=False)  # so not the one that takes messages
        try:
            await channel.get_exchange(self.address.exchange, ensure=True)
            self._target_is_missing = False
        except ChannelNotFoundEntity:
            self._target_is_missing = True
        else:
            await channel.close()
        self.checked_at = self._clock.monotonic()
