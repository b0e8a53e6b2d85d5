"""The runner: runs an app in this process, within its lifespan, and watches the event loop."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NoReturn

from bide.consuming.consumer import Consumer
from bide.consuming.dead_holders import end_leases_of_dead
from bide.consuming.declared_settings import apply_declared
from bide.consuming.graceful_stop import release_all, stop, unfinished
from bide.consuming.isolation import CrashIsolation
from bide.consuming.queue_handlers import QueueHandlers, Upkeep, with_upkeep
from bide.consuming.run import with_integrations
from bide.consuming.store_client import StoreClient
from bide.consuming.zone_update import keep_planned
from bide.engines.losses import listening
from bide.engines.registry import absolute, file_of, mask
from bide.lane.first_contact import first_contact, lane_when_there
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model.errors import InvalidArgument
from bide.observing.exporting import exporting, for_threads
from bide.observing.families import WORKER, Metric, worker_metrics
from bide.observing.heartbeat import Heartbeat, Report, report_id
from bide.observing.process_origin import of_this_process
from bide.observing.recorder import PastRecorder
from bide.observing.store_counts import counts_of
from bide.observing.tally import Tally
from bide.observing.workers import Span, read_gaps
from bide.queue.arguments import own_name
from bide.tasks import background, cancel, first_of
from bide.threads import Background, deaths
from bide.worker.app.lifespan import entered
from bide.worker.app.registrations import Registrations

LIMIT = 0.5
"""Seconds that a handler may block the event loop before a warning names it, and between two
checks whether it is blocked."""


class LoopWatch:
    """A thread that watches the event loop.

    It uses real time: no clock can wake a blocked loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        """The id of the thread that runs the event loop."""
        self._end = threading.Event()
        """Set when the thread is to end."""
        self._thread = Background("bide-watch", self._run)
        self._thread.ensure()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(LIMIT) and not self._loop.is_closed():
            asked_at, answer, has_warned = time.monotonic(), threading.Event(), False
            self._loop.call_soon_threadsafe(answer.set)
            while not answer.wait(LIMIT) and not self._end.is_set():
                if not has_warned:  # once for each time that it is blocked
                    self._warn(time.monotonic() - asked_at)
                has_warned = True

    def _warn(self, seconds: float) -> None:
        """Log which task blocks the event loop, for how many seconds so far, and where."""
        task = asyncio.current_task(self._loop)
        name = "something" if task is None else task.get_name()
        frame = sys._current_frames()[self._loop_thread]
        _log.warning(
            "%s has held up the event loop for %.1f s at %s:%d (%s); nothing else runs meanwhile. "
            "Make it a plain function, which gets a thread, or await what takes long",
            name,
            seconds,
            frame.f_code.co_filename,
            frame.f_lineno,
            frame.f_code.co_name,
        )


_log = logger("bide.worker")


@dataclass(eq=False)
class Runner:
    """Runs the handlers of an app until a stop is requested.

    Raises:
        InvalidArgument: the app has no handler, or none for one of the queues.
    """

    app: Registrations
    queues: Iterable[str] = ()
    """Only these, and their sources; all that have a handler or a source by default."""
    _: KW_ONLY
    grace: float = 30.0
    """Seconds that handlers get to finish when the worker stops."""
    lane: Lane | None = None
    """An open lane to the store; the runner does not close it."""
    ready: Callable[[], None] = lambda: None
    """Called once messages are claimed."""
    holder: str = ""
    """The name under which it claims; by default its host and process."""
    supervised: bool = False
    """Whether a supervisor replaces this process when it is asked to."""
    exports: bool = True
    """Whether to export its metrics by OpenTelemetry, if the program has a provider of meters."""

    def __post_init__(self) -> None:
        self._queues = chosen(self.app, list(self.queues))
        self._holder = self.holder or own_name()
        self._client: StoreClient | None = None
        """`None` before the store has answered."""
        self._is_store_away = False
        """Whether the store did not answer when this began, and has not since."""
        self.at_work = False
        """Whether it claims messages."""
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        """Set when messages whose handlers run are to be released at once."""
        self.consumers: dict[str, Consumer] = {}
        """By queue."""

    def tallies(self) -> dict[str, Tally]:
        """Return what was done so far on each queue."""
        return {queue: consumer.current() for queue, consumer in self.consumers.items()}

    def stuck(self) -> list[str]:
        """Return the queues whose places are all taken by handlers that do not return."""
        return [queue for queue, consumer in self.consumers.items() if consumer.stuck]

    @property
    def notifications_lost(self) -> bool:
        """Whether other processes cannot wake the claims of this one: these poll instead."""
        return self._client is not None and self._client.lane.notifications_lost

    def trouble(self) -> str | None:
        """Return why messages are not handled now, without addresses; `None` if all is well."""
        if self._is_store_away or (self._client is not None and self._client.away):
            return "the store is away"
        if not self.at_work:
            return "the worker has not begun"
        if stuck := ", ".join(self.stuck()):
            return f"all slots of {stuck} are taken by handlers that do not return"
        return None

    def stop(self, *, hurry: bool = False) -> None:
        """Claim no more, and let handlers finish; with `hurry` release their messages at once."""
        self._stopping.set()
        if hurry:
            self._hurrying.set()

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises:
            StoreError: the store cannot be opened. A server that does not answer is waited for.
        """
        path = file_of(self.app._url)
        is_new = path is not None and not path.exists()
        async with self._lane() as lane:
            self._is_store_away = False
            self._client = client = StoreClient(lane, self.app.clock)
            async with entered(self.app.lifespan, self.app), self._exporting(lane):
                await self._work(client, is_new=is_new)

    @asynccontextmanager
    async def _lane(self) -> AsyncIterator[Lane]:
        """Provide a lane once the store answers: errors in its URL or rights show at the start."""
        url = self.app._url

        def note_away() -> None:
            self._is_store_away = True

        if self.lane is not None:
            await first_contact(self.lane, url, note_away)
            yield self.lane
        else:
            async with lane_when_there(url, self.app.clock, note_away) as lane:
                yield lane

    def _exporting(self, lane: Lane) -> AbstractAsyncContextManager[None]:
        """Export the metrics of this process, unless its supervisor does so for all."""
        if not self.exports:
            return nullcontext()
        counts, more = partial(counts_of, lane, self._queues), for_threads(self._metrics)
        return exporting(counts, WORKER, more)

    async def _metrics(self) -> list[Metric]:
        """Return the metrics of this process."""
        return list(worker_metrics(int(self.at_work), 0, self.tallies(), deaths))

    async def _work(self, store_client: StoreClient, *, is_new: bool) -> None:
        """Handle messages until `stop` is called, or a part of it has failed.

        Args:
            store_client: executes commands on the store.
            is_new: whether the store was made by this start, for the log.
        """
        holder = self._holder
        watch = LoopWatch()
        began = self.app.clock.now()
        gaps: dict[str, list[Span]] = {}  # by queue: when no worker ran before this one began
        origin = of_this_process()

        def report() -> Report:
            busy = {queue: consumer.busy() for queue, consumer in self.consumers.items()}
            return Report(
                {holder: list(busy)},
                busy=busy,
                supervised=self.supervised,
                began=began,
                gaps=gaps,
                origin=origin,
            )

        heartbeat = Heartbeat(
            store_client.lane,
            store_client.clock,
            report_id(holder, origin),
            report,
            self.tallies,
            partial(end_leases_of_dead, store_client.lane.acall, self._queues),
        )
        chores: list[asyncio.Task[None]] = []  # of the process; each consumer has its own, too
        try:
            handled = [self.app.queue_handlers[queue] for queue in self._queues]
            await apply_declared(store_client, handled, holder)
            upkeeps = self._make_consumers(store_client)
            chores += [asyncio.create_task(upkeep.keep()) for upkeep in upkeeps]
            chores.append(asyncio.create_task(self._restore_declared(store_client, handled)))
            consumers = list(self.consumers.values())
            # Other processes read the heartbeat, so a store of this process alone needs none.
            if store_client.lane.capabilities.shared:
                gaps |= await read_gaps(store_client.lane, self._queues, began)
                for queue, consumer in self.consumers.items():
                    consumer.late_causes.unserved = gaps[queue]
                chores.append(background("bide-heartbeat", heartbeat.keep))
                if not store_client.lane.capabilities.has_server:  # else a server does it
                    update = partial(keep_planned, store_client.lane.acall, store_client.clock)
                    chores.append(background("bide-zones", update))
            if not store_client.lane.capabilities.has_server:
                # Of a store of this process alone nobody else knows the lateness.
                tallies = None if store_client.lane.capabilities.shared else self.tallies
                recorder = PastRecorder(store_client.lane.acall, store_client.clock, tallies)
                chores.append(background("bide-past", recorder.keep))
            for consumer in consumers:
                consumer.open()
            where = mask(absolute(self.app._url)) + (" (a new store)" if is_new else "")
            _log.info("at work on %s, at %s", ", ".join(self._queues), where)
            self.at_work = True
            self.ready()
            # A task ends by itself only if it fails: then this worker stops, too.
            tasks = [task for consumer in consumers for task in (consumer.claims, *consumer.chores)]
            await first_of(self._stopping.wait(), *tasks, *chores)
            if rest := unfinished(consumers):
                _log.info("stopping; %s, with %g s to finish", rest, self.grace)
            await stop(consumers, store_client.clock, self.grace, self._hurrying, chores)
        except (Exception, asyncio.CancelledError):
            await release_all(list(self.consumers.values()), store_client.clock)
            raise
        finally:
            self.at_work = False
            watch.close()
            await cancel(chores)
            for consumer in self.consumers.values():
                await consumer.close()
        _log.info("stopped")

    async def _restore_declared(
        self, store_client: StoreClient, handled: list[QueueHandlers]
    ) -> NoReturn:
        """Apply the declared settings again after each loss of changes: they may be lost, too."""
        loop, loss = asyncio.get_running_loop(), asyncio.Event()
        with listening(lambda: loop.call_soon_threadsafe(loss.set)):
            while True:
                await loss.wait()
                loss.clear()
                await apply_declared(store_client, handled, self._holder)

    def _make_consumers(self, store_client: StoreClient) -> list[Upkeep]:
        """Make the consumer of each queue; return the upkeep of schedules and sources.

        Consumers share the isolation of messages that may have killed a process: such a message
        runs alone in the process, not only in its queue.
        """
        crash_isolation = CrashIsolation()
        upkeeps: list[Upkeep] = []
        for queue in self._queues:
            queue_handlers = self.app.queue_handlers[queue]
            middleware, upkeep = with_upkeep(queue_handlers, store_client, self.app.around)
            if upkeep is not None:
                upkeeps.append(upkeep)
            self.consumers[queue] = Consumer(
                queue_handlers,
                with_integrations(middleware),
                self.app.state,
                store_client,
                holder=self._holder,
                crash_isolation=crash_isolation,
            )
        return upkeeps


def chosen(app: Registrations, queues: list[str]) -> list[str]:
    """Return the queues to work on: all that have a handler, or of these only those named.

    A source has a queue of its own. It is named as such, or by the queue that it fills.

    Raises:
        InvalidArgument: the app has no handler, or none for one of the queues.
    """
    handlers = app.queue_handlers
    if not handlers:
        raise InvalidArgument("the app has no handlers; register one with @app.handler(queue)")
    filled_queues = {queue_handlers.fills for queue_handlers in handlers.values()}
    for queue in queues:
        if queue not in handlers and queue not in filled_queues:
            known = ", ".join(handlers)
            raise InvalidArgument(f"queue {queue!r} has no handler in the app; it has: {known}")
    return [
        queue
        for queue, queue_handlers in handlers.items()
        if not queues or queue in queues or queue_handlers.fills in queues
    ]
