"""Prometheus metrics of a store's queues, and of the deliveries of workers.

The counters of messages come from the store, which changes them in the same transaction: they cover
all processes on all machines, and a killed process loses none. Only workers know lateness and
duration; these are summed over the processes of a worker.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from socket import gaierror
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec

from bide.engines import losses
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model.commands import Count
from bide.model.errors import InvalidArgument, StoreError
from bide.model.replies import Counts, expect
from bide.observing.tally import OUTCOMES, Histogram, Tally

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


class Family(NamedTuple):
    """A metric: its type, its name (of a counter without `_total`) and its help text."""

    type: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: str = ""
    """The names of its labels; the first one names what has the figures, such as a queue."""
    value: Callable[[Any], Any] = lambda value: value
    """Returns the value from the figures, a `Histogram`, or values by the second label."""

    def of(self, by_name: Mapping[str, Any]) -> "Metric":
        """Return the metric with the values of all figures, by the first label."""
        from prometheus_client import core

        labels = self.labels.split()
        made = getattr(core, f"{self.type.title()}MetricFamily")(
            self.name, self.text, labels=labels
        )
        for name, figures in by_name.items():
            value = self.value(figures)
            parts = value if isinstance(value, Mapping) else {"": value}
            for second, figure in parts.items():
                values = [figure]
                if isinstance(figure, Histogram):
                    values = [figure.cumulative(), figure.sum]
                made.add_metric([name, second][: len(labels)], *values)
        metric: Metric = made
        return metric


STORE_UP = Family("gauge", "bide_store_up", "Whether the store answers.")
CHANGES_LOST = Family(
    "counter",
    "bide_store_changes_lost",
    "Confirmed changes that the store no longer has, as far as this process knows.",
    "queue",
)
OVERDUE = Family(
    "gauge",
    "bide_queue_oldest_overdue_seconds",
    "For how long the oldest due message has waited; 0 if none is due.",
    "queue",
)
QUEUES = (
    Family(
        "gauge",
        "bide_queue_messages",
        "Messages in the queue, by state.",
        "queue state",
        lambda counts: msgspec.structs.asdict(counts.sizes),
    ),
    Family(
        "gauge",
        "bide_queue_paused",
        "Whether the queue is paused.",
        "queue",
        lambda counts: counts.paused,
    ),
)
FLOWS = tuple(
    Family("counter", f"bide_messages_{name}", text, "queue", attrgetter(f"flow.{name}"))
    for name, text in (
        ("put", "Messages stored."),
        ("acked", "Messages done."),
        ("cancelled", "Messages cancelled before a worker held them."),
        ("expired", "Messages that were too late to be delivered."),
        ("purged", "Messages deleted."),
        ("died", "Messages that became dead letters."),
        ("revived", "Dead letters that were returned to the queue."),
        ("retried", "Failed attempts that were followed by another."),
        ("lapsed", "Leases that ended before their message was settled."),
    )
)
PROCESSES = Family("gauge", "bide_worker_processes", "Processes that are ready.")
RESTARTS = Family("counter", "bide_worker_restarts", "Processes that died and were replaced.")
THREADS = Family(
    "counter",
    "bide_thread_restarts",
    "Threads and tasks of bide that died and were restarted.",
    "thread",
)


def by_outcome(tally: Tally) -> dict[str, int]:
    """Return the number of deliveries by outcome, zeros included."""
    return dict.fromkeys(OUTCOMES, 0) | tally.outcomes


DELIVERIES = (
    Family(
        "counter",
        "bide_deliveries",
        "Deliveries that ended, by outcome.",
        "queue outcome",
        by_outcome,
    ),
    Family(
        "gauge",
        "bide_deliveries_running",
        "Handlers that are running.",
        "queue",
        lambda tally: tally.running,
    ),
    Family(
        "gauge",
        "bide_deliveries_waiting",
        "Messages claimed ahead of a free handler.",
        "queue",
        lambda tally: tally.waiting,
    ),
    Family(
        "histogram",
        "bide_delivery_lateness_cause_seconds",
        "How much of the lateness of a delivery has which cause.",
        "queue cause",
        lambda tally: tally.causes,
    ),
    Family(
        "gauge",
        "bide_deliveries_longest_seconds",
        "For how long the handler has run that was started first.",
        "queue",
        lambda tally: tally.longest,
    ),
    Family(
        "histogram",
        "bide_delivery_duration_seconds",
        "How long handlers ran.",
        "queue",
        lambda tally: tally.duration,
    ),
)
CLAIMS = (
    Family(
        "counter",
        "bide_claims",
        "Claims that returned messages.",
        "queue",
        lambda tally: tally.claims,
    ),
    Family(
        "counter",
        "bide_messages_claimed",
        "Messages that claims returned.",
        "queue",
        lambda tally: tally.claimed,
    ),
    Family(
        "histogram",
        "bide_delivery_lateness_seconds",
        "From the due time of a message to the "
        "start of its handler, or to the answer of a claim over HTTP.",
        "queue",
        lambda tally: tally.lateness,
    ),
)

_log = logger("bide.telemetry")


def counts_of(lane: Lane, queues: Iterable[str]) -> dict[str, Counts]:
    """Read the counts of queues.

    Raises:
        StoreError: the store cannot be read.
    """
    return {queue: expect(Counts, lane.call(Count(queue))) for queue in queues}


def registry_of(
    counts: Callable[[], Mapping[str, Counts]],
    *,
    more: "Callable[[], Iterable[Metric]] | None" = None,
    now: Callable[[], float] = time.time,
) -> "CollectorRegistry":
    """Return a registry whose metrics are read at each scrape.

    Args:
        counts: reads the queues; see `counts_of`.
        more: returns other metrics, such as `worker_metrics`.
        now: returns Unix seconds.

    Raises:
        InvalidArgument: prometheus_client is not installed.

    Example:
        >>> from prometheus_client import generate_latest
        >>> from bide.model.replies import Flow, Sizes
        >>> registry = registry_of(lambda: {"orders": Counts(Sizes(delayed=3), Flow(put=3))})
        >>> [line for line in generate_latest(registry).decode().split("\\n") if "delayed" in line]
        ['bide_queue_messages{queue="orders",state="delayed"} 3.0']
    """
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            "metrics need prometheus_client, which is not installed: pip install 'bide[metrics]'"
        ) from error

    registry = CollectorRegistry()
    registry.register(_Collector(partial(_of_queues, counts, now)))
    if more is not None:
        registry.register(_Collector(more))
    return registry


class _Collector:
    """Gives a registry the metrics that a function returns."""

    def __init__(self, gather: "Callable[[], Iterable[Metric]]") -> None:
        self.collect = gather


def _of_queues(
    counts: Callable[[], Mapping[str, Counts]], now: Callable[[], float]
) -> "Iterator[Metric]":
    """Yield the metrics of the store; if it does not answer, only that it is down."""
    try:
        counts_by_queue = counts()
    except StoreError as error:
        _log.warning("the store could not be read for the metrics: %s", error)
        yield STORE_UP.of({"": 0})
        return
    yield STORE_UP.of({"": 1})
    yield CHANGES_LOST.of(losses.counted())
    for family in (*QUEUES, *FLOWS):
        yield family.of(counts_by_queue)
    yield OVERDUE.of(
        {
            queue: 0.0
            if counts_of_queue.oldest is None
            else round(max(0.0, now() - counts_of_queue.oldest / 1000), 3)
            for queue, counts_of_queue in counts_by_queue.items()
        }
    )


def worker_metrics(
    ready: int, restarts: int, tallies: Mapping[str, Tally], threads: Mapping[str, int]
) -> "Iterator[Metric]":
    """Yield the metrics of the processes of a worker.

    Args:
        ready: how many are ready.
        restarts: how many died and were replaced.
        tallies: what they did, by queue.
        threads: how often their threads and tasks died and were restarted, by name.
    """
    yield PROCESSES.of({"": ready})
    yield RESTARTS.of({"": restarts})
    yield THREADS.of(threads)
    for family in (*DELIVERIES, *CLAIMS):
        yield family.of(tallies)


def claim_metrics(tallies: Mapping[str, Tally]) -> "Iterator[Metric]":
    """Yield the metrics of claims and their lateness, which workers and servers share.

    Args:
        tallies: by queue.
    """
    for family in CLAIMS:
        yield family.of(tallies)


class MetricsServer:
    """Serves the metrics of a registry over HTTP, in a thread of its own.

    Args:
        registry: see `registry_of`.
        port: 0 for any free port, which is in `port` after `open`.
        host: the address to listen on; by default only this machine can connect.
    """

    def __init__(self, registry: "CollectorRegistry", port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self._registry = registry
        self._host = host
        self._running: tuple[WSGIServer, Thread] | None = None

    def open(self) -> None:
        """Start to serve.

        Raises:
            InvalidArgument: the port is in use, or the address is not of this machine.
        """
        from prometheus_client import start_http_server

        try:
            self._running = start_http_server(self.port, self._host, self._registry)
        except OSError as error:
            what = f"metrics={self._host}:{self.port} cannot be listened on"
            raise unlistenable(what, error) from error
        self.port = self._running[0].server_port

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join()
            self._running = None


def unlistenable(what: str, error: OSError) -> InvalidArgument:
    """Return an error with the cause and the fix.

    Args:
        what: the beginning of the text, with the port.
        error: the error of the attempt to listen.

    Example:
        >>> str(unlistenable("port=80 is no port", PermissionError(13, ""))).partition(";")[0]
        'port=80 is no port: Permission denied'
    """
    number = None if isinstance(error, gaierror) else error.errno  # it has numbers of its own
    why = os.strerror(number) if number else error.strerror or str(error)
    fix = "take a free port of 1024 or more, at an address of this machine"
    return InvalidArgument(f"{what}: {why}; {fix}")
