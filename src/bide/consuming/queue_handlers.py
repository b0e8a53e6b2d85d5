"""The handlers of one queue, and the settings that they share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bide.consuming.handler import Middleware
from bide.consuming.handling import Handler, Handling
from bide.consuming.parameters import task_named
from bide.consuming.store_client import StoreClient
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_LEASE, MAX_NAME
from bide.model.message import JOB, Message
from bide.model.times import Duration, format_duration, milliseconds
from bide.model.window import Window
from bide.queue.joining import JoiningQueue

SHORTEST_LEASE = 100
"""In milliseconds: a shorter one would end before the worker can extend it."""


class Upkeep(Protocol):
    """Keeps the message of a source or a schedule in its queue."""

    async def begin(self) -> None:
        """Put the message if there is none."""

    async def keep(self) -> None:
        """Begin, and put the message whenever there is none; never returns."""

    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Run around each delivery, outside all middleware."""


@dataclass
class QueueHandlers:
    """One queue as an app works on it."""

    queue: str
    lease: int
    """In milliseconds."""
    concurrency: int
    handlers: dict[str | None, Handler] = field(default_factory=dict)
    """By task or job; a queue with a plain handler has the one under `None`."""
    upkeep: Callable[[StoreClient], Upkeep] | None = None
    """Makes the upkeep of a source or a schedule in this process."""
    fills: str | None = None
    """For a source: the queue that it puts messages into."""
    tasks: set[str] = field(default_factory=set)
    """The names of those that are tasks, which the bodies of their messages name."""
    joining: JoiningQueue | None = None
    """Settles its deliveries in transactions of the user's."""
    settings: dict[str, int | str] = field(default_factory=dict)
    """What the app declares of the queue, by names of settings, as `Configure` takes them."""
    window: Window | None = None
    """In which it is worked on; `None`: always."""

    @property
    def any(self) -> Handler:
        """Any of the handlers, for a message without one."""
        return next(iter(self.handlers.values()))

    def of(self, message: Message) -> Handler | None:
        """Return the handler of a message; `None` if this process does not know its task or job.

        A message that names neither goes to the only handler, if there is one.
        """
        if (plain := self.handlers.get(None)) is not None:
            return plain
        name = self.work_of(message)
        return self.any if name is None and len(self.handlers) == 1 else self.handlers.get(name)

    def work_of(self, message: Message) -> str | None:
        """Return the name of the job or the task of a message, if it says one."""
        if (job := (message.headers or {}).get(JOB)) is not None:
            return job
        return task_named(message) if self.tasks else None

    def unknown(self, message: Message) -> str:
        """Tell what a message is that has no handler here, and what this process knows."""
        name = self.work_of(message)
        kind_of_work = "job" if JOB in (message.headers or {}) else "task"
        description = "it names neither task nor job"
        if name is not None:  # one longer than `MAX_NAME` is no name of any app
            description = f"the {kind_of_work} {name[:MAX_NAME]!r}"
        return f"{description}; this worker knows {', '.join(sorted(map(str, self.handlers)))}"


def with_upkeep(
    queue_handlers: QueueHandlers, store_client: StoreClient, middleware: Sequence[Middleware]
) -> tuple[Sequence[Middleware], Upkeep | None]:
    """Return the middleware of a queue in this process, and its upkeep.

    Only a source or a schedule has one. It is outside the middleware of the app.
    """
    if queue_handlers.upkeep is None:
        return middleware, None
    upkeep = queue_handlers.upkeep(store_client)
    return (upkeep.attend, *middleware), upkeep


def check_decorator(queue: object, example: str) -> None:
    """Check that a decorator got the name of a queue, and not the function itself.

    Raises:
        InvalidArgument: it did not; the function would not be registered.
    """
    if not isinstance(queue, str):
        raise InvalidArgument(
            f"queue must be a str, the name of one queue, not {type(queue).__name__}: @{example}"
        )


def lease_of(lease: Duration) -> int:
    """Return the length of a lease in milliseconds.

    Raises:
        InvalidArgument: it is too short or too long.
    """
    ms = milliseconds(lease, "lease")
    if not SHORTEST_LEASE <= ms <= MAX_LEASE:
        raise InvalidArgument(f"lease={format_duration(ms)} must be between 100 ms and 24 hours")
    return ms
