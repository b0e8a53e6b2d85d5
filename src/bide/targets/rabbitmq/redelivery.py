"""Messages that are stored, and whose acknowledgement RabbitMQ may not have seen.

RabbitMQ delivers such a message again. By then a user may have cancelled it, and it must not come
back. So each batch is stored together with a record of its messages, in an internal queue. The
record goes once RabbitMQ has seen the acknowledgement. The record of a process or a connection that
died before that counts for a day.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from aio_pika.abc import AbstractIncomingMessage

from bide.model.commands import Cancel, Command, Put, Scan, Where
from bide.model.identity import new_id
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item, Message

RECORDS = InternalQueue.RABBITMQ.value

KEPT = 24 * 3_600_000
"""Milliseconds for which the record of a process that died counts."""


class Unacknowledged:
    """What one session of an intake has stored, and RabbitMQ may deliver again.

    Args:
        queue: of the store, into which the messages go.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._open: list[str] = []
        self._over: list[str] = []

    def record(self, digests: Iterable[str]) -> list[Command]:
        """Return the commands that record messages, and forget what is acknowledged."""
        commands: list[Command] = []
        if known := [digest for digest in digests if digest]:
            self._open.append(new_id())
            data = msgspec.json.encode(known)
            commands.append(
                Put(RECORDS, [Item(self._open[-1], data, delay=KEPT, group=self._queue)])
            )
        return commands + self.forget()

    def retract(self, commands: Iterable[Command]) -> list[Command]:
        """Return the command that removes the last record, if these commands have made one."""
        made = any(isinstance(command, Put) for command in commands)
        return [Cancel(RECORDS, [self._open.pop()])] if made else []

    def acknowledged(self) -> None:
        """RabbitMQ has seen the acknowledgements of all that was recorded."""
        self._over += self._open
        self._open.clear()

    @property
    def over(self) -> bool:
        """Whether there are records to forget."""
        return bool(self._over)

    def forget(self) -> list[Command]:
        """Return the command that removes the records of what is acknowledged, if there are any."""
        ids, self._over = self._over, []
        return [Cancel(RECORDS, ids)] if ids else []

    def scan(self) -> Scan:
        """Return the command that finds the records of all processes."""
        return Scan(RECORDS, where=Where(group=self._queue))

    def read(self, records: Iterable[Message]) -> set[str]:
        """Return what is recorded. Those that no longer count are removed by the next `forget`."""
        digests: set[str] = set()
        for message in records:
            if message.state == "delayed":
                digests.update(msgspec.json.decode(message.data, type=list[str]))
            else:
                self._over.append(message.id)
        return digests


def digest_of(message: AbstractIncomingMessage, item: Item) -> str:
    """Return what identifies a message that comes again; "" for one without a `message_id`."""
    if not message.message_id:
        return ""
    content = repr((message.message_id, sorted((item.headers or {}).items())))
    return blake2b(content.encode() + item.data, digest_size=12).hexdigest()
