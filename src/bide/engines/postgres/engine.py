"""The PostgreSQL engine: the queue in the user's own database."""

import os
import random
import secrets
import time
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import psycopg
from msgspec import MsgspecError
from msgspec.structs import replace
from psycopg.errors import LockNotAvailable

from bide.engines.bounded_dict import BoundedDict
from bide.engines.port import Capabilities, Identities, Notifier, PartlyDone, replies_of
from bide.engines.postgres.batch import NEVER, Floors, PostgresBatch
from bide.engines.postgres.calls import replies
from bide.engines.postgres.connection import PostgresCaller, Witness
from bide.engines.postgres.constants import LOOK_AGAIN
from bide.engines.postgres.faults import CHANGED, RETRIED, first_line, translate
from bide.engines.postgres.notifier import PostgresNotifier
from bide.engines.postgres.reading import is_awaited
from bide.engines.postgres.schema import catalog_only, prepare
from bide.engines.postgres.settings import PostgresSettings, is_pooled
from bide.engines.postgres.transactions import ReplyOrError, transact
from bide.logs import logger
from bide.model.commands import (
    Ack,
    BuryCommand,
    Claim,
    Command,
    Delete,
    History,
    Release,
    Renew,
    RetryCommand,
)
from bide.model.ended import message_hint
from bide.model.errors import BideError, Closed, StoreBusy, StoreUnavailable
from bide.model.replies import Claimed, Outcomes, QueueSettings, Reply

TRIES = 5
"""How often a batch is tried that the server undid because of another transaction."""

LOCK_TRIES = 3
"""How often a command is tried that waits for a lock for too long. Transactions of bide may wait
for each other: the first that gives up lets the others go on, long before the server looks for
deadlocks."""

FOLD_EVERY = 256
"""After so many batches that changed something the counters are folded: the rows of single changes
are added up in one row for each counter."""

FOLD_REST = 10.0
"""The counters are not folded again for so many times as long as that took: while a transaction
holds an old snapshot, each fold reads all rows that were folded since."""

DOZE = 100
"""Milliseconds by which a process may wake before the time in its row, so that a process with many
short sleeps does not change the row each time."""

SECONDS_BETWEEN_CONNECTS = 0.05
"""Seconds between attempts to connect again."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds after which a waiting claim that gets no hints from other processes looks again: first,
and at most. Each pause in vain is twice as long as the one before."""

MANY_DELTAS = 1_000
"""If a count had to add up more changes of the counters than this, they are folded."""

PATIENCE = 1.0
"""Seconds that the commands of a batch may wait for locks one after the other: all callers of this
process wait meanwhile."""

ENDS_LEASES = (Ack, Renew, RetryCommand, BuryCommand, Release)
"""Commands after which a limited queue allows as many messages as leases have ended: no more
processes need to look."""

_ALL_PROCESSES = 1 << 30
"""More processes than there are."""

_log = logger("bide.postgres")


class _Wake(NamedTuple):
    """Which processes that wait for messages of a queue are to be woken."""

    moment: int
    """When the first message can be claimed, in Unix milliseconds: who sleeps longer is woken."""
    most: int
    """How many processes are woken at most."""


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
        """The name by which others know this process: that it sleeps, and what it has claimed."""
        self._caller: PostgresCaller | None = None
        """The open connection; `None`: the next batch connects."""
        self._tries_until: float | None = None
        """The monotonic time until which callers wait for a lost server; `None`: none is lost."""
        self._notifier: PostgresNotifier | None = None
        """Receives hints while claims of this process wait; `None`: nothing asked for it yet."""
        self._closed = False
        self._until_fold = FOLD_EVERY
        """How many batches with changes there are before the counters are folded."""
        self._fold_from = 0.0
        """The monotonic time before which the counters are not folded again."""
        self._polls = False
        """Whether a pooler is in the way, so that no hints arrive."""
        self._floors = Floors()
        """Where claims begin to look."""
        self._slept: BoundedDict[str, None] = BoundedDict()
        """Queues for which others assumed, at the last claim, that this process sleeps."""
        self._witness = Witness(settings.shown, settings.schema)
        """Finds out whether a new server has all that was confirmed."""
        self._pauses: BoundedDict[str, float] = BoundedDict()
        """By queue: the seconds until the next look, of a process that gets no hints."""
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
        """Carry out the commands in one transaction, and answer when the server has committed.

        Args:
            commands: in their order.
            now: Unix milliseconds to go by, for tests; `None`: the server's clock.
            identities: one for each command, or none.
        """
        return self._execute(commands, now, identities, LOCK_TRIES)

    def _execute(
        self, commands: Sequence[Command], now: int | None, identities: Identities, lock_tries: int
    ) -> list[Reply]:
        """Carry out commands as above, and try one that waits for locks that often."""
        if not commands:
            return []
        for attempt in range(1, TRIES + 1):
            caller = self._current()
            caller.in_use = True  # stays so if a signal interrupts this: see `_current`
            # Under a clock of the caller's no process sleeps: notifications go by the server's.
            waiter = self._process if self._notifier is not None and now is None else None
            batch = PostgresBatch(
                caller, now, self._floors, waiter, escapes=caller.escapes, hopeful=attempt == 1
            )
            try:
                answers = transact(batch, commands, identities, self._enrolled)
            except (psycopg.Error, MsgspecError) as error:
                caller.in_use = False
                if self._tries_again(error, attempt, commands, lock_tries):
                    continue
                if isinstance(error, LockNotAvailable) and len(commands) > 1:
                    raise self._one_by_one(commands, now, identities) from error
                raise translate(error, self._settings.shown, sent=True) from error
            self._witness.confirmed(batch.positions)
            if now is None:  # what is true by another clock says nothing about the next claim
                self._floors.update(batch.new_floors)
            self._follow_up(batch, commands, answers)
            caller.in_use = False
            return replies_of(answers)
        raise AssertionError  # not reached: the last attempt returns or raises

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
                FIRST_PAUSE,
                LONGEST_PAUSE,
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

        Together they waited for a lock for too long. Returns what tells the lane of a reply or an
        error for each command.
        """
        outcomes: list[ReplyOrError] = []
        deadline = time.monotonic() + PATIENCE
        for command, identity in zip(commands, identities or repeat(None), strict=False):
            try:
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        "commands before this one have waited for messages that are being changed "
                        "in open transactions of other clients; this one was not carried out. Try "
                        "again"
                    )
                outcomes += self._execute([command], now, [identity], LOCK_TRIES - 1)
            except BideError as error:
                outcomes.append(error)
        return PartlyDone(outcomes)

    def _follow_up(
        self, batch: PostgresBatch, commands: Sequence[Command], answers: list[ReplyOrError]
    ) -> None:
        """Wake other processes, and do the housekeeping. If it fails, the commands stay done."""
        try:
            self._wake_and_sleep(batch, commands, answers)
            if not all(command.only_reads for command in commands):
                self._until_fold -= 1
            if self._until_fold <= 0 or batch.deltas > MANY_DELTAS:
                # At random, so that the processes of a program do not fold all at once.
                self._until_fold = random.randrange(FOLD_EVERY, 2 * FOLD_EVERY)
                self.fold(batch.call)
        except psycopg.Error as error:
            _log.warning("%s: no claim could be woken: %s", self._settings.shown, first_line(error))
            self._leave_if_lost(error)

    def fold(self, caller: PostgresCaller) -> None:
        """Fold the counters, unless that has just taken long."""
        begin = time.monotonic()
        if begin < self._fold_from:
            return
        self._settle(caller)
        caller("_fold")
        seconds_taken = time.monotonic() - begin
        self._fold_from = begin + seconds_taken + FOLD_REST * seconds_taken

    def _wake_and_sleep(
        self, batch: PostgresBatch, commands: Sequence[Command], answers: list[ReplyOrError]
    ) -> None:
        """Wake the processes that would sleep too long; store how long this one will sleep.

        Both happen after the commit, and a process looks once more before it sleeps: so one of two
        sees the other. Replaces answers of which that look tells more.
        """
        wakes: dict[str, _Wake] = {}
        for place, (command, reply) in enumerate(zip(commands, answers, strict=True)):
            queue = command.queue
            if isinstance(reply, (Outcomes, QueueSettings)):
                if (wake := self._wake_of(batch, command, reply)) is not None:
                    earlier = wakes.get(queue, _Wake(NEVER, 0))
                    moment = min(wake.moment, earlier.moment)
                    wakes[queue] = _Wake(moment, earlier.most + wake.most)
            elif isinstance(reply, Claimed) and self._polls:
                answers[place] = self._look_again(queue, reply)
            elif isinstance(reply, Claimed) and batch.waiter and not reply.messages:
                answers[place] = self._sleep(batch, queue, reply)
            elif batch.waiter and isinstance(command, History) and is_awaited(command, reply):
                ((tag,),) = batch.call("_watch", batch.waiter, queue, command.id)
                self._names[tag] = message_hint(queue, command.id)
                (answers[place],) = replies(batch, [command])  # it may have ended meanwhile
        for queue, wake in wakes.items():
            self._settle(batch.call)
            most = min(wake.most, _ALL_PROCESSES)
            batch.call.start("_wake", self._process, queue, wake.moment, most)

    def _wake_of(
        self, batch: PostgresBatch, command: Command, reply: Outcomes | QueueSettings
    ) -> _Wake | None:
        """Return what a command has to wake; `None`: nothing.

        If a message is due after waiting processes ask again by themselves, none is woken.
        """
        put_at = batch.moments.get(command.queue, NEVER)  # not known of what is no put: it wakes
        if reply.wake is None or reply.wake >= put_at + LOOK_AGAIN:
            return None
        if command.queue in self._floors.limited and isinstance(command, ENDS_LEASES):
            return _Wake(reply.wake, command.weight)
        return _Wake(reply.wake, _ALL_PROCESSES)

    def _sleep(self, batch: PostgresBatch, queue: str, reply: Claimed) -> Claimed:
        """Store how long this process will sleep, unless that is stored already.

        Returns the reply of an empty claim, with what is known now: whether the process may sleep
        for long, or that it has to claim again sooner.
        """
        wait = batch.waits[queue]
        if wait.stored is not None and wait.until <= wait.stored <= wait.until + DOZE:
            reply = replace(reply, calm=self._is_calm(queue))
            self._slept[queue] = None
            return reply
        self._slept.pop(queue, None)
        floor = self._floors.of(queue)
        ((sooner, tag),) = batch.call("_sleep", batch.waiter, queue, wait.until + DOZE, floor)
        self._names[tag] = queue
        if sooner is not None and sooner < wait.until:  # a put that saw no sleeper came before this
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
        pause = self._pauses.get(queue, FIRST_PAUSE)
        self._pauses[queue] = min(2 * pause, LONGEST_PAUSE)
        wait_ms = pause * 1000
        if reply.next is not None:
            wait_ms = min(reply.next, wait_ms)
        return replace(reply, next=wait_ms)

    def _current(self) -> PostgresCaller:
        """Return a connection that is not known to be lost."""
        if self._closed:
            raise Closed("this engine was closed")
        if self._caller is not None and self._caller.in_use:
            self._leave()  # an exchange was interrupted, and its answer may still come
        if self._caller is not None:
            self._settle(self._caller)
            if self._caller.has_news():
                self._leave()  # an idle server sends nothing but its end
        return self._caller or self._reconnect()

    def _settle(self, caller: PostgresCaller) -> None:
        """Wait for the result of `_wake` after the last put."""
        try:
            caller.settle()
        except psycopg.Error as error:  # of a lost connection the next look at it says so, too
            _log.warning("%s: no claim could be woken: %s", self._settings.shown, first_line(error))

    def _reconnect(self) -> PostgresCaller:
        """Connect again, waiting for a server that restarts, or for a standby to be promoted.

        For `reconnect` seconds after the connection was lost, calls try again and again. Later ones
        try once each, until one of them succeeds.
        """
        if self._tries_until is None:
            self._tries_until = time.monotonic() + self._settings.reconnect
        while True:
            try:
                return self._connect()
            except StoreUnavailable as error:
                if error.lasts or time.monotonic() >= self._tries_until:
                    raise
            time.sleep(SECONDS_BETWEEN_CONNECTS)

    def _connect(self) -> PostgresCaller:
        """Connect, make the schema or bring it up to date, and look whether changes were lost.

        Returns:
            What calls the functions.

        Raises:
            StoreError: the server cannot be reached or holds no store.
        """
        connection = self._settings.connect()
        try:
            prepare(connection, self.schema)
            with catalog_only(connection):
                self._witness.compare(connection)
                pooled = is_pooled(connection)
            if not pooled:  # else it would hold for other users, who share the session
                connection.execute("SET default_transaction_isolation = 'read committed'")
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self._settings.shown, sent=False) from error
        except BaseException:
            connection.close()
            raise
        # A pooler passes no hints on; `listen` may be a way around it.
        self._polls = pooled and self._settings.listen == self._settings.url
        self._tries_until = None
        self._caller = PostgresCaller(connection, self.schema, prepares=not pooled)
        return self._caller

    def _tries_again(
        self, error: Exception, attempt: int, commands: Sequence[Command], lock_tries: int
    ) -> bool:
        """Whether to execute a batch again whose attempt, counted from 1, has met an error."""
        if isinstance(error, LockNotAvailable):
            # Of several commands each is tried alone. A claim and a deletion wait for no message,
            # and others wait for them.
            is_patient = len(commands) == 1 and not isinstance(commands[0], (Claim, Delete))
            return is_patient and attempt < lock_tries
        if isinstance(error, CHANGED):
            self._leave()  # a new connection finds out about a newer version
            return attempt == 1
        self._leave_if_lost(error)
        return isinstance(error, RETRIED) and attempt < TRIES

    def _leave_if_lost(self, error: Exception) -> None:
        """Leave a connection that was lost, or whose server is a standby now."""
        demoted = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        if self._caller is not None and (demoted or self._caller.connection.closed):
            self._leave()

    def _leave(self) -> None:
        """Close the connection: the next batch opens another one."""
        caller, self._caller = self._caller, None
        self._floors.clear()  # another server may not have what was claimed
        if caller is not None:
            caller.connection.close()
