"""The PostgreSQL engine: the queue in the user's own database."""

import logging
import os
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import psycopg
from msgspec import MsgspecError
from msgspec.structs import replace
from psycopg.errors import InsufficientPrivilege, LockNotAvailable

from bide.engines.port import Capabilities, Notifier
from bide.engines.postgres.alone import one_by_one
from bide.engines.postgres.arrays import texts
from bide.engines.postgres.caller import Caller
from bide.engines.postgres.calls import is_one_call, replies
from bide.engines.postgres.faults import CHANGED, RETRIED, translate
from bide.engines.postgres.floors import Floors
from bide.engines.postgres.notifier import PostgresNotifier
from bide.engines.postgres.putting import only_puts, put_one
from bide.engines.postgres.reading import is_awaited
from bide.engines.postgres.session import DIRECT, begin
from bide.engines.postgres.settings import Settings
from bide.engines.postgres.witness import Witness
from bide.model.commands import Ack, Bury, Claim, Command, History, Release, Retry
from bide.model.errors import Closed, StoreError, StoreUnavailable
from bide.model.replies import Claimed, Outcomes, Reply
from bide.model.replies import Settings as QueueSettings

TRIES = 5
"""How often a batch is tried that the server undid because of another transaction."""

FOLD_EVERY = 256
"""After so many batches that changed something the counters are added up."""

FOLD_REST = 10.0
"""The counters are not added up again for so many times as long as that took: while a transaction
holds an old snapshot, it reads all changes that were added up since."""

DOZE = 100
"""Milliseconds by which a process may wake before the moment that others know of: one that sleeps
for a short while again and again does not change its row each time."""

AGAIN = 0.05
"""Seconds between attempts to connect again."""

SOON, SELDOM = 0.02, 1.0
"""Seconds after which a waiting claim looks again where nothing is heard of other processes."""

MANY_DELTAS = 1_000
"""After a count that had to add up so many changes of the counters, they are folded."""

LOOK_AGAIN = 5_000
"""Milliseconds within which each process that waits asks again by itself, which it does every
second or every `CALM` seconds: what is put for a later time wakes none."""

PUTS = frozenset(("_put", "_replace"))

CHANGES = {"_change": 1, "_edit": 0, "_delete_where": 1}
"""Functions that tell how far the log had come when they changed something, and which of their
arguments is the queue. Not acks: what a lost one concerned is delivered again."""

ENDS_LEASES = (Ack, Retry, Bury, Release)
"""Commands after which a limited queue allows as many messages as leases have ended: no more
processes need to look."""

_EVERYBODY = 1 << 30
_NEVER = 1 << 62
_NO_TRANSACTION = nullcontext()
_log = logging.getLogger("bide.postgres")


@dataclass
class _Told:
    """What the server told besides the replies, while a batch was carried out."""

    places: dict[str, int] = field(default_factory=dict)
    """By queue: how far the log had come when something was put or changed."""
    moments: dict[str, int] = field(default_factory=dict)
    """By queue: when it was put, by the server's clock."""
    floors: dict[str, list[int | None]] = field(default_factory=dict)
    """By queue: where the next claim is to begin."""
    waits: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """By queue: when an empty claim is to ask again, and until when others believe it asleep."""
    deltas: int = 0
    """How many changes of the counters a count added up."""


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
        self._caller: Caller | None = None
        self._notifier: PostgresNotifier | None = None
        self._closed = False
        self._until_fold = FOLD_EVERY
        self._fold_from = 0.0
        self._polls = False
        self._floors = Floors()
        self._slept: set[str] = set()  # queues at whose last claim others knew that this one sleeps
        self._witness = Witness(settings.place)
        self._pauses: dict[str, float] = {}
        self._limited: set[str] = set()  # queues whose last claim said that they have limits
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
            caller = self._current()
            try:
                if (reply := self._put_one(caller, commands, now)) is not None:
                    return [reply]
                told = _Told()
                found = self._transact(caller, commands, now, told, hopeful=number == 1)
            except RETRIED as error:
                if number == TRIES:
                    raise translate(error, self._settings.place, sent=True) from error
            except (*CHANGED, InsufficientPrivilege) as error:
                ours = isinstance(error, CHANGED) or self._put_function == DIRECT
                if ours:
                    self._leave()  # whoever connects anew hears of a newer version, or owner
                if not ours or number > 1:
                    raise translate(error, self._settings.place, sent=True) from error
            except (psycopg.Error, MsgspecError) as error:
                self._leave_if_lost(error)
                if isinstance(error, LockNotAvailable) and len(commands) > 1:
                    raise one_by_one(self.execute, commands, now) from error
                raise translate(error, self._settings.place, sent=True) from error
            else:
                self._follow_up(caller, commands, found, now, told)
                return found
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
                "address with ?listen=", self._settings.place, SOON, SELDOM,
            )  # fmt: skip
            return None
        if self._notifier is None:
            self._notifier = PostgresNotifier(self._settings, self._process)
        return self._notifier

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        self._leave()

    def _put_one(
        self, caller: Caller, commands: Sequence[Command], now: int | None
    ) -> Reply | None:
        """Put one message the short way, if a batch is no more than that."""
        if (stored := put_one(caller.value_and_place, self._put_function, commands, now)) is None:
            return None
        reply, moment, place = stored
        queue = commands[0].queue
        self._witness.confirmed({queue: place})
        if self._until_fold > 1 and reply.wake is not None and reply.wake >= moment + LOOK_AGAIN:
            self._until_fold -= 1
        else:
            told = _Told(moments={queue: moment})
            self._follow_up(caller, commands, [reply], now, told)
        return reply

    def _transact(
        self,
        caller: Caller,
        commands: Sequence[Command],
        now: int | None,
        told: _Told,
        *,
        hopeful: bool,
    ) -> list[Reply]:
        transaction: Any = _NO_TRANSACTION
        if not (is_one_call(commands[0]) if len(commands) == 1 else only_puts(commands)):
            transaction = caller.connection.transaction()
        waiter = self._process if self._notifier is not None and now is None else None

        def noted(function: str, *arguments: Any) -> list[Any]:
            if function == "_claim":
                queue = arguments[0]
                floor, begin = self._floors.of(queue), time.monotonic()
                rows = caller(function, *arguments, floor, waiter)
                if floor is None:
                    self._floors.looked(queue, begin)
                end = rows[-1]
                told.floors[queue] = end.floor
                told.waits[queue] = (_NEVER if end.due is None else end.due, end.until)
                (self._limited.discard if end.attempt is None else self._limited.add)(queue)
                return rows
            rows = caller(function, *arguments)
            if function in PUTS and rows[-1].due is not None:
                queue = arguments[0]
                told.places[queue], told.moments[queue] = rows[-1].until, rows[-1].due
            elif function in CHANGES:
                queue = arguments[CHANGES[function]]
                for row in rows:
                    if row.place is not None:
                        told.places[queue] = row.place
            elif function == "_count":
                told.deltas = max(told.deltas, rows[0][0]["deltas"] or 0)
            return rows

        claimed = {command.queue for command in commands if isinstance(command, Claim)}
        with transaction:
            if len(limited := claimed & self._limited) > 1:
                caller("_lock_turns", texts(list(limited)))
            found = replies(noted, commands, now, hopeful=hopeful)
        self._witness.confirmed(told.places)
        if now is None:
            self._floors.update(told.floors)
        return found

    def _follow_up(
        self,
        caller: Caller,
        commands: Sequence[Command],
        found: list[Reply],
        now: int | None,
        told: _Told,
    ) -> None:
        """Wake others and keep house. The commands are carried out, whatever becomes of this."""
        try:
            self._wake_and_sleep(caller, commands, found, now, told)
            self._until_fold -= not all(command.only_reads for command in commands)
            if self._until_fold <= 0 or told.deltas > MANY_DELTAS:
                self._until_fold = random.randrange(FOLD_EVERY, 2 * FOLD_EVERY)
                self._fold(caller)
        except psycopg.Error as error:
            _log.warning("%s: nobody could be woken: %s", self._settings.place, error)
            self._leave_if_lost(error)

    def _fold(self, caller: Caller) -> None:
        """Add up the counters, unless that has just taken long."""
        begin = time.monotonic()
        if begin < self._fold_from:
            return
        self._settle(caller)
        caller("_fold")
        self._fold_from = begin + (1 + FOLD_REST) * (time.monotonic() - begin)

    def _wake_and_sleep(
        self,
        caller: Caller,
        commands: Sequence[Command],
        found: list[Reply],
        now: int | None,
        told: _Told,
    ) -> None:
        """Wake the processes that would sleep too long; say how long this one is going to sleep.

        Both after the commit, and whoever sleeps looks once more then: so one of the two sees the
        other. A process that still stands there with the same moment need not say it again.
        What is due later than they ask again by themselves wakes nobody.
        """
        wakes: dict[str, int] = {}
        most: dict[str, int] = {}
        for number, (command, reply) in enumerate(zip(commands, found, strict=True)):
            if isinstance(reply, (Outcomes, QueueSettings)) and reply.wake is not None:
                moment = told.moments.get(command.queue, _NEVER)
                if reply.wake < moment + LOOK_AGAIN:
                    wakes[command.queue] = min(reply.wake, wakes.get(command.queue, _NEVER))
                    frees = command.queue in self._limited and isinstance(command, ENDS_LEASES)
                    most[command.queue] = most.get(command.queue, 0) + (
                        command.weight if frees else _EVERYBODY
                    )
            waits = self._notifier is not None and now is None
            if waits and isinstance(reply, Claimed) and not reply.messages:
                until, asleep = told.waits[command.queue]
                if asleep is not None and until <= asleep <= until + DOZE:
                    found[number] = replace(reply, calm=self._is_calm(command.queue))
                    self._slept.add(command.queue)
                    continue
                self._slept.discard(command.queue)
                floor = self._floors.of(command.queue)
                asleep = until + DOZE
                ((sooner,),) = caller("_sleep", self._process, command.queue, asleep, floor)
                if sooner is not None and sooner < until:
                    wait = max(0.0, sooner - reply.now)
                    found[number] = replace(reply, next=wait)
            elif waits and isinstance(command, History) and is_awaited(command, reply):
                caller("_watch", self._process, command.queue, command.id)
                (found[number],) = replies(caller, [command], None)  # it may have ended meanwhile
            elif self._polls and isinstance(reply, Claimed):
                found[number] = self._look_again(command.queue, reply)
        for queue, moment in wakes.items():
            self._settle(caller)
            caller.start("_wake", self._process, queue, moment, min(most[queue], _EVERYBODY))

    def _is_calm(self, queue: str) -> bool:
        """Whether each put that may still be committed wakes this process, if it has to.

        A put sees who sleeps. So all transactions must have begun since this process slept, and it
        must hear of them.
        """
        hears = self._notifier is not None and self._notifier.hears
        return hears and queue in self._slept and self._floors.is_calm(queue)

    def _look_again(self, queue: str, reply: Claimed) -> Claimed:
        """Let a claim that waits ask again soon after there was something, and then less often."""
        if reply.messages:
            self._pauses.pop(queue, None)
            return reply
        pause = self._pauses.get(queue, SOON)
        self._pauses[queue] = min(2 * pause, SELDOM)
        wait = pause * 1000 if reply.next is None else min(reply.next, pause * 1000)
        return replace(reply, next=wait)

    def _current(self) -> Caller:
        """Return a connection that has not been lost as far as one can know without asking."""
        if self._closed:
            raise Closed("this engine was closed")
        if self._caller is not None:
            self._settle(self._caller)
            if self._caller.has_news():
                self._leave()  # an idle server says goodbye at most
        return self._caller or self._reconnect()

    def _settle(self, caller: Caller) -> None:
        """Hear what became of waking others after the last put."""
        try:
            error = caller.settle()
        except psycopg.Error as lost:
            error = lost  # the next look at the connection says so, too
        if error is not None:
            _log.warning("%s: nobody could be woken: %s", self._settings.place, error)

    def _reconnect(self) -> Caller:
        """Connect again, waiting for a server that restarts, or for a standby to be promoted."""
        until = time.monotonic() + self._settings.reconnect
        while True:
            try:
                return self._connect()
            except StoreUnavailable:
                if time.monotonic() >= until:
                    raise
            time.sleep(AGAIN)

    def _connect(self) -> Caller:
        connection = self._settings.connect()
        try:
            session = begin(connection, self._settings.schema, self._witness)
        except (psycopg.Error, StoreError) as error:
            connection.close()
            if isinstance(error, StoreError):
                raise
            raise translate(error, self._settings.place, sent=False) from error
        self._polls = session.pooled and self._settings.listen == self._settings.url
        self._put_function = session.put_function
        self._caller = Caller(connection, self._settings.schema, prepares=not session.pooled)
        return self._caller

    def _leave_if_lost(self, error: Exception) -> None:
        """Leave a connection that was lost, or whose server is no primary any more."""
        demoted = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        if self._caller is not None and (demoted or self._caller.connection.closed):
            self._leave()

    def _leave(self) -> None:
        caller, self._caller = self._caller, None
        self._floors.clear()  # another server may not have what was claimed
        if caller is not None:
            caller.connection.close()
