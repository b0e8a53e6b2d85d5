"""The queues that an app opens for its tasks and its program: each once, and shared."""

from collections.abc import Callable
from typing import Any

from bide.clock import Clock
from bide.queue.aio import AsyncQueue
from bide.queue.sync import Queue


class OpenQueues:
    """Opens queues when they are used first.

    Args:
        url: returns the store's URL, which `bide worker --url` may change; `None`: that of the
            environment, or of the framework's settings.
        clock: of the queues.
        blocking, asynchronous: their classes; a kit has its own.
    """

    def __init__(
        self,
        url: Callable[[], str | None],
        clock: Clock,
        blocking: type[Queue] = Queue,
        asynchronous: type[AsyncQueue] = AsyncQueue,
    ) -> None:
        self._url = url
        self._clock = clock
        self._blocking = blocking
        self._asynchronous = asynchronous
        self._opened: dict[tuple[object, ...], Any] = {}

    def queue(self, name: str, url: str | None = None, **options: Any) -> Queue:
        """Return the one queue with these arguments."""
        queue: Queue = self._of(self._blocking, name, url, options)
        return queue

    def async_queue(self, name: str, url: str | None = None, **options: Any) -> AsyncQueue:
        """Return the one queue with these arguments, for event loops."""
        queue: AsyncQueue = self._of(self._asynchronous, name, url, options)
        return queue

    def close(self) -> None:
        """Close all of them; they are opened again when they are used."""
        while self._opened:
            _, queue = self._opened.popitem()
            queue._close()

    def _of(self, kind: type[Any], name: str, url: str | None, options: dict[str, Any]) -> Any:
        url = url or self._url()
        key = (kind, name, url, *sorted(options.items())) if options else (kind, name, url)
        known = self._opened.get(key)
        if known is None:
            made = kind(name, url, **{"clock": self._clock, **options})
            known = self._opened.setdefault(key, made)
            if known is not made:  # another thread was first
                made._close()
        return known
