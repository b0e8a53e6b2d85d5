"""The PostgreSQL engine: the queue in the user's own database."""

import logging
import os
import random
import secrets
import select
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from bide.engines.port import Capabilities, Notifier
from bide.engines.postgres.arrays import register
from bide.engines.postgres.calls import is_one_call, replies
from bide.engines.postgres.faults import RETRIED, translate
from bide.engines.postgres.notifier import PostgresNotifier
from bide.engines.postgres.schema import prepare
from bide.engines.postgres.settings import Settings
from bide.model.commands import Command
from bide.model.errors import Closed, StoreError
from bide.model.replies import Claimed, Outcomes, Reply
from bide.model.replies import Settings as QueueSettings

__all__ = ["PostgresEngine"]

TRIES = 5
"""How often a batch is tried that the server undid because of another transaction."""

FOLD_EVERY = 256
"""After so many batches that changed something the counters are added up."""

_NEVER = 1 << 62
_log = logging.getLogger("bide.postgres")


class PostgresEngine:
    """Executes each batch of commands as one transaction.

    It uses one connection; waiting claims use a second one (`notifier`), and reads, which do not
    wait for writes, a third (`reader`).

    Raises:
        StoreError: the server cannot be reached or holds no store; the error says why.
    """

    capabilities = Capabilities()

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process = f"{os.getpid()}:{secrets.token_hex(4)}"
        self._connection: psycopg.Connection[Any] | None = None
        self._notifier: PostgresNotifier | None = None
        self._closed = False
        self._functions: dict[str, bytes] = {}
        self._until_fold = FOLD_EVERY
        self._connect()

    @property
    def schema(self) -> str:
        """The schema that is the store."""
        return self._settings.schema

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Carry out the commands in one transaction, and answer when the server has committed."""
        if not commands:
            return []
        for number in range(1, TRIES + 1):
            connection = self._current()
            try:
                found = self._transact(connection, commands, now)
            except RETRIED as error:
                if number == TRIES:
                    raise translate(error, self._settings.place, sent=True) from error
            except psycopg.Error as error:
                if connection.broken or connection.closed:
                    self._leave()
                raise translate(error, self._settings.place, sent=True) from error
            else:
                self._follow_up(connection, commands, found, now)
                return found
        raise AssertionError  # not reached

    def reader(self) -> "PostgresEngine":
        """Return an engine with a connection of its own."""
        return PostgresEngine(self._settings)

    def notifier(self) -> Notifier | None:
        """Start to listen for puts of other processes."""
        if self._notifier is None:
            self._notifier = PostgresNotifier(self._settings)
        return self._notifier

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        self._leave()

    def _transact(
        self, connection: psycopg.Connection[Any], commands: Sequence[Command], now: int | None
    ) -> list[Reply]:
        def run(function: str, *arguments: Any) -> list[Any]:
            return self._run(connection, function, *arguments)

        if len(commands) == 1 and is_one_call(commands[0]):
            found = replies(run, commands, now)
        else:
            with connection.transaction():
                found = replies(run, commands, now)
        return found

    def _follow_up(
        self, connection: psycopg.Connection[Any], commands: Sequence[Command],
        found: list[Reply], now: int | None,
    ) -> None:  # fmt: skip
        """Wake others and keep house. The commands are carried out, whatever becomes of this."""
        try:
            self._wake_and_sleep(connection, commands, found, now)
            self._until_fold -= not all(command.only_reads for command in commands)
            if self._until_fold <= 0:
                self._until_fold = random.randrange(FOLD_EVERY, 2 * FOLD_EVERY)
                self._run(connection, "_fold")
        except psycopg.Error as error:
            _log.warning("%s: nobody could be woken: %s", self._settings.place, error)
            if connection.broken or connection.closed:
                self._leave()

    def _wake_and_sleep(
        self, connection: psycopg.Connection[Any], commands: Sequence[Command],
        found: list[Reply], now: int | None,
    ) -> None:  # fmt: skip
        """Wake the processes that would sleep too long; say how long this one is going to sleep.

        Both after the commit, and whoever sleeps looks once more then: so one of the two sees the
        other.
        """
        wakes: dict[str, int] = {}
        for number, (command, reply) in enumerate(zip(commands, found, strict=True)):
            if isinstance(reply, (Outcomes, QueueSettings)) and reply.wake is not None:
                wakes[command.queue] = min(reply.wake, wakes.get(command.queue, _NEVER))
            waits = self._notifier is not None and now is None
            if waits and isinstance(reply, Claimed) and not reply.messages:
                until = _NEVER if reply.next is None else reply.now + int(reply.next) + 1
                ((sooner,),) = self._run(connection, "_sleep", self._process, command.queue, until)
                if sooner is not None and sooner < until:
                    wait = max(0.0, sooner - reply.now)
                    found[number] = Claimed([], 0, reply.now, wait, reply.died)
        for queue, moment in wakes.items():
            self._run(connection, "_wake", self._process, queue, moment)

    def _run(
        self, connection: psycopg.Connection[Any], function: str, *arguments: Any
    ) -> list[Any]:
        """Call a function of the schema."""
        text = self._functions.get(function)
        if text is None:
            marks = sql.SQL(", ").join([sql.Placeholder()] * len(arguments))
            name = sql.Identifier(self._settings.schema, function)
            composed = sql.SQL("SELECT * FROM {}({})").format(name, marks)
            text = self._functions[function] = composed.as_bytes(connection)
        return connection.execute(text, arguments, binary=True).fetchall()

    def _current(self) -> psycopg.Connection[Any]:
        """Return a connection that has not been lost as far as one can know without asking."""
        if self._closed:
            raise Closed("this engine was closed")
        connection = self._connection
        if connection is not None and _has_news(connection):  # an idle server says goodbye at most
            self._leave()
            connection = None
        return connection or self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        connection = self._settings.connect()
        try:
            register(connection)
            prepare(connection, self._settings.schema)
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self._settings.place, sent=False) from error
        except StoreError:
            connection.close()
            raise
        connection.row_factory = namedtuple_row
        self._connection = connection
        return connection

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _has_news(connection: psycopg.Connection[Any]) -> bool:
    """Whether an idle connection was closed by the server."""
    if connection.closed:
        return True
    readable, _, _ = select.select([connection.fileno()], [], [], 0)
    if not readable:
        return False
    try:
        connection.pgconn.consume_input()  # a notice, or the end
        readable, _, _ = select.select([connection.fileno()], [], [], 0)
    except psycopg.OperationalError:
        return True
    return bool(readable)
