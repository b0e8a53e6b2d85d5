"""Open calls: their limits, the workers that claim, and the hints for event streams."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from bide.engines.bounded_dict import BoundedDict
from bide.lane.lane import Lane
from bide.model.limits import MAX_CLAIMERS, MAX_HINTS
from bide.server.problem import Problem


@dataclass
class LongCalls:
    """Counts the open calls of one kind by namespace and by client address.

    Each process of a server counts for itself.

    Args:
        kind: the kind in the plural, for error texts.
        setting: the name of the setting with the limit.
        most: the limit for a namespace, and for an address.
    """

    kind: str
    setting: str
    most: int
    _open: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    """Open calls by ("namespace", its name) and ("address", the address)."""

    @contextmanager
    def counting(self, namespace: str | None, network: str) -> Iterator[None]:
        """Count one more open call while the block runs.

        Args:
            namespace: the namespace of the token; `None`: the whole store, which has its own limit.
            network: the client's address or network; "" on a Unix socket, where no address counts.

        Raises:
            Problem: the namespace or the address has reached the limit.
        """
        keys = [("namespace", namespace or "")]
        if network:
            keys.append(("address", network))
        for noun, name in keys:
            if self._open[noun, name] >= self.most:
                raise Problem(
                    "too-many-open",
                    f"the {noun} {name or '(of the whole store)'} has {self.most:,} {self.kind} "
                    f"open at this server process; end some, or set a larger {self.setting}",
                )
        for key in keys:
            self._open[key] += 1
        try:
            yield
        finally:
            for key in keys:
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]


CLAIMER_SECONDS = 15.0
"""Seconds for which a claimer is remembered between two claims."""


class Claimers:
    """The workers that claim over HTTP, by their names and queues."""

    def __init__(self) -> None:
        self._waiting: Counter[tuple[str, str]] = Counter()
        """Waiting claims by holder and queue."""
        self._last_claims: BoundedDict[tuple[str, str], float] = BoundedDict(MAX_CLAIMERS)
        """By holder and queue: when its last claim ended, in seconds of the monotonic clock."""

    @property
    def waiting(self) -> int:
        """The number of waiting claims."""
        return self._waiting.total()

    @contextmanager
    def wait(self, holder: str, queue: str) -> Iterator[None]:
        """Count a waiting claim while the block runs."""
        self._waiting[holder, queue] += 1
        try:
            yield
        finally:
            self._waiting[holder, queue] -= 1
            if not self._waiting[holder, queue]:
                del self._waiting[holder, queue]
            self.note_claim(holder, queue)

    def note_claim(self, holder: str, queue: str) -> None:
        """Record that a worker has claimed."""
        self._last_claims[holder, queue] = time.monotonic()

    def listed(self) -> dict[str, list[str]]:
        """Return the current claimers, with the queues of each."""
        since = time.monotonic() - CLAIMER_SECONDS
        between_claims = [
            key for key, claimed_at in self._last_claims.items() if claimed_at > since
        ]
        queues_by_holder: dict[str, list[str]] = {}
        for holder, queue in dict.fromkeys([*self._waiting, *between_claims]):
            if holder in queues_by_holder or len(queues_by_holder) < MAX_CLAIMERS:
                queues_by_holder.setdefault(holder, []).append(queue)
        return queues_by_holder


class Listener:
    """The hints that wait for one listener: at most one per queue."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        """By queue: the time at which to look into it, in Unix milliseconds."""
        self.news = asyncio.Event()
        """Set when there are hints, or when the server stops."""

    def add(self, queue: str, wake: int) -> None:
        """Add a hint; keep the earliest of each queue. Some may be dropped: clients also poll.

        Args:
            queue: the queue.
            wake: when to look into it, in Unix milliseconds.
        """
        if queue in self.hints or len(self.hints) < MAX_HINTS:
            self.hints[queue] = min(wake, self.hints.get(queue, wake))
        self.news.set()

    def take(self) -> dict[str, int]:
        """Return the hints since the last call."""
        hints, self.hints = self.hints, {}
        self.news.clear()
        return hints


class EventFanout:
    """Passes hints, which come in any thread, to listeners on the event loop.

    Args:
        lane: the source of the hints, from the first listener on.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the listeners; `None` before the first one."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        """Yield a listener, which gets hints while the block runs."""
        self._listeners.add(listener := Listener())
        try:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                await asyncio.to_thread(self._lane.listen, self._hear)
            yield listener
        finally:
            self._listeners.discard(listener)

    def wake(self) -> None:
        """Wake all listeners: the server stops."""
        for listener in self._listeners:
            listener.news.set()

    def __len__(self) -> int:
        return len(self._listeners)

    def _hear(self, queue: str, wake: int) -> None:
        """Take a hint of the lane, in any thread."""
        loop = self._loop
        if self._listeners and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._pass_on, queue, wake)

    def _pass_on(self, queue: str, wake: int) -> None:
        for listener in self._listeners:
            listener.add(queue, wake)
