"""The inbox: commands that wait for their turn, and callers who wait until theirs fits in."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from bide.lane.request import Request

__all__ = ["LIMIT", "Inbox", "call_on"]

LIMIT = 10_000
"""How many commands wait for their turn at most; whoever brings more waits to hand them in."""

MAX_COMMANDS = 1_000
MAX_WEIGHT = 20_000
"""How many commands, and how many messages, one batch holds at most."""

HALVED = 64
"""Of fewer commands no batch is cut in half: that costs more than it brings."""


class Inbox:
    """Commands in the order in which they came. Not safe by itself: the lane's lock guards it.

    Args:
        guard: the lane's lock.
        limit: how many commands there may be before callers have to wait.
        notify: lets the lane's thread hear of commands.
    """

    def __init__(self, guard: threading.RLock, limit: int, notify: Callable[[], object]) -> None:
        self._limit = limit
        self._notify = notify
        self.requests: deque[Request] = deque()
        self._guard = guard
        self._space = threading.Condition(guard)
        self._turns: set[asyncio.AbstractEventLoop] = set()  # that are to end with `_end_turn`
        self._tasks: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    @property
    def full(self) -> bool:
        """Whether a caller has to wait before handing in another command."""
        return len(self.requests) >= self._limit

    def add(self, request: Request) -> None:
        """Add a command, however many there are already, and let the lane's thread hear of it.

        Of a task's command it hears once the loop has run all that is due: what tasks hand in until
        then makes one batch. A thread that woke up at the first would fight with them for the
        interpreter, command by command.
        """
        self.requests.append(request)
        loop = request.loop
        if loop is None:
            self._notify()
        elif loop not in self._turns:
            loop.call_soon(self._end_turn, loop)
            self._turns.add(loop)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            self._turns.discard(loop)
            self._notify()

    def extend(self, requests: Iterable[Request]) -> None:
        """Add commands, however many there are already: those of the lane itself never wait."""
        self.requests.extend(requests)

    def take(self, *, halves: bool = False) -> list[Request]:
        """Take out what one batch holds.

        With `halves` it holds half of what is there, if that is much: while a server works on one
        half, the callers of the other half come with their next commands.
        """
        most = len(self.requests)
        if halves and most >= HALVED:
            most = (most + 1) // 2
        take = self.requests.popleft
        batch: list[Request] = []
        weight = 0
        for _ in range(min(most, MAX_COMMANDS)):
            request = take()
            batch.append(request)
            weight += request.command.weight
            if weight >= MAX_WEIGHT:
                break
        if batch:
            self.let_in()
        if self._turns:  # a loop that was closed within its turn never ends it
            self._turns = {loop for loop in self._turns if not loop.is_closed()}
        return batch

    def wait(self) -> None:
        """Block a thread until it may try again."""
        self._space.wait()

    async def wait_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a task wait until it may try again; that may be at once."""
        room: asyncio.Future[None] = loop.create_future()
        with self._guard:
            if not self.full:
                return
            self._tasks.append((loop, room))
        try:
            await room
        except asyncio.CancelledError:
            with self._guard:
                self.let_in()  # the place goes to the next
            raise

    def let_in(self) -> None:
        """Let callers who wait try again: as many tasks as there is room for, and the threads."""
        self._space.notify_all()
        room = self._limit - len(self.requests)
        while self._tasks and room > 0:
            loop, waiting = self._tasks.popleft()
            if not waiting.done() and call_on(loop, _grant, waiting):
                room -= 1

    def let_all_in(self) -> None:
        """Let everybody try again: the lane is closing, and they are to hear of it."""
        self._space.notify_all()
        while self._tasks:
            loop, waiting = self._tasks.popleft()
            call_on(loop, _grant, waiting)


def call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
) -> bool:
    """Call a function on an event loop; return False if the loop was closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # whoever ran on it is gone
        return False
    return True


def _grant(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
