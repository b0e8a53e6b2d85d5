"""What a program has registered with its app, as worker processes read it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from types import SimpleNamespace

from bide.clock import Clock
from bide.consuming.handler import Middleware, check_takes
from bide.consuming.handling import Handler
from bide.consuming.queue_handlers import QueueHandlers, lease_of
from bide.engines.registry import mask, named_url, opener
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue
from bide.model.limits import check_whole
from bide.model.time_rule import checked_window
from bide.model.times import Duration, settings_text
from bide.model.window import Window
from bide.queue.joining import JoiningQueue
from bide.worker.app.lifespan import SHAPE, Lifespan
from bide.worker.app.open_queues import OpenQueues
from bide.worker.periodic.schedule import Schedule
from bide.worker.periodic.source import Source

ASYNC_CONCURRENCY = 64
"""How many deliveries of a queue a process runs at a time by default, if its handler is async."""

SYNC_CONCURRENCY = 16
"""The same if its handler is a plain one: then each delivery takes a thread."""

MOST = 10_000
"""The maximum number of deliveries of one queue that a process runs at a time."""


class Registrations:
    """The handlers of an `App` by queue, and what they share."""

    def __init__(self, url: str | None, lifespan: Lifespan | None, clock: Clock) -> None:
        self._url = named_url(url)
        opener(self._url)  # raises if it is not the URL of a store
        if lifespan is not None:
            check_takes(lifespan, 1, f"the app; a lifespan is {SHAPE}")
        self.lifespan = lifespan
        self.clock = clock
        self.state = SimpleNamespace()
        """State that handlers share: set in `lifespan`, read as `app.state` or `delivery.state`."""
        self.around: list[Middleware] = []
        """The middleware, outermost first."""
        self._open_queues = OpenQueues(lambda: self._url, clock)
        self._queue_handlers: dict[str, QueueHandlers] = {}
        self.sources: dict[str, Source] = {}
        """The sources, by the queue of their windows."""
        self.schedules: dict[str, Schedule] = {}
        """The schedules, by their queue."""

    @property
    def url(self) -> str:
        """The store's URL without its password."""
        return mask(self._url)

    @property
    def queue_handlers(self) -> Mapping[str, QueueHandlers]:
        """The handlers by queue, including those of jobs, sources and schedules."""
        return self._queue_handlers

    def _thread_context(self) -> AbstractContextManager[object]:
        """Return the context of a plain handler; a framework has one."""
        return nullcontext()

    def _loop_context(self) -> AbstractAsyncContextManager[object]:
        """Return the context of an async handler; a framework has one."""
        return nullcontext()

    def _add(
        self,
        queue: str,
        job: str | None,
        handler: Handler,
        lease: Duration,
        concurrency: int | None,
        settings: Mapping[str, int | str],
        window: Window | None = None,
    ) -> None:
        """Register a handler with the settings of its queue, which all its jobs must share.

        Args:
            queue: its queue.
            job: the name of the job or the task; `None`: it handles all messages of the queue.
            handler: the handler.
            lease: of the queue's messages.
            concurrency: how many deliveries of the queue a process runs; `None`: as usual.
            settings: those that the queue is to have, by name as `Configure` takes them.
            window: in which it is worked on; `None`: always.

        Raises:
            InvalidArgument: one of them is not valid, or another job of the queue has another one.
        """
        lease_ms = lease_of(lease)
        if window is not None:
            checked_window(window)
        registered = self._queue_handlers.get(check_queue(queue))
        if concurrency is None:
            usual = ASYNC_CONCURRENCY if handler.is_async else SYNC_CONCURRENCY
            usual = max(usual, 2 * handler.batch)  # one gathers while another runs
            concurrency = usual if registered is None else registered.concurrency
        check_whole(concurrency, "concurrency", 1, MOST)
        if concurrency < handler.batch:
            raise InvalidArgument(
                f"concurrency={concurrency} is less than batch={handler.batch}: a process would "
                "never fill a batch"
            )
        if registered is None:
            joining = JoiningQueue(queue, self._open_queues)
            registered = QueueHandlers(queue, lease_ms, concurrency, joining=joining, window=window)
            self._queue_handlers[queue] = registered
        elif (registered.lease, registered.concurrency) != (lease_ms, concurrency):
            raise InvalidArgument(
                f"queue {queue!r} has a lease of {registered.lease} ms and a concurrency of "
                f"{registered.concurrency} already; give all its jobs the same"
            )
        elif registered.window != window:
            raise InvalidArgument(
                f"queue {queue!r} is worked on {_in_words(registered.window)} already; give all "
                "its jobs and tasks the same window="
            )
        for name, value in settings.items():
            declared = registered.settings.setdefault(name, value)
            if declared != value:
                raise InvalidArgument(
                    f"queue {queue!r} has {settings_text({name: declared})} already; "
                    "declare each setting of a queue once"
                )
        registered.handlers[job] = handler

    def _check_is_new_in(self, queue: str, name: str) -> None:
        """Check that a queue may have a task or a job of this name.

        Raises:
            InvalidArgument: it has one, or a plain handler.
        """
        others = self._queue_handlers[queue].handlers if queue in self._queue_handlers else {}
        has_plain_handler = None in others  # it is the one without a name
        if has_plain_handler or name in others:
            what = "has a plain handler" if has_plain_handler else f"knows {name!r}"
            raise InvalidArgument(f"queue {queue!r} {what} already; choose another queue")

    def _check_free(self, queue: str, fix: str) -> None:
        """Check that a queue has no handler.

        Raises:
            InvalidArgument: the queue has a handler already.
        """
        if queue in self._queue_handlers:
            first = next(iter(self._queue_handlers[queue].handlers.values()))
            raise InvalidArgument(f"queue {queue!r} is handled by {first.name} already; {fix}")


def _in_words(window: Window | None) -> str:
    """Return when a queue is worked on."""
    return "at all times" if window is None else f"{window}"
