"""A handler, and a delivery as a handler sees it, with the state that the worker keeps of it."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from types import SimpleNamespace
from typing import Any, NoReturn

from bide.clock import Clock, Timer
from bide.model.backoff import Backoff
from bide.model.commands import Command
from bide.model.errors import StopRequested, Unsupported
from bide.model.message import Message, Progress, State
from bide.model.replies import Outcome, Outcomes
from bide.model.times import Duration
from bide.observing.tally import Result
from bide.queue.arguments import progress_of
from bide.queue.delivery import Delivery, ack_command, wanted_at
from bide.queue.joining import JoiningQueue
from bide.queue.results import check_held


@dataclass(frozen=True, eq=False)
class Handler:
    """One function that handles the messages of a queue, or of one job of it."""

    name: str
    """Its name in logs: `module.function`."""
    call: "Callable[[Handling], Any]"
    """Decodes the body and calls the function; an async one returns an awaitable. Raises `Unfit` if
    the body does not fit the type that the function takes."""
    is_async: bool
    timeout: float | None = None
    """In seconds; that of a batch counts from the call."""
    warn_after: float | None = None
    """Seconds after which a warning says that a delivery still runs."""
    retry: Backoff = field(default_factory=Backoff)
    check: Callable[[Message], object] | None = None
    """Decodes the body as `call` does, and raises `Unfit` if it does not fit; `None` if every body
    does."""
    takes: str = ""
    """What it takes, for lists: the parameters of a task, the fields of a job, the type of a body;
    empty if every body."""
    batch: int = 1
    """How many messages one call handles at most."""
    is_plain_batch: bool = False
    """Whether such a call runs in a thread, where nothing can interrupt it."""
    begin_gathered: Callable[[], None] | None = None
    """Calls the function for the messages that wait for more of them; `None`: none waits."""
    remade: "Callable[..., Handler] | None" = None
    """Makes the handler of a batch again, to be called in other contexts: it takes `in_thread`,
    `on_loop` and `run`, as `Batching` does."""


def _left_out(handling: "Handling", report: Progress) -> None:
    """Leave a report out: no worker runs the handler."""


def _left_alone(handling: "Handling") -> None:
    """Give up no delivery: no worker runs the handler."""


class Handling(Delivery):
    """The delivery of a handler or task. The worker extends its lease, and settles it.

    To receive it, take a parameter `delivery: bide.Handling`; annotated with its base class
    `bide.Delivery`, or with `bide.AsyncDelivery`, it is the same object. A handler settles its
    message by returning or raising, or with `ack`, `retry` or `bury` within a transaction
    (`within=`) of its own; in an async handler these are awaited. Without `within=` they raise
    `Unsupported`, as `release` and `extend` always do.
    """

    clock: Clock
    """The clock of its worker."""

    __slots__ = (
        "_event",
        "_has_raised",
        "_on_interrupted",
        "_on_report",
        "arrived",
        "asked",
        "began",
        "clock",
        "connection",
        "expires",
        "extra_argument",
        "handler",
        "in_thread",
        "joined",
        "keeps_result",
        "limited",
        "outcome",
        "outcome_ignored",
        "result",
        "returned",
        "state",
        "stopping",
        "task",
        "thread",
        "timed_out",
        "timers",
        "took",
        "worker_leaves",
    )

    def __init__(
        self,
        message: Message,
        token: int,
        claimed: int,
        handler: Handler,
        state: SimpleNamespace,
        queue: JoiningQueue | None = None,
    ) -> None:
        # These five as `super().__init__` sets them. This is executed for every message, where the
        # time of one more call can be measured.
        self._queue = queue
        self.message = message
        self.token = token
        self.claimed = claimed
        self.settled = False
        self.handler = handler
        """The handler of the message."""
        self.state = state
        """The `App.state` of this worker."""
        self.limited = False
        """Whether its queue has limits."""
        # Times by the store's clock, in Unix milliseconds. `claimed` is one, too.
        self.asked = 0.0
        """When its claim was sent."""
        # Times by the monotonic clock of its worker (`clock`, set when its handler is started), in
        # seconds.
        self.arrived = 0.0
        """When its claim was answered."""
        self.began = 0.0
        """When its handler was started; 0: not yet."""
        self.expires = 0.0
        """When the lease ends, as far as the worker knows."""
        self.took = 0.0
        """How many seconds its handler ran. Set when it ends, and when the worker gives it up."""
        # How its handler runs.
        self.extra_argument: Any = None
        """What its handler works on besides the message: the tick of a schedule, the window of a
        source, the subscription of a push."""
        self.connection: Any = None
        """What the `within` of its handler has opened."""
        self.task: asyncio.Task[BaseException | None] | None = None
        """The task that runs it on the loop."""
        self.in_thread: asyncio.Future[BaseException | None] | None = None
        """Done when the thread has returned that runs it below middleware; `None`: none does."""
        self.thread: int | None = None
        """The number of the thread in which its plain handler runs."""
        self.timers: tuple[Timer, ...] = ()
        """Cancelled at its end."""
        self.timed_out = False
        """Whether it has run for longer than the timeout of its handler."""
        self.stopping = False
        """Whether the message was cancelled while its handler runs."""
        self.worker_leaves = False
        """Whether its worker claims nothing more: then its batch waits for nothing."""
        # How it ends.
        self.outcome_ignored = False
        """Whether the outcome of the handler no longer counts: its message is settled, or its lease
        is lost."""
        self.returned: Any = None
        """What its handler has returned."""
        self.keeps_result = False
        """Whether the queue remembers results."""
        self.result: bytes | None = None
        """What its handler has returned, as JSON, where the queue remembers results."""
        self.joined: Result | None = None
        """How it was settled within a transaction of the user's, which may be rolled back."""
        self.outcome = ""
        """How its message was settled, as a `tally.Result`, once it was."""
        self._event: threading.Event | None = None
        """The event of `lost`, made when a handler asks for it: few do."""
        self._has_raised = False
        """Whether `raise_if_stopping` has raised."""
        self._on_report: Callable[[Handling, Progress], object] = _left_out
        """Called with each report of its handler."""
        self._on_interrupted: Callable[[Handling], object] = _left_alone
        """Called if the call of its batch is interrupted."""

    def __str__(self) -> str:
        return f"{self.id} of {self.message.queue}, attempt {self.attempt}"

    @property
    def lateness(self) -> float:
        """How long after its due time its handler was started, in seconds; see `wanted_at`."""
        waited = self.began - self.arrived if self.began else 0.0
        return (self.claimed - wanted_at(self.message)) / 1000 + waited

    @property
    def lost(self) -> threading.Event:
        """An event that is set when this handler should end.

        This happens when the lease was lost, the timeout has passed, or the worker stops and has
        released the message: the outcome of the handler no longer counts. And when somebody has
        cancelled the message (`stopping`): then an ack still counts. A long-running plain handler
        checks it now and then, and returns or raises; an async handler is cancelled instead.
        """
        event = self._event
        if event is None:
            event = self._event = threading.Event()
        # Checked after the event is stored: `lose` sets these first, and the event then.
        if self.outcome_ignored or self.stopping:
            event.set()
        return event

    def report(self, done: float, of: float | None = None, text: str = "") -> None:
        """Say how far the handler has come, for those who look at the message.

        The worker stores the last report once a second. Any thread may call this; it does not wait.

        Args:
            done: how much is done, in units of your own.
            of: how much there is to do, if that is known.
            text: what is counted, or what is done now; at most 200 characters are kept.

        Raises:
            StopRequested: the message was cancelled; once, and only in a plain handler.
        """
        if not self.handler.is_async:
            self.raise_if_stopping()
        self._on_report(self, progress_of(done, of, text))

    def raise_if_stopping(self) -> None:
        """Raise `StopRequested`, once, if the message was cancelled.

        Only in the thread in which its plain handler runs, and while it does: tasks and threads
        that it has started have copies of its context.
        """
        if self.stopping and not self._has_raised and get_ident() == self.thread:
            self._has_raised = True
            raise StopRequested(f"{self.id} was cancelled while its handler ran: clean up, and end")

    def reports_to(self, on_report: "Callable[[Handling, Progress], object]") -> None:
        """Hand each report to a function of the worker."""
        self._on_report = on_report

    def gives_up_by(self, on_interrupted: "Callable[[Handling], object]") -> None:
        """Tell a function of the worker if the call of its batch is interrupted."""
        self._on_interrupted = on_interrupted

    def interrupted(self) -> None:
        """Tell the worker that the call of its batch is interrupted at its timeout."""
        self._on_interrupted(self)

    def ask_to_stop(self) -> None:
        """Tell the handler that its message was cancelled.

        A batch runs to its end. One that was interrupted at its timeout cleans up already.
        """
        self.stopping = True
        if self._event is not None:
            self._event.set()
        if self.handler.batch == 1 and not self.timed_out:
            self.cancel()

    @property
    def overran(self) -> bool:
        """Whether it goes on though it was given up: past its timeout, or when it was to stop.

        What it raises does not count. One whose lease was lost has until its timeout to end, or
        until its middleware waits no longer.
        """
        was_left = self.in_thread is not None and self.task is None
        return (self.timed_out or self.stopping or was_left) and self.outcome_ignored

    def lose(self) -> None:
        """Tell the handler that its outcome no longer counts."""
        self.outcome_ignored = True
        if self._event is not None:
            self._event.set()
        self.cancel()

    def cancel(self) -> None:
        """Interrupt an async handler; a plain one continues."""
        if self.handler.is_async and self.task is not None:
            self.task.cancel()

    def _settled_by_worker(self, *_: Any, **__: Any) -> NoReturn:
        """Not here: return for an ack, or raise `bide.Retry`, `bide.Discard` or `bide.Bury`."""
        raise Unsupported(
            "the worker extends the leases of its handlers, and settles what they are given: "
            "return for an ack, or raise bide.Retry(), bide.Discard() or bide.Bury(); or settle it "
            "in a transaction of your own, with ack(within=connection)"
        )

    release = extend = _settled_by_worker

    def ack(self, result: Any = None, *, within: object = None) -> Any:
        """Acknowledge the message in a transaction of yours; see `Delivery.ack`."""
        return self._joining(within, super().ack, result)

    def retry(self, delay: Duration = 0, reason: str = "", *, within: object = None) -> Any:
        """Return the message in a transaction of yours; see `Delivery.retry`."""
        return self._joining(within, super().retry, delay, reason)

    def bury(self, reason: str = "", *, within: object = None) -> Any:
        """Make the message a dead letter in a transaction of yours; see `Delivery.bury`."""
        return self._joining(within, super().bury, reason)

    def _elapsed(self) -> float:
        """Return how many seconds ago its claim was answered."""
        return self.clock.monotonic() - self.arrived

    def _joining(self, within: object, settle: Callable[..., Any], *arguments: Any) -> Any:
        """Settle the message within a transaction of the user's, and refuse to without one.

        Args:
            within: the user's connection; `None`: there is none.
            settle: the method of `Delivery` that settles.
            arguments: of that method.
        """
        if within is None or self._queue is None:
            self._settled_by_worker()
        return settle(*arguments, within=within)

    def _settle(
        self, command: Command, verb: str, *, settles: bool = True, within: object = None
    ) -> Any:
        """Execute a command that settles the message, and note how it did (see `joined`)."""

        def note_result(reply: Outcomes) -> None:
            (outcome,) = reply.outcomes
            check_held(outcome, verb)
            self.joined = _joined(verb, outcome)

        return self._queue._execute(command, note_result, within=within)

    def settle_for_good(self, result: Any, within: object) -> Any:
        """Ack the message within a transaction, unless its handler has settled it there.

        What the handler has settled in a savepoint may have been rolled back with that.

        Raises:
            LeaseLost: neither is possible any more.
        """
        if self.joined is None:
            return self.ack(result, within=within)
        command = ack_command(self._queue._builder, [self], [result])

        def note_result(reply: Outcomes) -> None:
            (outcome,) = reply.outcomes
            if outcome.done:
                self.joined = "acked"
            elif self.joined is None or outcome.state not in self._states_after(self.joined):
                check_held(outcome, "acked")

        return self._queue._execute(command, note_result, within=within)

    def _states_after(self, joined: Result) -> tuple[State | None, ...]:
        """Return in which states the message may be that was settled within a transaction."""
        if self.message.repeats:  # whatever its end, another run follows
            return (*_STATES[joined], "delayed", "ready")
        return _STATES[joined]


def _joined(verb: str, outcome: Outcome) -> Result:
    """Return as what a message counts that was settled within a transaction."""
    if verb == "acked":
        return "acked"
    if outcome.state is None:
        return "cancelled"  # its worker was asked to stop
    return "dead" if outcome.state == "dead" or verb == "buried" else "retried"


_STATES: dict[Result, tuple[State | None, ...]] = {
    "acked": (None, "acked"),
    "cancelled": (None,),
    "retried": ("delayed", "ready"),
    "dead": ("dead",),
}
"""Where a message is while it counts as that."""
