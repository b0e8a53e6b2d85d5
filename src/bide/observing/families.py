"""The metrics that there are: of a store's queues, and of the deliveries of workers.

The counters of messages come from the store, which changes them in the same transaction: they cover
all processes on all machines, and a killed process loses none. Only workers know lateness and
duration; these are summed over the processes of a worker.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from bide.engines import losses
from bide.logs import logger
from bide.model.errors import StoreError
from bide.model.replies import Counts
from bide.observing.tally import OUTCOMES, Histogram, Tally

_log = logger("bide.telemetry")


class Family(NamedTuple):
    """A metric: what it counts or measures, for Prometheus and for OpenTelemetry."""

    type: Literal["counter", "sum", "gauge", "histogram"]
    """A sum may decrease and, unlike a gauge, adds up with those of other processes."""
    dotted: str
    """Its name in the form of OpenTelemetry."""
    unit: str
    """In the form of OpenTelemetry: "s", "By", "1", or what is counted, in braces."""
    text: str
    labels: str = ""
    """The names of its labels; the first one names what has the figures, such as a queue."""
    value: Callable[[Any], Any] = lambda value: value
    """Returns the value from the figures: a number, a `Histogram`, or these by the second label."""

    @property
    def name(self) -> str:
        """Its name in Prometheus; of a counter without `_total`."""
        return self.dotted.replace(".", "_") + ("_seconds" if self.unit == "s" else "")

    def of(self, by_name: Mapping[str, Any]) -> "Metric":
        """Return the metric with the values of all figures.

        Args:
            by_name: figures, such as the counts of a queue, by the value of the first label.
        """
        label_count = len(self.labels.split())
        samples: list[MetricSample] = []
        for name, figures in by_name.items():
            value = self.value(figures)
            by_second_label = value if isinstance(value, Mapping) else {"": value}
            for second, figure in by_second_label.items():
                samples.append(MetricSample([name, second][:label_count], figure))
        return Metric(self, samples)


class MetricSample(NamedTuple):
    """The value of a metric for one set of labels."""

    labels: list[str]
    """The values of the labels."""
    value: Any
    """The number, or the `Histogram`."""


class Metric(NamedTuple):
    """A metric with what it was at one time."""

    family: Family
    samples: list[MetricSample]
    """One for each set of labels."""


STORE_UP = Family("gauge", "bide.store.up", "1", "Whether the store answers.")
CHANGES_LOST = Family(
    "counter",
    "bide.store.changes_lost",
    "{change}",
    "Confirmed changes that the store no longer has, as far as is known here.",
    "queue",
)
OVERDUE = Family(
    "gauge",
    "bide.queue.oldest_overdue",
    "s",
    "How long the oldest due message has waited; 0 if none is due.",
    "queue",
)
QUEUES = (
    Family(
        "gauge",  # many processes report it of one store
        "bide.queue.messages",
        "{message}",
        "Messages in the queue, by state.",
        "queue state",
        lambda counts: msgspec.structs.asdict(counts.sizes),
    ),
    Family(
        "gauge",
        "bide.queue.paused",
        "1",
        "Whether the queue is paused.",
        "queue",
        lambda counts: counts.paused,
    ),
)
FLOWS = tuple(
    Family(
        "counter",
        f"bide.messages.{name}",
        "{message}",
        text,
        "queue",
        attrgetter(f"flow.{name}"),
    )
    for name, text in (
        ("put", "Messages stored."),
        ("acked", "Messages done."),
        ("cancelled", "Messages cancelled before a worker held them."),
        ("expired", "Messages that were too late to be delivered."),
        ("purged", "Messages deleted."),
        ("died", "Messages that became dead letters."),
        ("revived", "Dead letters that were returned to the queue."),
        ("retried", "Failed attempts that were followed by another."),
        ("lapsed", "Leases that lapsed, followed by another attempt."),
        ("moved", "Messages that a move has put into another store."),
    )
)
PROCESSES = Family("sum", "bide.worker.processes", "{process}", "Processes that are ready.")
RESTARTS = Family(
    "counter", "bide.worker.restarts", "{process}", "Processes that died and were replaced."
)
THREADS = Family(
    "counter",
    "bide.thread.restarts",
    "{thread}",
    "Threads and tasks of bide that died and were restarted.",
    "thread",
)


def by_outcome(tally: Tally) -> dict[str, int]:
    """Return the number of deliveries by outcome, zeros included."""
    return dict.fromkeys(OUTCOMES, 0) | tally.outcomes


def by_cause(tally: Tally) -> dict[str, Histogram]:
    """Return the lateness of deliveries by cause, "no-worker" even if it never was one.

    A worker that is back counts all of it at once: it must be an increase, which the first value of
    a series is not. Of the other causes, series without values would double a scrape.
    """
    return {"no-worker": Histogram()} | tally.causes


DELIVERIES = (
    Family(
        "counter",
        "bide.deliveries",
        "{delivery}",
        "Deliveries that ended, by outcome.",
        "queue outcome",
        by_outcome,
    ),
    Family(
        "sum",
        "bide.deliveries.running",
        "{delivery}",
        "Handlers that are running.",
        "queue",
        lambda tally: tally.running,
    ),
    Family(
        "sum",
        "bide.deliveries.waiting",
        "{message}",
        "Messages claimed ahead of a free handler.",
        "queue",
        lambda tally: tally.waiting,
    ),
    Family(
        "histogram",
        "bide.delivery.lateness_cause",
        "s",
        "The lateness of deliveries, by cause.",
        "queue cause",
        by_cause,
    ),
    Family(
        "gauge",
        "bide.deliveries.longest",
        "s",
        "How long the longest-running handler has been running.",
        "queue",
        lambda tally: tally.longest,
    ),
    Family(
        "histogram",
        "bide.delivery.duration",
        "s",
        "How long handlers ran.",
        "queue",
        lambda tally: tally.duration,
    ),
)
CLAIMS = (
    Family(
        "counter",
        "bide.claims",
        "{claim}",
        "Claims that returned messages.",
        "queue",
        lambda tally: tally.claims,
    ),
    Family(
        "counter",
        "bide.messages.claimed",
        "{message}",
        "Messages that claims returned.",
        "queue",
        lambda tally: tally.claimed,
    ),
    Family(
        "histogram",
        "bide.delivery.lateness",
        "s",
        "From the due time of a message to the "
        "start of its handler, or to the answer of a claim over HTTP.",
        "queue",
        lambda tally: tally.lateness,
    ),
)
STORE = (STORE_UP, CHANGES_LOST, *QUEUES, *FLOWS, OVERDUE)
"""The families of a store."""
WORKER = (PROCESSES, RESTARTS, THREADS, *DELIVERIES, *CLAIMS)
"""The families of the processes of a worker."""


def store_metrics(
    counts: Callable[[], Mapping[str, Counts]],
    now: Callable[[], float],
    lost: Callable[[], Mapping[str, int]] = losses.counted,
) -> Iterator[Metric]:
    """Yield the metrics of the store; if it does not answer, only that it is down.

    Args:
        counts: reads the queues.
        now: returns Unix seconds.
        lost: returns the number of lost changes by queue; by default those that this process has
            seen.
    """
    try:
        counts_by_queue = counts()
    except StoreError as error:
        _log.warning("the store could not be read for the metrics: %s", error)
        yield STORE_UP.of({"": 0})
        return
    yield STORE_UP.of({"": 1})
    # From 0 on: the increase of a series that begins with the first loss is none.
    yield CHANGES_LOST.of({**dict.fromkeys(counts_by_queue, 0), **lost()})
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
) -> Iterator[Metric]:
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


def claim_metrics(tallies: Mapping[str, Tally]) -> Iterator[Metric]:
    """Yield the metrics of claims and their lateness, which workers and servers share.

    Args:
        tallies: by queue.
    """
    for family in CLAIMS:
        yield family.of(tallies)
