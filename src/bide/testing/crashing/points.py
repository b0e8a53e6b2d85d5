"""The function that tests call: it makes a run for each crash point, and compares the effects."""

import asyncio
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgspec

from bide.lane.lane import Lane
from bide.model.commands import Find
from bide.model.errors import InvalidArgument, Unsupported, WrongContext
from bide.model.message import JOB, Message, NewMessage
from bide.model.replies import Found, expect
from bide.testing.clock import FakeClock
from bide.testing.crashing.crash_child import CountedEffect, CrashScript, run_child
from bide.testing.crashing.crash_report import CrashFinding, CrashReport, compare
from bide.testing.crashing.crash_store import CrashStore, StoreOfEngine
from bide.testing.crashing.effects import Effect, EffectRecord
from bide.testing.crashing.replacing import places_of, shown_name
from bide.testing.worker import PATIENCE
from bide.worker.app.app import App, Job

MESSAGE_ID = "crash-test"
"""The id of a message to which the test gives none."""

MARGIN = 5.0
"""Seconds for which a process may be silent beyond `patience`."""


class CrashTester(Protocol):
    """The type of the fixture `bide_crash`, which takes the arguments of `crash_points`."""

    def __call__(
        self,
        app: App,
        message: Any,
        *,
        queue: str | None = None,
        effects: Iterable[Callable[..., Any] | Effect] = (),
        outside: Iterable[Any] = (),
        reset: Callable[[], object] | None = None,
        patience: float = PATIENCE,
    ) -> CrashReport:
        """Return what the crash points of a handler show."""


@dataclass
class CrashRun:
    """One run of a handler: to its end, or to a crash and from there to its end."""

    points: list[str] = field(default_factory=list)
    """The crash points of its first process."""
    records: list[tuple[EffectRecord, int | None]] = field(default_factory=list)
    """The effects that have happened, each with its transaction while that is open."""
    state: bytes | None = None
    """What is in the objects of `outside` after it."""
    failure: str | None = None
    """The error of a handler whose message became a dead letter for it."""
    message: Message | None = None
    """The message after it, unless it is gone."""

    @property
    def effects(self) -> list[EffectRecord]:
        """The effects that have happened."""
        return [record for record, _ in self.records]


@dataclass(kw_only=True)
class CrashTest:
    """What all runs of a crash test share."""

    app: App
    queue: str
    message: NewMessage
    effects: Sequence[CountedEffect]
    outside: Sequence[Any]
    reset: Callable[[], object] | None
    patience: float
    start: int
    """When each run begins, in Unix milliseconds."""

    def run(self, dies_at: int | None) -> CrashRun:
        """Run the handler; kill its process at a crash point, and let another one go on."""
        run, store = CrashRun(), CrashStore()
        self._prepare(store)
        is_dead, now = self._live(run, store, self.start, dies_at)
        if is_dead:
            points = run.points
            self._live(run, store, now, None)
            run.points = points
        reply = store.execute([Find(self.queue, [str(self.message.id)])], now)[0]
        (run.message,) = expect(Found, reply).messages
        return run

    def _prepare(self, store: CrashStore) -> None:
        """Put the message, after whatever the test puts before it."""
        clock = FakeClock(self.start)
        with StoreOfEngine(Lane(lambda: store, clock), clock) as scratch:
            if self.reset is not None:
                self.reset()
            (outcome,) = scratch.queue(self.queue).put_many([self.message])
        if not outcome:
            raise InvalidArgument(
                f"reset= has put a message with the id of the test's message: {outcome}"
            )

    def _live(
        self, run: CrashRun, store: CrashStore, start: int, dies_at: int | None
    ) -> tuple[bool, int]:
        """Run the handler in a process until that dies or ends.

        Args:
            run: gets what happens.
            store: where the messages are.
            start: the time at which the process starts, in Unix milliseconds.
            dies_at: the index of the point at which it dies; `None`: it does not.

        Returns:
            Whether it died, and the time at its end.
        """
        run.points = []
        script = CrashScript(
            app=self.app,
            queue=self.queue,
            id=str(self.message.id),
            effects=self.effects,
            outside=self.outside,
            patience=self.patience,
            start=start,
            dies_at=dies_at,
            state=run.state,
        )
        own_end, end_of_child = Pipe()
        child = _fork()
        if child == 0:
            own_end.close()
            run_child(script, end_of_child)
        end_of_child.close()
        try:
            return self._serve(run, store, own_end, start)
        finally:
            own_end.close()
            os.kill(child, signal.SIGKILL)  # harmless if it has ended: its number is still its own
            os.waitpid(child, 0)

    def _serve(
        self, run: CrashRun, store: CrashStore, pipe: Connection, now: int
    ) -> tuple[bool, int]:
        """Execute what the process asks for, and note what it reports, until it ends.

        Args and result are those of `_live`; `pipe` leads to the process.
        """
        while True:
            if not pipe.poll(self.patience + MARGIN):
                raise TimeoutError(
                    f"the handler did not end within patience={self.patience:g} s of real time"
                )
            try:
                event, *arguments = pipe.recv()
            except EOFError:
                raise RuntimeError(
                    "the process of the handler has ended by itself; does the handler end it, or "
                    "crash Python?"
                ) from None
            match event:
                case "execute":
                    commands, sent_at, identities, transactions = arguments
                    now = max(now, sent_at or 0)
                    try:
                        pipe.send(store.execute(commands, sent_at, identities, transactions))
                    except Exception as error:  # noqa: BLE001  (its caller raises it)
                        pipe.send(error)
                case "point":
                    run.points += arguments
                case "effects":
                    records, transaction = arguments
                    run.records += [(record, transaction) for record in records]
                case "commit":
                    store.commit(*arguments)
                    _commit(run, *arguments)
                case "roll back":
                    store.roll_back(*arguments)
                    _roll_back(run, *arguments)
                case "died" | "ended":
                    *failure, run.state = arguments
                    run.failure = failure[0] if failure else None
                    store.roll_back()
                    run.records = [pair for pair in run.records if pair[1] is None]
                    return event == "died", now
                case "refused":
                    raise InvalidArgument(*arguments)
                case _:
                    raise RuntimeError(f"the process of the handler has failed:\n{arguments[0]}")


def _commit(run: CrashRun, transaction: int) -> None:
    """Keep the effects of a transaction."""
    run.records = [
        (record, None if number == transaction else number) for record, number in run.records
    ]


def _roll_back(run: CrashRun, transaction: int) -> None:
    """Forget the effects of a transaction."""
    run.records = [pair for pair in run.records if pair[1] != transaction]


def _fork() -> int:
    """Fork this process; return the id of the child, and 0 in it."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the child has the text, too
    with warnings.catch_warnings():
        # Python warns if there are other threads. The child uses none of theirs, and bide's own
        # locks are prepared for forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def crash_points(
    app: App,
    message: Any,
    *,
    queue: str | None = None,
    effects: Iterable[Callable[..., Any] | Effect] = (),
    outside: Iterable[Any] = (),
    reset: Callable[[], object] | None = None,
    patience: float = PATIENCE,
    clock: FakeClock | None = None,
) -> CrashReport:
    """Run a handler once for each place at which its process may die; report what goes wrong.

    The places are before and after each call of bide, each call that `effects` names, and each
    await of the handler. At one of them the process dies; then the lease lapses, and another
    process gets the message, until it is settled. The report has the effects that happened twice,
    those that never happened, and the messages that became dead letters.

    Each process is a fork of the test's, which ends with `os._exit`: no `finally`, no `except` and
    no context manager of the handler runs, as if it was killed. So all that is in memory is lost,
    but for `outside`. Files and servers keep what the handler wrote. Open connections to them in
    the lifespan of the app or in the handler, not before: a fork cannot share them. The handler's
    logs and prints are left out.

    Each run begins with an empty store in memory, for all queues, and with `reset`. Messages that
    the handler puts are effects, and are not delivered. With `within=`, what a handler does in the
    transaction that the worker opens, or in one of its own on `sqlite3`, happens if that is
    committed.

    Args:
        app: has the handler.
        message: what it gets: a body, a `bide.NewMessage`, a `bide.Job`, or `task.message(...)`.
        queue: of the message; by default that of the task or job, or the only one of the app.
        effects: functions and bound methods whose calls are effects, or an `Effect` for one that
            takes an idempotency key. They are called as usual. One that takes the connection of an
            open transaction is part of it.
        outside: objects in memory that stand for what is outside of the process, such as a dict for
            a database, or a fake mail server: what the handler does to them outlives the process.
            A dict, list, set, deque, or an object with attributes; pickle copies their contents.
        reset: is called before each run, in the test's process; it may put messages.
        patience: how many real seconds one delivery may take.
        clock: each run begins at the time of this clock; it does not move.

    Raises:
        InvalidArgument: the queue is not known, an effect cannot be replaced, or the handler does
            not call it.
        RuntimeError: the handler fails without a crash, or its message is never settled.
        TimeoutError: it did not end within `patience`.
        Unsupported: this system has no fork.
        WrongContext: an event loop runs here; call it in a plain test.

    Example:
        >>> import bide
        >>> app = bide.App()
        >>> def send(order: int) -> None: ...
        >>> @app.handler("orders")
        ... def confirm(order: int) -> None:
        ...     send(order)
        >>> report = crash_points(app, 42, effects=[send])
        >>> bool(report), report.twice[-1].point
        (False, 'before the ack of the worker')
    """
    if not hasattr(os, "fork"):
        raise Unsupported(
            f"crash tests kill a fork of the test's process, and {sys.platform} has no fork; run "
            "them on Linux or macOS, or in WSL"
        )
    if asyncio._get_running_loop() is not None:
        raise WrongContext(
            "crash_points runs handlers on event loops of their own, and one is running here; "
            "call it in a plain test, without async"
        )
    if not isinstance(app, App):
        raise InvalidArgument(f"crash_points takes a bide.App, not {type(app).__name__}")
    new_message = _message_of(message)
    test = CrashTest(
        app=app,
        queue=_queue_of(app, new_message, queue),
        message=new_message,
        effects=_counted(effects, app),
        outside=[_checked_outside(thing) for thing in outside],
        reset=reset,
        patience=patience,
        start=(clock or FakeClock()).now(),
    )
    whole = test.run(None)
    _check_whole(whole, test.effects)
    twice: list[CrashFinding] = []
    never: list[CrashFinding] = []
    dead: list[CrashFinding] = []
    points: list[str] = []
    for number in range(len(whole.points)):
        run = test.run(number)
        if len(run.points) <= number:  # it took another way, and ended before this point
            continue
        point = run.points[number]
        points.append(point)
        differences = compare(whole.effects, run.effects)
        twice += [CrashFinding(call, point) for call in differences.twice]
        never += [CrashFinding(call, point) for call in differences.never]
        if _is_dead(run) and not _is_dead(whole):
            assert run.message is not None
            error = (run.message.error or "").partition("\n")[0]
            dead.append(CrashFinding(error, point))
    calls = tuple(record.call for record in whole.effects)
    return CrashReport(tuple(points), calls, tuple(twice), tuple(never), tuple(dead))


def _is_dead(run: CrashRun) -> bool:
    """Return whether the message is a dead letter after a run."""
    return run.message is not None and run.message.state == "dead"


def _counted(effects: Iterable[Callable[..., Any] | Effect], app: App) -> list[CountedEffect]:
    """Return effects with all that refers to their functions."""
    listed = [effect if isinstance(effect, Effect) else Effect(effect) for effect in effects]
    places = places_of([effect.function for effect in listed], app)
    return [
        CountedEffect(effect, shown_name(effect.function), places_of_effect)
        for effect, places_of_effect in zip(listed, places, strict=True)
    ]


def _check_whole(whole: CrashRun, effects: Sequence[CountedEffect]) -> None:
    """Check that a run without a crash succeeds, and has all effects.

    Raises:
        InvalidArgument: an effect did not happen.
        RuntimeError: the handler has failed.
    """
    if whole.failure is not None:
        raise RuntimeError(f"the handler fails without a crash: {whole.failure}")
    names = {record.name for record in whole.effects}
    for effect in effects:
        if effect.name not in names:
            raise InvalidArgument(
                f"effects= names {effect.name}, which the handler does not call, or which raises: "
                "name the function itself, and give a message for which it is called"
            )


def _message_of(message: Any) -> NewMessage:
    """Return a message with an id, so that all runs have the same."""
    if isinstance(message, Job):
        message = message.message()
    if not isinstance(message, NewMessage):
        return NewMessage(message, id=MESSAGE_ID)
    return message if message.id is not None else msgspec.structs.replace(message, id=MESSAGE_ID)


def _queue_of(app: App, message: NewMessage, queue: str | None) -> str:
    """Return the queue of a message: the one given, or the only one that may be meant.

    Raises:
        InvalidArgument: several may be meant, or the app has no handler for it.
    """
    all_handlers = app.queue_handlers
    if queue is not None:
        if queue not in all_handlers:
            known = ", ".join(all_handlers) or "none"
            raise InvalidArgument(f"queue {queue!r} has no handler in the app; it has: {known}")
        return queue
    job = (message.headers or {}).get(JOB)
    task = message.body.get("task") if isinstance(message.body, dict) else None
    queues = [
        name
        for name, handlers in all_handlers.items()
        if (job is not None and job in handlers.handlers) or task in handlers.tasks
    ] or list(all_handlers)
    if len(queues) != 1:
        known = ", ".join(all_handlers) or "none"
        raise InvalidArgument(f"queue= is missing: the app has several queues, or none: {known}")
    return queues[0]


def _checked_outside(thing: Any) -> Any:
    """Return an object of `outside` after checking that its contents can be replaced.

    Raises:
        InvalidArgument: they cannot.
    """
    if isinstance(thing, (dict, list, set, deque)) or hasattr(thing, "__dict__"):
        return thing
    raise InvalidArgument(
        f"outside= has an object of type {type(thing).__name__}; it takes a dict, list, set, "
        "deque, or an object "
        "with attributes"
    )
