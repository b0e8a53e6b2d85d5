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
        blocking, asynchronous: the classes of queues for threads and for event loops; a kit for a
            framework has its own.
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
        """The open queues, by class, name, URL and options."""

    def queue(self, name: str, url: str | None = None, **options: Any) -> Queue:
        """Return the one queue with these arguments."""
        queue: Queue = self._open(self._blocking, name, url, options)
        return queue

    def async_queue(self, name: str, url: str | None = None, **options: Any) -> AsyncQueue:
        """Return the one queue with these arguments, for event loops."""
        queue: AsyncQueue = self._open(self._asynchronous, name, url, options)
        return queue

    def close(self) -> None:
        """Close all of them; they are opened again when they are used."""
        while self._opened:
            _, queue = self._opened.popitem()
            queue._close()

    def _open(
        self, queue_class: type[Any], name: str, url: str | None, options: dict[str, Any]
    ) -> Any:
        """Return the queue of this class with these arguments; open it if there is none."""
        url = self._url() if url is None else url
        key: tuple[object, ...] = queue_class, name, url
        if options:
            key = *key, *sorted(options.items())
        queue = self._opened.get(key)
        if queue is None:
            new_queue = queue_class(name, url, **{"clock": self._clock, **options})
            queue = self._opened.setdefault(key, new_queue)
            if queue is not new_queue:  # another thread was first
                new_queue._close()
        return queue
