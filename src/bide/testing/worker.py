"""A worker that a test drives: it handles due messages in order when the test says so."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from bide.consuming.declared_settings import apply_declared
from bide.consuming.queue_handlers import QueueHandlers, with_upkeep
from bide.consuming.store_client import StoreClient
from bide.model.errors import Closed, InvalidArgument, WrongContext
from bide.model.times import Duration, Moment, milliseconds, to_datetime, unix
from bide.tasks import first_of
from bide.testing.manual_consumer import HOLDER, Handled, ManualConsumer
from bide.testing.store import ScratchStore
from bide.worker.app.app import App
from bide.worker.app.lifespan import entered
from bide.worker.process.runner import chosen

T = TypeVar("T")
Answer = TypeVar("Answer")
"""What a method returns: what was handled, or a coroutine that returns it."""

Errors = Literal["raise", "collect"]

LIMIT = 1_000
"""The default of the maximum number of deliveries without time passing."""

PATIENCE = 10.0
"""The default of how many real seconds one delivery may take."""


class _Worker(Generic[Answer]):
    """What both forms share: one task enters and leaves the app's lifespan."""

    __test__ = False

    consumer_class = ManualConsumer
    """Of what delivers the messages of a queue."""

    def __init__(
        self,
        app: App,
        store: ScratchStore,
        *,
        queues: Iterable[str] = (),
        errors: Errors = "raise",
        patience: float = PATIENCE,
    ) -> None:
        if errors not in ("raise", "collect"):
            raise InvalidArgument(f'errors={errors!r} must be "raise" or "collect"')
        if not isinstance(app, App):
            raise InvalidArgument(f"a worker takes a bide.App, not {type(app).__name__}")
        self.app = app
        self.store = store
        self.handled: list[Handled] = []
        """Every delivery so far, in order."""
        self._queues = chosen(app, list(queues))
        self._raises = errors == "raise"
        self._patience = patience
        self._consumers: list[ManualConsumer] = []
        self._leaving = asyncio.Event()
        """Set when the app's lifespan is to be left."""
        self._turn = asyncio.Lock()
        """Held by the call that handles messages: deliveries are made one at a time."""
        self._host: asyncio.Task[None] | None = None
        """The task that is in the app's lifespan; `None`: none is."""
        self._wait: float | None = None
        """In how many milliseconds the next message is due, as of the last delivery; `None`:
        never."""
        self._open()

    def _open(self) -> None:
        """Begin, if there is no `async with` for it."""

    @property
    def errors(self) -> list[BaseException]:
        """The errors of handlers so far, in order, without `bide.Retry`, `Discard` and `Bury`."""
        return [
            handled.error
            for handled in self.handled
            if handled.failed and handled.error is not None
        ]

    async def _enter(self) -> None:
        """Enter the app's lifespan, and make the consumers."""
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._host = asyncio.create_task(self._live(started))
        await first_of(self._host, started)

    async def _leave(self) -> None:
        """Leave the app's lifespan, if it was entered."""
        host, self._host = self._host, None
        if host is not None:
            async with self._turn:  # a call may still run
                self._leaving.set()
            await host

    def run_due(self, *, limit: int = LIMIT) -> Answer:
        """Handle all messages that are due now, and those that handlers make due now.

        Args:
            limit: the maximum number of deliveries without time passing, so that no test runs
                forever.

        Returns:
            What was handled, in order.

        Raises:
            Exception: what a handler raised, unless errors are collected. Messages that were due
                after it are still due.
            TimeoutError: a handler did not end within `patience`.
            RuntimeError: the limit was reached.
            WrongContext: on an event loop; async tests have `AsyncManualWorker`.
        """
        return self._run(self._run_due(limit))

    def advance(self, duration: Duration, *, limit: int = LIMIT) -> Answer:
        """Let time pass, and handle each message at its due time.

        Args:
            duration: seconds, a `timedelta`, or "1h30m".
            limit: the maximum number of deliveries without time passing.

        Returns:
            What was handled, in order.

        Raises:
            Exception: what a handler raised, unless errors are collected; the clock stops there.
        """
        target = self.store.clock.now() + milliseconds(duration, "duration")
        return self._run(self._go_to(target, limit))

    def advance_to(self, moment: Moment, *, limit: int = LIMIT) -> Answer:
        """Let time pass until a time, as `advance` does.

        Args:
            moment: an aware `datetime`, or Unix seconds; not before now.
            limit: the maximum number of deliveries without time passing.
        """
        target, now = unix(moment, "moment"), self.store.clock.now()
        if target < now:
            raise InvalidArgument(
                f"moment={moment} is before now, which is {to_datetime(now)}; time cannot go back"
            )
        return self._run(self._go_to(target, limit))

    def _run(self, work: Coroutine[Any, Any, list[Handled]]) -> Answer:
        """Run a coroutine, or return it to be awaited."""
        raise NotImplementedError

    async def _live(self, started: "asyncio.Future[None]") -> None:
        """Enter the app's lifespan, and leave it in the same task, as a worker does.

        The app is then as it was before: tests share it.

        Args:
            started: gets its result once messages can be handled.
        """
        state, clock = vars(self.app.state).copy(), self.app.clock
        self.app.clock = self.store.clock
        try:
            async with entered(self.app.lifespan, self.app):
                store_client = StoreClient(self.store.lane, self.store.clock)
                handled = [self._handlers_of(queue) for queue in self._queues]
                await apply_declared(store_client, handled, HOLDER)
                for queue in self._queues:
                    queue_handlers = self._handlers_of(queue)
                    middleware, upkeep = with_upkeep(queue_handlers, store_client, self.app.around)
                    if upkeep is not None:
                        await upkeep.begin()
                    self._consumers.append(
                        self.consumer_class(
                            queue_handlers, middleware, self.app.state, store_client
                        )
                    )
                started.set_result(None)
                await self._leaving.wait()
        finally:
            for consumer in self._consumers:
                await consumer.close()
            self.app.clock = clock
            vars(self.app.state).clear()
            vars(self.app.state).update(state)

    def _handlers_of(self, queue: str) -> QueueHandlers:
        """Return the handlers of a queue, as this worker runs them."""
        return self.app.queue_handlers[queue]

    async def _go_to(self, target: int, limit: int) -> list[Handled]:
        """Let time pass until a time in Unix milliseconds; handle each message when it is due."""
        clock = self.store.clock
        all_handled: list[Handled] = []
        while True:
            all_handled += await self._run_due(limit)
            remaining = target - clock.now()
            if self._wait is None or self._wait > remaining:
                break
            clock.advance(max(self._wait, 1) / 1000)  # 0 would stay where it is for ever
            await asyncio.sleep(0)  # timers that have fired run
        if remaining > 0:
            clock.advance(remaining / 1000)
            await asyncio.sleep(0)
        return all_handled

    async def _run_due(self, limit: int) -> list[Handled]:
        """Handle all that is due now; return it in order."""
        all_handled: list[Handled] = []
        async with self._turn:
            if self._host is None:
                raise Closed("this worker was not entered; use it as: async with ... as worker")
            while (handled := await self._next()) is not None:
                all_handled.append(handled)
                self.handled.append(handled)
                if handled.failed and self._raises:
                    raise _error_of(handled)
                if len(all_handled) > limit:
                    raise RuntimeError(
                        f"more than limit={limit:,} deliveries were made without time passing; "
                        f"the last was {handled.id!r} of {handled.queue!r}. Does a handler put "
                        "messages that are due at once? If so many are right, give a larger limit="
                    )
        return all_handled

    async def _next(self) -> Handled | None:
        """Make one delivery, from the queue whose next message is due first.

        `None`: nothing is due. Then `_wait` says when something is.
        """
        if self._host is not None and self._host.done():  # only an error ends it before `_leave`
            self._host.result()
        due_times: dict[ManualConsumer, float] = {}
        for consumer in self._consumers:
            head = await consumer.head()
            due_times[consumer] = float("inf") if head is None else head.due
        waits = []
        # Of equal times, the queue that was registered first: sorting keeps their order.
        for consumer in sorted(self._consumers, key=due_times.__getitem__):
            result = await consumer.handle_next(self._patience)
            if isinstance(result, Handled):
                return result
            if result is not None:
                waits.append(result)
        self._wait = min(waits, default=None)
        return None


class ManualWorker(_Worker[list[Handled]]):
    """Runs an app's handlers when a test says so, and moves the clock. The fixture `bide_worker`.

    It works like `bide worker`: middleware, typed bodies, `still_wanted`, retries, timeouts, dead
    letters, plain handlers in threads. The app's lifespan lasts from the creation of this object to
    `close`. Three differences make every run of a test the same: claims do not wait, deliveries are
    made one at a time (from the queue whose next message is due first), and retry delays have no
    jitter.

    Args:
        app: whose handlers run.
        store: where its queues are.
        queues: only these; all that have a handler by default.
        errors: "raise": `run_due` and `advance` raise what a handler raises, after its message was
            retried or buried as usual. "collect": it is added to `errors`.
        patience: how many real seconds one delivery may take.

    Raises:
        InvalidArgument: the app has no handler, or none for one of the queues.

    Example:
        >>> import bide
        >>> app = bide.App()
        >>> @app.handler("orders")
        ... def expire(order: int) -> None:
        ...     print("order", order, "timed out")
        >>> with ScratchStore() as store, ManualWorker(app, store) as worker:
        ...     outcome = bide.Queue("orders").put(42, delay="30m")
        ...     early = worker.advance("29m")
        ...     late = worker.advance("1m")
        order 42 timed out
        >>> len(early), [one.outcome for one in late]
        (0, ['acked'])
    """

    def _open(self) -> None:
        self._loop = asyncio.Runner()
        self._closed = False
        try:
            self._run(self._enter())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the app's lifespan. Closing twice does nothing."""
        if self._closed:
            return
        try:
            self._run(self._leave())
        finally:
            self._closed = True
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the worker's own loop.

        Raises:
            WrongContext: a loop runs in this thread already.
            Closed: the worker was closed.
        """
        if asyncio._get_running_loop() is not None:
            work.close()
            raise WrongContext(
                "this worker has its own event loop, and another one is running here; in an async "
                "test use the fixture bide_async_worker (the same methods, with await)"
            )
        if self._closed:
            work.close()
            raise Closed("this worker was closed; make a new one")
        return self._loop.run(work)


class AsyncManualWorker(_Worker[Coroutine[Any, Any, list[Handled]]]):
    """Async form of `ManualWorker`, for async tests. The fixture `bide_async_worker`.

    Handlers run on the test's own event loop. Enter it with `async with`.

    Args:
        app: whose handlers run.
        store: where its queues are.
        queues: only these; all that have a handler by default.
        errors: "raise" or "collect"; see `ManualWorker`.
        patience: how many real seconds one delivery may take.
    """

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._leave()

    def _run(self, work: Coroutine[Any, Any, list[Handled]]) -> Coroutine[Any, Any, list[Handled]]:
        return work


Made = TypeVar("Made", covariant=True)


class _Factory(Protocol[Made]):
    def __call__(
        self,
        app: App,
        *,
        queues: Iterable[str] = (),
        errors: Errors = "raise",
        patience: float = PATIENCE,
    ) -> Made:
        """Return a worker for an app in `bide_store`."""


WorkerFactory = _Factory[ManualWorker]
"""The type of the fixture `bide_worker`: its workers are closed at the end of the test."""

AsyncWorkerFactory = _Factory[AsyncManualWorker]
"""The type of the fixture `bide_async_worker`: enter its workers with `async with`."""


def _error_of(handled: Handled) -> BaseException:
    """Return what a handler has raised, with a note about the message."""
    error = handled.error
    assert error is not None
    became = {"retried": "it will be retried", "dead": "it is a dead letter now"}
    error.add_note(
        f"Raised for the message {handled.id!r} of {handled.queue!r}, attempt {handled.attempt}; "
        f'{became.get(handled.outcome, handled.outcome)}. Or collect errors: errors="collect"'
    )
    return error
