"""Requests, the commands of callers; and the inbox, where they wait for the next batch.

Callers only append to deques, which is one step of the interpreter: so a signal handler, a
finalizer or another thread may come between any two steps, and meets no lock half taken.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from bide.clock import Signal
from bide.engines.port import Identity
from bide.logs import write_lines
from bide.model.commands import Cancel, Claim, Command, History, RetryCommand
from bide.model.ended import PENDING, message_hint
from bide.model.errors import WrongContext
from bide.model.replies import Affected, Claimed, Ends, Outcomes, Reply
from bide.threads import Background

MAX_COMMANDS = 1_000
MAX_WEIGHT = 20_000
"""The maximum number of commands, and of messages, in one batch."""

LIMIT = 10_000
"""The maximum number of waiting commands; further callers wait."""


def is_empty(command: Command, reply: Reply) -> bool:
    """Tell whether to wait after a reply: it has no message, or a watched one has not ended."""
    if isinstance(reply, Claimed):
        return not reply.messages
    is_watch = isinstance(command, History) and command.watch
    return is_watch and isinstance(reply, Ends) and reply.state in PENDING


MOST_TRIES = 1_000
"""How often a claim asks at most while all that it finds goes back."""


def is_to_ask_again(claim: Command, replies: Sequence[Claimed]) -> bool:
    """Tell whether all that a claim found went back, so that others may be due behind it.

    Args:
        claim: the command.
        replies: to it so far.
    """
    last = replies[-1]
    if last.messages or last.next != 0 or len(replies) >= MOST_TRIES:
        return False
    return isinstance(claim, Claim) and claim.count > 0


def last_of(replies: Sequence[Claimed]) -> Claimed:
    """Return the last reply to a claim, with the messages that died by all of them."""
    if len(replies) == 1:
        return replies[0]
    died = [message for reply in replies for message in reply.died]
    return msgspec.structs.replace(replies[-1], died=died)


FOREVER = float("inf")
"""The wait of a claim that ends only with messages."""

INTERRUPT_CHECK_SECONDS = 1.0
"""After how many seconds a blocked thread checks for an interrupt, again and again."""


class LaneRequest(msgspec.Struct, eq=False):
    """A command of one caller.

    Args:
        command: the command.
        owner: the queue object of the caller; closing it ends its waiting claims.
        identity: of the command, if another process numbers it.
        deadline: for a claim that waits: the end of the wait, by the lane's monotonic clock;
            `FOREVER`: none. `None`: it does not wait.
    """

    command: Command
    owner: object = None
    deadline: float | None = None
    identity: Identity | None = None
    reply: Reply | None = None
    error: BaseException | None = None
    abandoned: bool = False
    """Whether its caller was interrupted."""
    last: Reply | None = None
    """The last reply that had nothing, after which it waits; `None`: it has not waited yet."""
    entered: bool = False
    """Whether it is one of the `WaitingClaims`."""
    settled: bool = False
    """Whether its caller was given the reply or the error."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the task that waits for it."""

    @property
    def awaits(self) -> str:
        """Return the name of what it waits for: a queue with messages, or the end of a message."""
        command = self.command
        if isinstance(command, History):
            return message_hint(command.queue, command.id)
        return command.queue

    @property
    def empty(self) -> bool:
        """Whether its reply lacks what it waits for, so that it continues to wait.

        A claim that waits `FOREVER` returns when messages died, too: its worker counts them.
        """
        reply = self.reply
        has_died = isinstance(reply, Claimed) and reply.died and self.deadline == FOREVER
        return reply is not None and is_empty(self.command, reply) and not has_died

    def give_up(self, now: int) -> None:
        """End the wait: take the last reply, or for a claim one without messages.

        `now` is in Unix milliseconds.
        """
        self.reply = self.last if isinstance(self.last, Ends) else Claimed([], 0, now)

    @property
    def gone(self) -> bool:
        """Whether the caller no longer waits for the reply."""
        return self.abandoned

    def settle(self) -> object:
        """Wake the caller."""

    def release(self) -> "LaneRequest | None":
        """Return the request that releases the messages of the claim, if it got any."""
        reply = self.reply
        if not isinstance(self.command, Claim) or not isinstance(reply, Claimed):
            return None
        if not reply.messages:
            return None
        return LaneRequest(RetryCommand(self.command.queue, reply.leases, release=True))


class BlockingRequest(LaneRequest, eq=False):
    """A command of a thread that blocks until it is settled."""

    done: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Held until it is settled. A lock costs a third of an event, and each claim needs one."""

    def __post_init__(self) -> None:
        self.done.acquire()

    def settle(self) -> None:
        """Wake the thread."""
        try:
            self.done.release()
        except RuntimeError:  # it was woken
            pass

    def wait(self, worker: Background) -> None:
        """Block until the request is settled, by the thread of a lane."""
        # With a timeout: else an interrupt just before the wait is noticed only after the wait.
        while not self.done.acquire(timeout=INTERRUPT_CHECK_SECONDS):
            worker.ensure(again=True)  # the lane's thread may have died
            write_lines()  # that the lane's thread has logged: it writes none itself


class AsyncRequest(LaneRequest, eq=False, kw_only=True):
    """A command of a task on an event loop."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Reply]

    def settle(self) -> bool:
        """Wake the task, on its loop; return whether it still waited."""
        if self.abandoned or self.future.done():
            return False
        if self.error is not None:
            self.future.set_exception(self.error)
        elif self.reply is not None:
            self.future.set_result(self.reply)
        return True

    @property
    def gone(self) -> bool:
        """Whether the task was cancelled, or its event loop was closed under it."""
        return self.abandoned or self.future.done() or self.loop.is_closed()


def wakes(executed: Sequence[tuple[Command, Reply | None]], *, ends: bool) -> dict[str, int]:
    """Return whom to wake after commands, and from which time on (Unix milliseconds).

    The keys are queues with messages that can be claimed earlier than before. With the time 0, they
    are also messages (see `message_hint`): those whose workers were asked to stop, and with `ends`
    those that have ended.
    """
    times: dict[str, int] = {}
    for command, reply in executed:
        if type(command) is Cancel and command.running:
            times |= dict.fromkeys([message_hint(command.queue, id) for id in stopping(reply)], 0)
        if ends:
            times |= dict.fromkeys([message_hint(command.queue, id) for id in _ended_ids(reply)], 0)
        if (wake := getattr(reply, "wake", None)) is not None:
            times[command.queue] = min(wake, times.get(command.queue, wake))
    return times


def _ended_ids(reply: Reply | None) -> list[str]:
    """Return the ids of the messages that have ended by a command."""
    if isinstance(reply, Claimed):
        return [message.id for message in reply.died]
    if isinstance(reply, Outcomes):
        return [
            outcome.id
            for outcome in reply.outcomes
            if outcome.done and outcome.state not in PENDING
        ]
    return []


def stopping(reply: Reply | None) -> list[str]:
    """Return the ids of the messages whose workers a cancel has asked to stop."""
    if isinstance(reply, Affected):
        return reply.stopping
    if isinstance(reply, Outcomes):
        return [outcome.id for outcome in reply.outcomes if outcome.state == "stopping"]
    return []


class Inbox:
    """Commands in the order of their submission.

    Any thread may add some; one thread takes them.

    Args:
        signal: wakes the thread that takes them.
        worker: starts it when the first one comes.
    """

    def __init__(self, signal: Signal, worker: Background) -> None:
        self._signal = signal
        self._worker = worker
        self.requests: deque[LaneRequest] = deque()
        self.batch: list[LaneRequest] = []
        """The last ones that were taken."""
        self._loops_in_turn: set[asyncio.AbstractEventLoop] = set()
        """Event loops that will call `_end_turn`."""
        self._threads: deque[Signal] = deque()
        """What wakes each thread that waits for space."""
        self._tasks: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        """The loop of each task that waits for space, and what wakes the task."""

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def full(self) -> bool:
        """Whether a caller must wait before it submits a command."""
        return len(self.requests) >= LIMIT

    @property
    def blocked(self) -> int:
        """How many callers wait for space."""
        return len(self._threads) + len(self._tasks)

    def add(self, request: LaneRequest) -> None:
        """Add a command without regard to the limit, and wake the lane's thread.

        For commands of tasks, the thread is woken once per iteration of the event loop, so that
        they make one batch. If the first command woke it, it would compete with the tasks for the
        interpreter's lock.

        Raises:
            WrongContext: the main thread has ended, and this Python starts no thread after that.
        """
        self._start_worker()  # first: it may fail
        self.requests.append(request)
        loop = request.loop
        if loop is None:
            self._signal.set()
        elif loop not in self._loops_in_turn:
            loop.call_soon(self._end_turn, loop)
            self._loops_in_turn.add(loop)

    def _start_worker(self) -> None:
        """Start the thread that takes the commands, unless it runs."""
        try:
            self._worker.ensure()
        except RuntimeError as error:
            if threading.main_thread().is_alive():
                raise
            raise WrongContext(
                f"a queue needs a thread of its own, and the main thread has ended ({error}); let "
                "the main thread wait for those that use queues"
            ) from error

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the lane's thread after an iteration of an event loop."""
        self._loops_in_turn.discard(loop)
        self._signal.set()

    def take(self) -> list[LaneRequest]:
        """Remove and return the commands of one batch."""
        most = min(len(self.requests), MAX_COMMANDS)
        batch: list[LaneRequest] = []
        self.batch = batch
        weight = 0
        while len(batch) < most and weight < MAX_WEIGHT:
            request = self.requests[0]
            batch.append(request)  # before it leaves: else an error here would lose it
            self.requests.popleft()
            if most > 1:  # else none is weighed against others
                weight += request.command.weight
        if batch and (self._threads or self._tasks):
            self.wake_callers()
        if self._loops_in_turn:  # a loop that was closed never calls `_end_turn`
            closed_loops = {loop for loop in list(self._loops_in_turn) if loop.is_closed()}
            self._loops_in_turn -= closed_loops
        return batch

    def wait_for_space(self) -> None:
        """Block until there may be space."""
        signal = Signal()
        self._threads.append(signal)  # first: space that comes after the next line wakes it
        try:
            if self.full:
                signal.wait(INTERRUPT_CHECK_SECONDS)
        finally:
            if signal in self._threads:  # it waited too long, or not: no one has woken it
                self._threads.remove(signal)

    async def wait_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait, in a task, until there may be space."""
        woken: asyncio.Future[None] = loop.create_future()
        self._tasks.append((loop, woken))  # first: as in `wait_for_space`
        if not self.full:
            woken.cancel()
            return
        try:
            await woken
        except asyncio.CancelledError:
            self.wake_callers()  # the space is for the next caller
            raise

    def wake_callers(self, *, all_of_them: bool = False) -> None:
        """Wake waiting callers: all threads, and as many tasks as there is space for."""
        space = len(self._tasks) if all_of_them else LIMIT - len(self.requests)
        try:
            while self._threads:
                self._threads.popleft().set()
            while space > 0:
                loop, woken = self._tasks.popleft()
                if not woken.done() and call_on(loop, _wake, woken):
                    space -= 1
        except IndexError:  # no more wait; another thread may wake them too
            pass


def call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
) -> bool:
    """Call a function on an event loop; return False if the loop was closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the loop was closed
        return False
    return True


def _wake(woken: asyncio.Future[None]) -> None:
    """Wake a task, on its loop."""
    if not woken.done():  # it may have been cancelled meanwhile
        woken.set_result(None)
