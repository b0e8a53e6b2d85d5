"""Claim messages of one queue while there is room for them, and those that will start soon."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from bide.clock import sleep
from bide.consuming.handling import Handling
from bide.consuming.overdue import OverdueWatch
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.store_client import StoreClient
from bide.lane.inbox import FOREVER
from bide.model.commands import Claim
from bide.model.replies import Claimed
from bide.tasks import first_of

CLAIM_MOST = 1_000
"""The maximum of one claim: more would delay the other queues of the store."""

SOON = 0.02
"""Seconds within which prefetched messages should start, by the recent pace."""

MOST = 960
"""The maximum number of prefetched messages of one queue in a process: a crash delays them, and
other processes cannot take them."""

HOLD = 0.05
"""Seconds after which a prefetched message is released, so that others can start it."""

CLOSED_MOST = 300.0
"""Seconds after which a process looks at the store's clock again while its window is closed."""

SLOW = 1.0
"""The initial pace, in seconds a delivery: so slow that nothing is prefetched."""

WEIGHT = 0.05
"""The weight of the last delivery in the pace."""


class Prefetch:
    """The prefetched messages of a queue, and how many there may be.

    Fast handlers free one or two places at a time. If a claim took only one or two messages, each
    commit would be for a handful. So a claim prefetches the messages that will start within about
    20 ms anyway. Slow handlers prefetch nothing.

    Args:
        concurrency: how many places there are.
        lease: in seconds.
    """

    def __init__(self, concurrency: int, lease: float) -> None:
        self.waiting: deque[Handling] = deque()
        """In the order in which they will start."""
        self.hold = min(HOLD, lease / 4)
        """How many seconds a message may wait; its lease is not extended during that time."""
        self._soon = min(SOON, lease / 10) * concurrency
        self.pace = SLOW

    @property
    def most(self) -> int:
        """How many may wait, by the recent pace."""
        return MOST if self._soon > MOST * self.pace else int(self._soon / self.pace)

    def ended(self, took: float) -> None:
        """Update the pace with the duration of a delivery, in seconds."""
        self.pace += (took - self.pace) * WEIGHT

    def overdue(self, now: float) -> list[Handling]:
        """Remove and return messages that waited too long; the pace estimate was wrong."""
        over = []
        while self.waiting and self.waiting[0].arrived + self.hold <= now:
            over.append(self.waiting.popleft())
        if over:
            self.pace = SLOW
        return over


class Claimer(ABC):
    """The part of a consumer that claims.

    Args:
        queue_handlers: the queue and its handlers.
        store_client: runs its commands on the store.
        holder: the name of the holder in its claims.
    """

    def __init__(
        self, queue_handlers: QueueHandlers, store_client: StoreClient, holder: str
    ) -> None:
        self.queue_handlers = queue_handlers
        self.running: dict[Handling, None] = {}
        """Deliveries whose handlers run, in the order in which they were started."""
        self._store_client = store_client
        self._clock = store_client.clock
        self._holder = holder
        self._loop = asyncio.get_running_loop()
        self.prefetch = Prefetch(queue_handlers.concurrency, queue_handlers.lease / 1000)
        self.claim_task: asyncio.Task[Claimed] | None = None
        self._recalled = False
        self._overdue = OverdueWatch(queue_handlers.queue, store_client, holder)
        self._limited = False  # whether the last claim found a limited queue
        self.asked_at = 0.0  # when the last claim began, by the monotonic clock
        self._store_ahead: int | None = None
        """How many milliseconds the store's clock is ahead of this one; `None`: it is not known."""
        self._changed = asyncio.Event()  # set when deliveries have ended or were settled

    def room(self) -> tuple[int, float | None]:
        """Return how many messages to claim now, and if none, how many seconds to wait.

        `None` waits until `recall` is called or a place becomes free.
        """
        concurrency, waiting = self.queue_handlers.concurrency, len(self.prefetch.waiting)
        most = 0 if self._limited else self.prefetch.most  # others could start what waits here
        if waiting > most // 2:  # half of them start first, so that a claim is worth its commit
            return 0, None
        free = concurrency + most - len(self.running) - waiting
        return max(0, min(free, CLAIM_MOST)), None

    def _has_room(self) -> bool:
        """Return whether there is room to claim a message now."""
        count, _pause = self.room()
        return count > 0

    @abstractmethod
    def start(self, reply: Claimed) -> None:
        """Start the messages of a claim."""

    @abstractmethod
    def release_claimed(self, reply: Claimed) -> None:
        """Release the messages of a claim; their attempt does not count."""

    async def admits(self, reply: Claimed) -> bool:
        """Tell whether to start what a claim brought; if not, it is released."""
        return True

    async def claim(self) -> None:
        """Claim messages while there is room, and start them."""
        while True:
            self._recalled = False
            await self._until_open()
            room, pause = self.room()
            if not room:
                self._changed.clear()
                if pause is None:
                    await self._changed.wait()
                else:
                    await first_of(self._changed.wait(), sleep(self._clock, max(0.0, pause)))
            elif (reply := await self.claimed(room)) is not None:
                admitted = False
                try:
                    is_open = not reply.messages or self._is_open(reply.now)
                    admitted = not reply.messages or (is_open and await self.admits(reply))
                finally:
                    if not admitted:
                        self.release_claimed(reply)
                if admitted:
                    self._limited = reply.limited
                    self.start(reply)
                while reply.behind and not self._has_room():
                    # While handlers run, the store sorts its due messages into lines.
                    command = self._claim_of(0)
                    reply = await self._store_client.patiently(Claimed, command, self)
                    self.start(reply)  # it may name messages that died

    def recall(self) -> None:
        """End the waiting claim, and look again how many messages to claim."""
        self._recalled = True
        self._changed.set()
        if self.claim_task is not None:
            self.claim_task.cancel()

    async def claimed(self, count: int) -> Claimed | None:
        """Return what a claim brought; `None` if it was recalled."""
        self.asked_at = self._clock.monotonic()
        self.claim_task = claim = self._loop.create_task(self.ask(self._claim_of(count)))
        try:
            return await claim
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                return None
            if not claim.cancelled() and claim.exception() is None:
                self.release_claimed(claim.result())  # the reply came with the cancellation
            raise

    @property
    def opens(self) -> int | None:
        """When the window opens in which the queue is worked on, in Unix milliseconds of the
        store's clock; `None`: it is open, or there is none."""
        window = self.queue_handlers.window
        now = self._store_now
        if window is None or now is None or window.is_open(now):
            return None
        return window.opening(now)

    @property
    def _store_now(self) -> int | None:
        """The time of the store's clock in Unix milliseconds; `None`: it is not known."""
        return None if self._store_ahead is None else self._clock.now() + self._store_ahead

    def _is_open(self, moment: int) -> bool:
        """Return whether the queue is worked on at a time of the store's clock."""
        window = self.queue_handlers.window
        return window is None or window.is_open(moment)

    async def _until_open(self) -> None:
        """Wait until the queue is worked on; what was claimed before goes on meanwhile."""
        window = self.queue_handlers.window
        if window is None:
            return
        while (now := self._store_now) is None or not window.is_open(now):
            # It may be open by now: clocks are set, and machines sleep.
            reply = await self._store_client.patiently(Claimed, self._claim_of(0), self)
            self._note_time(reply)
            self.start(reply)  # it may name messages that died
            if (seconds := (window.opening(reply.now) - reply.now) / 1000) > 0:
                await sleep(self._clock, min(seconds, CLOSED_MOST))

    def _note_time(self, reply: Claimed) -> None:
        """Note the time of the store's clock."""
        self._store_ahead = reply.now - self._clock.now()

    @contextmanager
    def _recalled_at_closing(self) -> Iterator[None]:
        """Recall the claim of this block when the window closes."""
        window, now = self.queue_handlers.window, self._store_now
        closing = None if window is None or now is None else window.closing(now)
        if closing is None or now is None:
            yield
            return
        timer = self._clock.call_later(self._loop, (closing - now) / 1000, self.recall)
        try:
            yield
        finally:
            timer.cancel()

    def _claim_of(self, count: int) -> Claim:
        handlers = self.queue_handlers
        return Claim(handlers.queue, count, handlers.lease, self._holder)

    async def ask(self, command: Claim) -> Claimed:
        """Wait for messages, also while the store is unavailable."""
        # For ever even with a window: a shorter wait would not tell which messages died.
        before = self._overdue.before_claim
        with self._recalled_at_closing():
            reply = await self._store_client.patiently(Claimed, command, self, FOREVER, before)
        self._note_time(reply)
        return reply
