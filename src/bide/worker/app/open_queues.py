"""The queues of an app's store, which its tasks put into: each is opened once, and shared."""

from collections.abc import Callable
from typing import Any

from bide.clock import Clock
from bide.queue.aio import AsyncQueue
from bide.queue.sync import Queue

Opened = Queue | AsyncQueue


class OpenQueues:
    """Opens queues when they are used first.

    Args:
        url: returns the store's URL; `bide worker --url` changes it.
        clock: of the queues.
    """

    def __init__(self, url: Callable[[], str], clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._opened: dict[tuple[type[Opened], str, str], Any] = {}

    def queue(self, name: str) -> Queue:
        """Return a queue."""
        queue: Queue = self._of(Queue, name)
        return queue

    def async_queue(self, name: str) -> AsyncQueue:
        """Return a queue for event loops."""
        queue: AsyncQueue = self._of(AsyncQueue, name)
        return queue

    def close(self) -> None:
        """Close all of them; they are opened again when they are used."""
        while self._opened:
            _, queue = self._opened.popitem()
            queue._close()

    def _of(self, kind: type[Opened], name: str) -> Any:
        url = self._url()
        known = self._opened.get((kind, name, url))
        if known is None:
            made = kind(name, url, clock=self._clock)
            known = self._opened.setdefault((kind, name, url), made)
            if known is not made:  # another thread was first
                made._close()
        return known
