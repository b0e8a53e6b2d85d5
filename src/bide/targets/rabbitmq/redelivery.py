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
        self._current: list[str] = []
        """Ids of the records whose messages RabbitMQ may deliver again."""
        self._outdated: list[str] = []
        """Ids of records that can be removed."""

    def record(self, digests: Iterable[str]) -> list[Command]:
        """Return the commands that record messages, and remove the outdated records.

        Args:
            digests: what identifies the messages; see `digest_of`. Those without one are left out.
        """
        commands: list[Command] = []
        if known_digests := [digest for digest in digests if digest]:
            record_id = new_id()
            self._current.append(record_id)
            data = msgspec.json.encode(known_digests)
            # By the group all records of this queue of the store are found.
            item = Item(record_id, data, delay=KEPT, group=self._queue)
            commands.append(Put(RECORDS, [item]))
        return commands + self.forget()

    def retract(self, commands: Iterable[Command]) -> list[Command]:
        """Return the command that removes the last record, if these commands have made one."""
        has_record = any(isinstance(command, Put) for command in commands)
        return [Cancel(RECORDS, [self._current.pop()])] if has_record else []

    def acknowledged(self) -> None:
        """RabbitMQ has seen the acknowledgements of all that was recorded."""
        self._outdated += self._current
        self._current.clear()

    @property
    def over(self) -> bool:
        """Whether there are records to forget."""
        return bool(self._outdated)

    def forget(self) -> list[Command]:
        """Return the command that removes the records of what is acknowledged, if there are any."""
        ids, self._outdated = self._outdated, []
        return [Cancel(RECORDS, ids)] if ids else []

    def scan(self) -> Scan:
        """Return the command that finds the records of all processes."""
        return Scan(RECORDS, where=Where(group=self._queue))

    def read(self, records: Iterable[Message]) -> set[str]:
        """Return the digests in records. Records that are too old are removed by `forget`."""
        digests: set[str] = set()
        for message in records:
            if message.state == "delayed":
                digests.update(msgspec.json.decode(message.data, type=list[str]))
            else:
                self._outdated.append(message.id)
        return digests


def digest_of(message: AbstractIncomingMessage, item: Item) -> str:
    """Return what identifies a message that comes again; "" for one without a `message_id`.

    Such a message gets a new id each time, so nothing tells whether it came before.
    """
    if not message.message_id:
        return ""
    content = repr((message.message_id, sorted((item.headers or {}).items())))
    return blake2b(content.encode() + item.data, digest_size=12).hexdigest()
