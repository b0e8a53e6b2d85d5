"""The inbox: commands that wait for the next batch, and callers that wait for space in it."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from bide.lane.request import Request

LIMIT = 10_000
"""The maximum number of waiting commands; further callers wait."""

MAX_COMMANDS = 1_000
MAX_WEIGHT = 20_000
"""The maximum number of commands, and of messages, in one batch."""

HALVED = 64
"""Fewer commands are not halved: two batches would cost more than they save."""


class Inbox:
    """Commands in the order of their submission. Not thread-safe: the caller holds the lane's lock.

    Args:
        guard: the lane's lock.
        limit: how many commands may wait before callers wait.
        notify: wakes the lane's thread.
    """

    def __init__(self, guard: threading.RLock, limit: int, notify: Callable[[], object]) -> None:
        self._limit = limit
        self._notify = notify
        self.requests: deque[Request] = deque()
        self._guard = guard
        self._space = threading.Condition(guard)
        self._turns: set[asyncio.AbstractEventLoop] = set()  # that will call `_end_turn`
        self._tasks: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def full(self) -> bool:
        """Whether a caller must wait before it submits a command."""
        return len(self.requests) >= self._limit

    def add(self, request: Request) -> None:
        """Add a command without regard to the limit, and wake the lane's thread.

        For commands of tasks, the thread is woken once per iteration of the event loop, so that
        they make one batch. If the first command woke it, it would compete with the tasks for the
        interpreter's lock.
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

    def take(self, *, halves: bool = False) -> list[Request]:
        """Remove and return the commands of one batch.

        With `halves`, a large batch has only half of the commands: while the server executes it,
        the callers of the other half submit their next commands.
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
            self.wake_callers()
        if self._turns:  # a loop that was closed never calls `_end_turn`
            self._turns = {loop for loop in self._turns if not loop.is_closed()}
        return batch

    def wait(self) -> None:
        """Block a thread until there may be space."""
        self._space.wait()

    async def wait_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait, in a task, until there may be space."""
        room: asyncio.Future[None] = loop.create_future()
        with self._guard:
            if not self.full:
                return
            self._tasks.append((loop, room))
        try:
            await room
        except asyncio.CancelledError:
            with self._guard:
                self.wake_callers()  # the space is for the next caller
            raise

    def wake_callers(self) -> None:
        """Wake waiting callers: all threads, and as many tasks as there is space for."""
        self._space.notify_all()
        room = self._limit - len(self.requests)
        while self._tasks and room > 0:
            loop, waiting = self._tasks.popleft()
            if not waiting.done() and call_on(loop, _grant, waiting):
                room -= 1

    def wake_all_callers(self) -> None:
        """Wake all callers: the lane is closing."""
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
    except RuntimeError:  # the loop was closed
        return False
    return True


def _grant(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
