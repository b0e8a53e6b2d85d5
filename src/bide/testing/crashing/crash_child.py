"""The process in which a handler runs for a crash test, and dies.

An exception would not do: `finally` and `except` clauses of the handler would run, as would its
context managers, and a killed process executes none of them. So the handler runs in a fork of the
test's process, which ends with `os._exit` where it is to die. What outlives it is in the process
of the test: the store, and the list of effects. Both are reached through a pipe.
"""

import logging
import os
import pickle
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import msgspec

from bide.consuming.handler import is_coroutine_function
from bide.consuming.handling import Handler, Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.verdict import RELEASE
from bide.engines.port import Guest, Identities, Identity, Notifier
from bide.lane.lane import Lane
from bide.model.commands import Command, Find
from bide.model.errors import InvalidArgument
from bide.model.message import Progress
from bide.model.replies import Claimed, Found, Reply, expect
from bide.queue.base import SETTLES, BaseQueue
from bide.testing.clock import FakeClock
from bide.testing.crashing.await_points import When, place_of, watch_awaits
from bide.testing.crashing.crash_store import CrashStore, StoreOfEngine
from bide.testing.crashing.effects import (
    Effect,
    name_of_command,
    record_of_call,
    records_of_command,
)
from bide.testing.crashing.open_transactions import OpenTransactions
from bide.testing.crashing.replacing import Reference
from bide.testing.manual_consumer import Handled, ManualConsumer
from bide.testing.worker import ManualWorker
from bide.worker.app.app import App

FAR = 365 * 86_400_000
"""The delay in milliseconds with which messages are released that the test is not about."""

MOST_DELIVERIES = 1_000
"""The number of deliveries after which a message is taken for one that is never settled."""

UNSETTLED = ("retried", "released", "lost")
"""The outcomes of a delivery after which the message is delivered again."""

JOINED: ContextVar[object] = ContextVar("bide-crash-joined", default=None)
"""The connection of the user's that the next command is given as `within=`."""


class CountedEffect(NamedTuple):
    """An effect, and where its calls are counted."""

    effect: Effect
    name: str
    """Of the function, in reports."""
    places: list[Reference]
    """What refers to it."""


@dataclass(frozen=True, kw_only=True)
class CrashScript:
    """What one process of a crash test does. It is inherited through the fork."""

    app: App
    queue: str
    id: str
    """Of the message."""
    effects: Sequence[CountedEffect]
    outside: Sequence[Any]
    patience: float
    start: int
    """What its clock shows, in Unix milliseconds."""
    dies_at: int | None
    """The number of the crash point at which it dies; `None`: it does not."""
    state: bytes | None
    """What the process before it has left of `outside`; `None`: there was none."""


class PipeEngine:
    """Has the commands of the handler's process executed by the store in the test's process.

    Args:
        connection: the pipe.
    """

    capabilities = CrashStore.capabilities

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self.transactions: dict[int, int] = {}
        """The transactions of commands that are being executed, by `id` of the command."""

    def tell(self, *event: Any) -> None:
        """Send an event that has no answer."""
        with self._turn:
            self._connection.send(event)

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute commands."""
        transactions = [self.transactions.get(id(command)) for command in commands]
        with self._turn:
            self._connection.send(("execute", list(commands), now, identities, transactions))
            answer = self._connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        replies: list[Reply] = answer
        return replies

    def reader(self) -> None:
        """Return `None`: reads need no second engine."""

    def notifier(self) -> Notifier | None:
        """Return `None`: no other process uses the store."""
        return None

    def close(self) -> None:
        """Do nothing: the pipe is closed when the process ends."""


class CrashProbe:
    """Counts the crash points of a handler, and ends the process at one of them."""

    def __init__(self, script: CrashScript, engine: PipeEngine) -> None:
        self.script = script
        self.engine = engine
        self.handling: Handling | None = None
        """The delivery that is made now."""
        self._transactions = OpenTransactions()
        self._count = 0
        self._replacements: list[Callable[..., Any]] = []
        self._turn = threading.RLock()

    def point(self, what: str, frame: FrameType | None = None) -> None:
        """Die here, if it is the place where this process is to die."""
        if self.handling is None:
            return
        place = place_of(frame, run_child.__code__)
        with self._turn:
            self._look_at_transactions()
            self.engine.tell("point", f"{what} ({place})" if place else what)
            if self._count == self.script.dies_at:
                self.end("died")
            self._count += 1

    def end(self, *event: Any) -> NoReturn:
        """End this process, with nothing of it executed any more."""
        try:
            self.engine.tell(*event, self._packed_state())
        except InvalidArgument as error:  # not for the handler, which may be what runs here
            self.engine.tell("refused", str(error))
        os._exit(0)

    # Effects and transactions.

    def replace_effects(self) -> None:
        """Have the calls of effects counted."""
        for counted in self.script.effects:
            replacement = self._counting(counted.effect, counted.name)
            for place in counted.places:
                place.refer_to(replacement)
            self._replacements.append(replacement)

    def _counting(self, effect: Effect, name: str) -> Callable[..., Any]:
        """Return a function that does what an effect does, between two crash points."""
        function = effect.function

        def begin(frame: FrameType) -> Handling | None:
            self.point(f"before {name}", frame)
            return self.handling

        def note(
            handling: Handling | None,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            frame: FrameType,
        ) -> None:
            if handling is None:
                return
            record = record_of_call(effect, name, args, kwargs)
            arguments = [*args, *kwargs.values()]
            number = self._transactions.number_of_call(arguments, handling)
            self.engine.tell("effects", [record], number)
            self.point(f"after {name}", frame)

        if is_coroutine_function(effect.function):

            async def call_with_await(*args: Any, **kwargs: Any) -> Any:
                frame = sys._getframe()
                handling = begin(frame)
                result = await function(*args, **kwargs)
                note(handling, args, kwargs, frame)
                return result

            return call_with_await

        def call(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe()
            handling = begin(frame)
            result = function(*args, **kwargs)
            note(handling, args, kwargs, frame)
            return result

        return call

    def transaction_of(self, within: object) -> int | None:
        """Return the number of the transaction that a command joins; `None`: it joins none."""
        if within is None or self.handling is None:
            return None
        return self._transactions.number_of(within, self.handling)

    def _look_at_transactions(self) -> None:
        """Tell the store which transactions have ended."""
        for number, is_committed in self._transactions.ended().items():
            self.engine.tell("commit" if is_committed else "roll back", number)

    def handler_ended(self, *, raised: bool) -> None:
        """Note that a handler has ended, and with it the transaction of its `within=`."""
        self._look_at_transactions()
        if (number := self._transactions.handler_ended()) is not None:
            self.engine.tell("roll back" if raised else "commit", number)

    # What is outside of the process.

    def _packed_state(self) -> bytes:
        """Return the contents of all objects that stand for what is outside of the process."""
        contents = [self._contents(thing) for thing in self.script.outside]
        try:
            return pickle.dumps(contents)
        except Exception as error:
            raise InvalidArgument(f"what is in outside= must be picklable: {error}") from error

    def _contents(self, thing: Any) -> Any:
        """Return what is in an object, without the functions that count effects."""
        if isinstance(thing, (dict, list, set, deque)):
            return thing.copy()
        return {
            name: value
            for name, value in vars(thing).items()
            if not any(value is replacement for replacement in self._replacements)
        }

    def restore(self) -> None:
        """Give the objects of `outside` the contents that the process before has left."""
        if self.script.state is None:
            return
        for thing, contents in zip(
            self.script.outside, pickle.loads(self.script.state), strict=True
        ):
            if isinstance(thing, (list, deque)):
                thing.clear()
                thing.extend(contents)
            elif isinstance(thing, (dict, set)):
                thing.clear()
                thing.update(contents)
            else:
                vars(thing).clear()
                vars(thing).update(contents)

    def at_await(self, when: When, frame: FrameType) -> None:
        """Die at an await, if it is the place."""
        self.point(f"{when} await", frame)


class CrashLane(Lane):
    """A lane with crash points around each command of the handler, and around the worker's ack."""

    def __init__(self, probe: CrashProbe, clock: FakeClock) -> None:
        super().__init__(lambda: probe.engine, clock)
        self._probe = probe

    def call(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        result_of: Callable[[Any], Any] | None = None,
        *,
        identity: Identity | None = None,
    ) -> Any:
        """Execute a command; see `Lane.call`."""
        if (name := self._name(command, owner)) is None:
            reply = super().call(command, owner, wait, identity=identity)
            return reply if result_of is None else result_of(reply)
        transaction = self._begin(command, name)
        try:
            reply = super().call(command, owner, wait, identity=identity)
        finally:
            self._probe.engine.transactions.pop(id(command), None)
        self._end(command, name, reply, transaction)
        return reply if result_of is None else result_of(reply)

    async def acall(
        self,
        command: Command,
        owner: object = None,
        wait: float | None = None,
        result_of: Callable[[Any], Any] | None = None,
        *,
        identity: Identity | None = None,
        in_order: bool = False,
    ) -> Any:
        """Execute a command; see `Lane.acall`."""
        if (name := self._name(command, owner)) is None:
            reply = await super().acall(command, owner, wait, identity=identity, in_order=in_order)
            return reply if result_of is None else result_of(reply)
        transaction = self._begin(command, name)
        try:
            reply = await super().acall(command, owner, wait, identity=identity, in_order=in_order)
        finally:
            self._probe.engine.transactions.pop(id(command), None)
        self._end(command, name, reply, transaction)
        return reply if result_of is None else result_of(reply)

    def _name(self, command: Command, owner: object) -> str | None:
        """Return how crash points name a command; `None`: it has none."""
        if self._probe.handling is None or command.only_reads:
            return None
        if isinstance(owner, BaseQueue):
            return name_of_command(command)
        return self._name_of_end(command)

    def _name_of_end(self, command: Command) -> str | None:
        """Return how a command is named with which the worker settles the delivery."""
        if not isinstance(command, SETTLES):
            return None
        if all(lease.id != self._probe.script.id for lease in command.leases):
            return None
        tag = type(command).__struct_config__.tag
        return f"the {'ack' if tag == 'renew' else tag} of the worker"

    def _begin(self, command: Command, name: str) -> int | None:
        """Begin a command; return the number of the transaction that it joins, if it does."""
        self._probe.point(f"before {name}", sys._getframe())
        within = JOINED.get()
        JOINED.set(None)
        number = self._probe.transaction_of(within)
        if number is not None:
            self._probe.engine.transactions[id(command)] = number
        return number

    def _end(self, command: Command, name: str, reply: Reply, transaction: int | None) -> None:
        """End a command."""
        if records := records_of_command(command, reply):
            self._probe.engine.tell("effects", records, transaction)
        self._probe.point(f"after {name}", sys._getframe())


class CrashConsumer(ManualConsumer):
    """A consumer that delivers one message; it leaves the others of the queue for later."""

    probe: CrashProbe
    """Set before the first delivery."""

    def start(self, reply: Claimed) -> None:
        """Start the message that the test is about; release others."""
        id = self.probe.script.id
        for message in reply.messages:
            if message.id != id:
                handler = self.queue_handlers.any
                handling = Handling(message, reply.token, reply.now, handler, self._state)
                self._settling.add(handling, RELEASE._replace(delay=FAR))
        messages = [message for message in reply.messages if message.id == id]
        super().start(msgspec.structs.replace(reply, messages=messages))

    def _begin(self, handling: Handling, now: float) -> None:
        self.probe.handling = handling
        super()._begin(handling, now)

    def _settled(self, pairs: Any, outcomes: Any) -> None:
        if any(handling is self.probe.handling for handling, _ in pairs):
            self.probe.handling = None
        super()._settled(pairs, outcomes)

    def _reported(self, handling: Handling, report: Progress) -> None:
        frame = sys._getframe()
        self.probe.point("before report", frame)
        super()._reported(handling, report)
        self.probe.point("after report", frame)


class CrashWorker(ManualWorker):
    """A worker that delivers one message until it is settled.

    Args:
        probe: has the script.
        store: where the queues are.
    """

    consumer_class = CrashConsumer

    def __init__(self, probe: CrashProbe, store: StoreOfEngine) -> None:
        self._probe = probe
        self._watch = watch_awaits(probe.at_await)
        script = probe.script
        super().__init__(
            script.app,
            store,
            queues=[script.queue],
            errors="collect",
            patience=script.patience,
        )

    def deliver(self) -> Handled | None:
        """Deliver the message until it is settled; return the last delivery, if there was one."""
        return self._run(self._deliver())

    async def _deliver(self) -> Handled | None:
        script = self._probe.script
        consumer = next(
            consumer
            for consumer in self._consumers
            if consumer.queue_handlers.queue == script.queue
        )
        assert isinstance(consumer, CrashConsumer)
        consumer.probe = self._probe
        last: Handled | None = None
        for _ in range(MOST_DELIVERIES):
            if await self._is_settled():
                return last
            result = await consumer.handle_next(script.patience)
            if isinstance(result, Handled):
                if result.id == script.id:
                    last = result
                    if result.outcome not in UNSETTLED:  # one that repeats has another run
                        return last
            elif result is not None:
                self.store.clock.advance(max(result, 1) / 1000)
            elif not await self._is_settled():
                raise RuntimeError(f"the message {script.id!r} is never due; is its queue paused?")
        raise RuntimeError(
            f"the message {script.id!r} is not settled after {MOST_DELIVERIES:,} deliveries"
        )

    async def _is_settled(self) -> bool:
        """Return whether the message is gone or a dead letter."""
        script = self._probe.script
        reply = await self.store.lane.acall(Find(script.queue, [script.id]))
        (message,) = expect(Found, reply).messages
        return message is None or message.state not in ("delayed", "ready", "leased")

    def _handlers_of(self, queue: str) -> QueueHandlers:
        queue_handlers = super()._handlers_of(queue)
        handlers = {
            work: self._watched(handler) for work, handler in queue_handlers.handlers.items()
        }
        return replace(queue_handlers, handlers=handlers)

    def _watched(self, handler: Handler) -> Handler:
        """Return a handler with crash points where its code awaits."""
        probe = self._probe

        def call(handling: Handling) -> Any:
            probe.point(f"before {handler.name}")
            raised = True
            try:
                result = handler.call(handling)
                raised = False
            finally:
                probe.handler_ended(raised=raised)
            return result

        async def call_with_await(handling: Handling) -> Any:
            probe.point(f"before {handler.name}")
            raised = True
            try:
                with self._watch:
                    result = await handler.call(handling)
                raised = False
            finally:
                probe.handler_ended(raised=raised)
            return result

        return replace(handler, call=call_with_await if handler.is_async else call)


def run_child(script: CrashScript, connection: Connection) -> NoReturn:
    """Do what a script says, in the child of a fork, and end the process."""
    engine = PipeEngine(connection)
    try:
        logging.disable(logging.CRITICAL)  # each run would log the same again
        probe = CrashProbe(script, engine)
        probe.restore()
        probe.replace_effects()
        _note_connections()
        clock = FakeClock(script.start)
        with (
            StoreOfEngine(CrashLane(probe, clock), clock) as store,
            CrashWorker(probe, store) as worker,
        ):
            handled = worker.deliver()
            failed = handled is not None and handled.failed and handled.outcome == "dead"
            probe.end("ended", handled.reason if handled is not None and failed else None)
    except BaseException as error:  # noqa: BLE001  (the test's process raises it)
        text = "".join(traceback.format_exception(error))
        kind = "refused" if isinstance(error, InvalidArgument) else "failed"
        engine.tell(kind, str(error) if kind == "refused" else text)
    finally:
        os._exit(1)


def _note_connections() -> None:
    """Note the connection of each command that is given one.

    The store of a test executes such a command at once, and a crash test has to know whether its
    transaction is committed.
    """
    guest_of = BaseQueue._guest

    def guest(self: BaseQueue, command: Command, within: object) -> Guest | None:
        JOINED.set(within)
        return guest_of(self, command, within)

    BaseQueue._guest = guest  # type: ignore[method-assign]
