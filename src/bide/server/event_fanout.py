"""Pass hints of what became claimable from the lane to everyone who listens."""

import asyncio
import threading

from bide.lane.lane import Lane


class Listener:
    """The hints that one listener has not taken yet: at most one per queue."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        self.news = asyncio.Event()

    def tell(self, queue: str, wake: int) -> None:
        """Keep the earliest time of a queue."""
        self.hints[queue] = min(wake, self.hints.get(queue, wake))
        self.news.set()

    def take(self) -> dict[str, int]:
        """Return the hints since the last call."""
        hints, self.hints = self.hints, {}
        self.news.clear()
        return hints


class EventFanout:
    """Pass hints, which come in any thread, to listeners on the event loop.

    Args:
        lane: where hints come from; it is asked for them once the first listener enters.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._gathered: dict[str, int] = {}

    async def enter(self) -> Listener:
        """Begin to listen; end it with `leave`."""
        listener = Listener()
        self._listeners.add(listener)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            await asyncio.to_thread(self._lane.listen, self._hear)
        return listener

    def leave(self, listener: Listener) -> None:
        """Stop listening."""
        self._listeners.discard(listener)

    def wake(self) -> None:
        """Wake all listeners: the server stops."""
        for listener in self._listeners:
            listener.news.set()

    def __len__(self) -> int:
        return len(self._listeners)

    def _hear(self, queue: str, wake: int) -> None:
        """Gather a hint; wake the event loop once for all hints until it runs."""
        if not self._listeners or self._loop is None:
            return
        with self._lock:
            first = not self._gathered
            self._gathered[queue] = min(wake, self._gathered.get(queue, wake))
        if first and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        with self._lock:
            gathered, self._gathered = self._gathered, {}
        for listener in self._listeners:
            for queue, wake in gathered.items():
                listener.tell(queue, wake)
