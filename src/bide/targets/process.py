"""Push in a separate process, until a signal ends it."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from functools import partial
from typing import Literal

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import mask
from bide.lane.first_contact import lane_when_there
from bide.lane.shared import close_lane, open_lane
from bide.logs import logger
from bide.model.replies import Counts
from bide.observing.exporting import exporting, for_threads
from bide.observing.families import Metric
from bide.observing.store_counts import counts_of
from bide.targets.amqp import Address
from bide.targets.http.addresses import AddressGate
from bide.targets.http.stats import PUSH, push_metrics
from bide.targets.pusher import Pusher
from bide.tasks import first_of, unless_stopped

_log = logger("bide.server.push")


async def push(
    url: str,
    networks: Sequence[str],
    grace: float,
    *,
    intakes: Sequence[Address] = (),
    queue_type: str = "quorum",
    metrics: tuple[str, int] | None = None,
) -> None:
    """Push the subscriptions of a store until a signal.

    A second SIGTERM or Ctrl-C does not wait for running requests.

    Args:
        url: of the store.
        networks: networks that are allowed though they are not public.
        grace: seconds that running requests get to finish.
        intakes: exchanges of RabbitMQ whose delayed messages are stored.
        queue_type: of the queues that intakes declare.
        metrics: the host and port at which Prometheus finds metrics; none by default.

    Raises:
        StoreError: the store cannot be opened. A server that does not answer is waited for.
        InvalidArgument: an intake cannot work; see `Intake.declare`.
    """
    # Errors in the URL or in rights show at the start.
    if not await unless_stopped(_store_is_there(url)):
        return
    lane = open_lane(url)
    try:
        pusher = Pusher(
            lane, SYSTEM_CLOCK, gate=AddressGate(networks), intakes=intakes, queue_type=queue_type
        )
        for intake in pusher.intakes:
            await intake.declare()
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            if stopping.is_set():
                pusher.hurry()
            stopping.set()

        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            # A closed terminal sends it twice: the second one must not hurry the stop.
            loop.add_signal_handler(signal.SIGHUP, stopping.set)

        async def of_push() -> list[Metric]:
            return list(push_metrics(pusher.known, pusher.sent, SYSTEM_CLOCK.now()))

        counts, more = partial(counts_of, lane, ()), for_threads(of_push)
        async with AsyncExitStack() as opened:
            if metrics is not None:
                opened.enter_context(_metrics_server(counts, more, *metrics))
            await opened.enter_async_context(exporting(counts, PUSH, more))
            pushing = asyncio.create_task(pusher.run(grace))
            _log.info("pushing, from %s", mask(url))
            await first_of(pushing, stopping.wait())
        _log.info("stopping; what is under way has %g s to finish", grace)
        pushing.cancel()
        with suppress(asyncio.CancelledError):
            await pushing
        _log.info("stopped")
    finally:
        await asyncio.to_thread(close_lane, lane)


async def _store_is_there(url: str) -> Literal[True]:
    async with lane_when_there(url):
        return True


def _metrics_server(
    counts: Callable[[], Mapping[str, Counts]],
    more: Callable[[], Iterable[Metric]],
    host: str,
    port: int,
) -> AbstractContextManager[object]:
    """Return a server of metrics; as a context manager it serves them until it is left."""
    from bide.observing.metrics import MetricsServer, registry_of  # here: it may be missing

    return MetricsServer(registry_of(counts, more=more), port, host)
