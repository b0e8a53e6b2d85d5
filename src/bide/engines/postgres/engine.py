"""The PostgreSQL engine: the queue in the user's own database."""

import os
import random
import secrets
import time
from collections.abc import Sequence
from itertools import repeat

import psycopg
from msgspec import MsgspecError
from msgspec.structs import replace
from psycopg.errors import LockNotAvailable

from bide.engines.bounded_dict import BoundedDict
from bide.engines.port import Capabilities, Notifier, PartlyDone
from bide.engines.postgres.batch import NEVER, Floors, PostgresBatch
from bide.engines.postgres.calls import replies
from bide.engines.postgres.connection import PostgresCaller, Witness
from bide.engines.postgres.constants import LOOK_AGAIN
from bide.engines.postgres.faults import CHANGED, RETRIED, first_line, lasts, translate
from bide.engines.postgres.notifier import PostgresNotifier
from bide.engines.postgres.reading import is_awaited
from bide.engines.postgres.schema import catalog_only, prepare
from bide.engines.postgres.settings import PostgresSettings, is_pooled
from bide.engines.postgres.transactions import Answer, transact
from bide.engines.repetition import replies_of
from bide.logs import logger
from bide.model.command_identity import Identities
from bide.model.commands import Ack, BuryCommand, Command, History, Release, RetryCommand
from bide.model.ended import end_of
from bide.model.errors import BideError, Closed, StoreBusy, StoreUnavailable
from bide.model.replies import Claimed, Outcomes, QueueSettings, Reply

TRIES = 5
"""How often a batch is tried that the server undid because of another transaction."""

FOLD_EVERY = 256
"""After so many batches that changed something the counters are added up."""

FOLD_REST = 10.0
"""The counters are not added up again for so many times as long as that took: while a transaction
holds an old snapshot, it reads all changes that were added up since."""

DOZE = 100
"""Milliseconds by which a process may wake before the time in its row, so that a process with many
short sleeps does not change the row each time."""

AGAIN = 0.05
"""Seconds between attempts to connect again."""

SOON, SELDOM = 0.02, 1.0
"""Seconds after which a waiting claim looks again if it gets no hints from other processes."""

MANY_DELTAS = 1_000
"""If a count had to add up more changes of the counters than this, they are folded."""

PATIENCE = 1.0
"""Seconds that the commands of a batch may wait for locks one after the other: all callers of this
process wait meanwhile."""

ENDS_LEASES = (Ack, RetryCommand, BuryCommand, Release)
"""Commands after which a limited queue allows as many messages as leases have ended: no more
processes need to look."""

_EVERYBODY = 1 << 30
_log = logger("bide.postgres")


class PostgresEngine:
    """Executes each batch of commands as one transaction.

    It uses one connection; waiting claims use a second one (`notifier`), and reads, which do not
    wait for writes, a third (`reader`).

    Raises:
        StoreError: the server cannot be reached or holds no store; the error says why.
    """

    capabilities = Capabilities(remembers=True, loses_replies=True)

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._process = f"{os.getpid()}:{secrets.token_hex(4)}"
        self._caller: PostgresCaller | None = None
        self._notifier: PostgresNotifier | None = None
        self._closed = False
        self._until_fold = FOLD_EVERY
        self._fold_from = 0.0
        self._polls = False
        self._floors = Floors()
        self._slept: BoundedDict[str, None] = BoundedDict()
        """Queues for which others assumed, at the last claim, that this process sleeps."""
        self._witness = Witness(settings.shown, settings.schema)
        self._pauses: BoundedDict[str, float] = BoundedDict()
        self._names: BoundedDict[str, str] = BoundedDict()
        """What this process waits for, by what notifications call it."""
        self._enrolled: BoundedDict[str, None] = BoundedDict()
        """Senders that the store knows."""
        self._connect()

    @property
    def schema(self) -> str:
        """The schema that is the store."""
        return self._settings.schema

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Carry out the commands in one transaction, and answer when the server has committed."""
        if not commands:
            return []
        for number in range(1, TRIES + 1):
            caller = self._current()
            caller.in_use = True
            waiter = self._process if self._notifier is not None and now is None else None
            batch = PostgresBatch(
                caller, now, self._floors, waiter, escapes=caller.escapes, hopeful=number == 1
            )
            try:
                answers = transact(batch, commands, identities, self._enrolled)
            except (psycopg.Error, MsgspecError) as error:
                caller.in_use = False
                if self._tries_again(error, number):
                    continue
                if isinstance(error, LockNotAvailable) and len(commands) > 1:
                    raise self._one_by_one(commands, now, identities) from error
                raise translate(error, self._settings.shown, sent=True) from error
            self._witness.confirmed(batch.positions)
            if now is None:
                self._floors.update(batch.new_floors)
            self._follow_up(batch, commands, answers)
            caller.in_use = False
            return replies_of(answers)
        raise AssertionError  # not reached

    def reader(self) -> "PostgresEngine":
        """Return an engine with a connection of its own."""
        return PostgresEngine(self._settings)

    def notifier(self) -> Notifier | None:
        """Start to listen for puts of other processes; `None` where a pooler is in the way."""
        if self._polls:
            _log.warning(
                "%s: a pooler is between bide and the server, and passes on no NOTIFY: messages "
                "that other processes put are looked for every %g to %g s; name the server's own "
                "address with ?listen=",
                self._settings.shown,
                SOON,
                SELDOM,
            )
            return None
        if self._notifier is None:
            self._notifier = PostgresNotifier(self._settings, self._process, self._names)
        return self._notifier

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        self._leave()

    def _one_by_one(
        self, commands: Sequence[Command], now: int | None, identities: Identities
    ) -> PartlyDone:
        """Execute each command alone, so that only those that name a locked message fail.

        Together they waited for a lock for too long.
        """
        outcomes: list[Answer] = []
        until = time.monotonic() + PATIENCE
        for command, identity in zip(commands, identities or repeat(None), strict=False):
            try:
                if time.monotonic() >= until:
                    raise StoreBusy(
                        "commands before this one have waited for messages that are being changed "
                        "in open transactions of other clients; this one was not carried out. Try "
                        "again"
                    )
                outcomes += self.execute([command], now, [identity])
            except BideError as error:
                outcomes.append(error)
        return PartlyDone(outcomes)

    def _follow_up(
        self, batch: PostgresBatch, commands: Sequence[Command], answers: list[Answer]
    ) -> None:
        """Wake other processes, and do the housekeeping. If it fails, the commands stay done."""
        try:
            self._wake_and_sleep(batch, commands, answers)
            self._until_fold -= not all(command.only_reads for command in commands)
            if self._until_fold <= 0 or batch.deltas > MANY_DELTAS:
                self._until_fold = random.randrange(FOLD_EVERY, 2 * FOLD_EVERY)
                self._fold(batch.call)
        except psycopg.Error as error:
            _log.warning("%s: no claim could be woken: %s", self._settings.shown, first_line(error))
            self._leave_if_lost(error)

    def _fold(self, caller: PostgresCaller) -> None:
        """Add up the counters, unless that has just taken long."""
        begin = time.monotonic()
        if begin < self._fold_from:
            return
        self._settle(caller)
        caller("_fold")
        self._fold_from = begin + (1 + FOLD_REST) * (time.monotonic() - begin)

    def _wake_and_sleep(
        self, batch: PostgresBatch, commands: Sequence[Command], answers: list[Answer]
    ) -> None:
        """Wake the processes that would sleep too long; store how long this one will sleep.

        Both happen after the commit, and a process looks once more before it sleeps: so one of two
        sees the other. If a message is due after they ask again by themselves, none is woken.
        """
        wakes: dict[str, tuple[int, int]] = {}
        for number, (command, reply) in enumerate(zip(commands, answers, strict=True)):
            queue = command.queue
            if isinstance(reply, (Outcomes, QueueSettings)):
                moment = batch.moments.get(queue, NEVER)
                if reply.wake is not None and reply.wake < moment + LOOK_AGAIN:
                    frees = queue in self._floors.limited and isinstance(command, ENDS_LEASES)
                    wake, most = wakes.get(queue, (NEVER, 0))
                    more = command.weight if frees else _EVERYBODY
                    wakes[queue] = min(reply.wake, wake), most + more
            elif isinstance(reply, Claimed) and self._polls:
                answers[number] = self._look_again(queue, reply)
            elif isinstance(reply, Claimed) and batch.waiter and not reply.messages:
                answers[number] = self._sleep(batch, queue, reply)
            elif batch.waiter and isinstance(command, History) and is_awaited(command, reply):
                ((tag,),) = batch.call("_watch", batch.waiter, queue, command.id)
                self._names[tag] = end_of(queue, command.id)
                (answers[number],) = replies(batch, [command])  # it may have ended meanwhile
        for queue, (wake, most) in wakes.items():
            self._settle(batch.call)
            batch.call.start("_wake", self._process, queue, wake, min(most, _EVERYBODY))

    def _sleep(self, batch: PostgresBatch, queue: str, reply: Claimed) -> Claimed:
        """Store how long this process will sleep, unless that is stored already."""
        until, asleep = batch.waits[queue]
        if asleep is not None and until <= asleep <= until + DOZE:
            reply = replace(reply, calm=self._is_calm(queue))
            self._slept[queue] = None
            return reply
        self._slept.pop(queue, None)
        floor = self._floors.of(queue)
        ((sooner, tag),) = batch.call("_sleep", batch.waiter, queue, until + DOZE, floor)
        self._names[tag] = queue
        if sooner is not None and sooner < until:
            return replace(reply, next=max(0.0, sooner - reply.now))
        return reply

    def _is_calm(self, queue: str) -> bool:
        """Whether each put that may still be committed wakes this process, if it has to.

        A put sees which processes sleep. So all transactions must have begun since this process
        slept, and it must get their hints.
        """
        listens = self._notifier is not None and self._notifier.is_listening
        return listens and queue in self._slept and self._floors.is_calm(queue)

    def _look_again(self, queue: str, reply: Claimed) -> Claimed:
        """Make a waiting claim ask again soon after it got messages, and later less often."""
        if reply.messages:
            self._pauses.pop(queue, None)
            return reply
        pause = self._pauses.get(queue, SOON)
        self._pauses[queue] = min(2 * pause, SELDOM)
        wait = pause * 1000 if reply.next is None else min(reply.next, pause * 1000)
        return replace(reply, next=wait)

    def _current(self) -> PostgresCaller:
        """Return a connection that is not known to be lost."""
        if self._closed:
            raise Closed("this engine was closed")
        if self._caller is not None and self._caller.in_use:
            self._leave()  # an exchange was interrupted, and its answer may still come
        if self._caller is not None:
            self._settle(self._caller)
            if self._caller.has_news():
                self._leave()  # to an idle client, a server sends only its end
        return self._caller or self._reconnect()

    def _settle(self, caller: PostgresCaller) -> None:
        """Wait for the result of `_wake` after the last put."""
        try:
            caller.settle()
        except psycopg.Error as error:  # of a lost connection the next look at it says so, too
            _log.warning("%s: no claim could be woken: %s", self._settings.shown, first_line(error))

    def _reconnect(self) -> PostgresCaller:
        """Connect again, waiting for a server that restarts, or for a standby to be promoted."""
        until = time.monotonic() + self._settings.reconnect
        while True:
            try:
                return self._connect()
            except StoreUnavailable as error:
                if lasts(error) or time.monotonic() >= until:
                    raise
            time.sleep(AGAIN)

    def _connect(self) -> PostgresCaller:
        connection = self._settings.connect()
        try:
            prepare(connection, self.schema)
            with catalog_only(connection):
                self._witness.compare(connection)
                pooled = is_pooled(connection)
            if not pooled:  # else others, who share the session, would have to live with it
                connection.execute("SET default_transaction_isolation = 'read committed'")
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self._settings.shown, sent=False) from error
        except BaseException:
            connection.close()
            raise
        self._polls = pooled and self._settings.listen == self._settings.url
        self._caller = PostgresCaller(connection, self.schema, prepares=not pooled)
        return self._caller

    def _tries_again(self, error: Exception, number: int) -> bool:
        """Whether to execute a batch again after an error, at the first try or a later one."""
        if isinstance(error, CHANGED):
            self._leave()  # a new connection finds out about a newer version
            return number == 1
        self._leave_if_lost(error)
        return isinstance(error, RETRIED) and number < TRIES

    def _leave_if_lost(self, error: Exception) -> None:
        """Leave a connection that was lost, or whose server is a standby now."""
        demoted = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        if self._caller is not None and (demoted or self._caller.connection.closed):
            self._leave()

    def _leave(self) -> None:
        caller, self._caller = self._caller, None
        self._floors.clear()  # another server may not have what was claimed
        if caller is not None:
            caller.connection.close()
