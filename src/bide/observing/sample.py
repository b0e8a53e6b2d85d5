"""Samples of a store: counts of queues, workers, how late deliveries are; sums of forecasts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Scan
from bide.model.internal_queues import InternalQueue
from bide.model.replies import Counts, Forecasted, Page
from bide.observing.heartbeat import REMEMBER_SECONDS, Busy, recent_reports
from bide.observing.tally import Histogram, total

MOST_HELD = 1_000
"""The maximum number of held messages of a queue that a sample reads."""

SLIGHT_LATENESS = 100.0
"""Milliseconds of lateness of a queue in a minute that need no explanation."""


class Worker(msgspec.Struct, omit_defaults=True):
    """A process that holds messages, or reports that it is alive."""

    holder: str
    """The name under which it claims."""
    held: dict[str, int] = msgspec.field(default_factory=dict, name="holds")
    """The number of messages that it holds, of each queue that it works on."""
    until: int | None = None
    """When the first of its leases expires, in Unix milliseconds."""
    silent: int | None = None
    """Milliseconds for which its report has been overdue."""
    busy: dict[str, Busy] = {}
    """What it handles, by queue, if it reported that."""
    stops: str | None = None
    """The queue in which its supervisor looks for requests to replace it, if it has one."""
    seen: float = 0.0
    """When it was last seen, by the clock of the sample."""

    @property
    def holds(self) -> int:
        """The number of messages that it holds."""
        return sum(self.held.values())

    @property
    def longest(self) -> tuple[str, Busy] | None:
        """The queue and the delivery that it has handled for the longest time."""
        longest: tuple[str, Busy] | None = None
        earliest = float("inf")
        for queue, busy in self.busy.items():
            if busy.since is not None and busy.since < earliest:
                longest, earliest = (queue, busy), busy.since
        return longest


class Lateness(msgspec.Struct, frozen=True):
    """How late the deliveries of the last minute began, in milliseconds.

    A quantile is the upper bound of its bucket, so a maximum. `None`: later than the last bound,
    half an hour.
    """

    p50: float | None
    p99: float | None
    count: int
    """The number of deliveries."""

    @classmethod
    def of(cls, histogram: Histogram) -> "Lateness":
        """Return the quantiles of a histogram."""
        return cls(
            _finite_ms(histogram.quantile(0.5)),
            _finite_ms(histogram.quantile(0.99)),
            histogram.count,
        )


class Sample(msgspec.Struct, frozen=True):
    """A store at one time."""

    moment: float
    """Seconds of any clock; only differences count."""
    queues: dict[str, Counts]
    """The counts by queue."""
    workers: dict[str, Worker] = {}
    """The workers by holder."""
    lateness: dict[str, Lateness] = {}
    """By queue, if workers reported any."""
    partly: bool = False
    """Whether there are more held messages, or more reports of workers, than were read."""
    causes: dict[str, dict[str, float]] = {}
    """By queue: why these deliveries began late, in milliseconds by cause."""


class RecentWorkers:
    """Remembers workers for a minute.

    `bide worker` says that it is there even without messages; a program that claims by hand is only
    seen while it holds some.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        """The workers that were seen lately, by holder."""

    def see(self, sample: Sample) -> list[Worker]:
        """Return the workers that were seen lately, those that hold most first.

        Args:
            sample: the newest sample of the store.
        """
        for holder, worker in self._workers.items():
            if holder not in sample.workers:  # it holds nothing now
                worker.held, worker.until, worker.busy = {}, None, {}
        self._workers |= sample.workers
        self._workers = {
            holder: worker
            for holder, worker in self._workers.items()
            if sample.moment - worker.seen <= REMEMBER_SECONDS
        }
        return sorted(self._workers.values(), key=lambda worker: (-worker.holds, worker.holder))


class Rates(NamedTuple):
    """What happened in a queue between two samples, per second."""

    put: float
    done: float
    failed: float
    """Attempts that failed: retried, lapsed, or dead at once."""


def rates(before: Sample | None, after: Sample, queue: str) -> Rates | None:
    """Return what happened in a queue between two samples; `None` if that is unknown."""
    if before is None or queue not in before.queues or after.moment <= before.moment:
        return None
    seconds = after.moment - before.moment
    old, new = before.queues[queue].flow, after.queues[queue].flow
    if new.put < old.put:  # the store was deleted and made again
        return None
    failures_before = old.retried + old.died + old.lapsed
    failures = new.retried + new.died + new.lapsed
    return Rates(
        put=(new.put - old.put) / seconds,
        done=(new.acked - old.acked) / seconds,
        failed=(failures - failures_before) / seconds,
    )


def main_cause(causes: Mapping[str, float] | None) -> str:
    """Return the cause of most of the lateness, with its share; nothing if there was hardly any.

    Example:
        >>> main_cause({"backlog": 900.0, "timer": 100.0}), main_cause({"timer": 2.0})
        ('backlog 90%', '')
    """
    total = sum((causes or {}).values())
    if not causes or total < SLIGHT_LATENESS:
        return ""
    cause = max(causes, key=lambda name: causes[name])
    return f"{cause} {causes[cause] / total:.0%}"


def _ms(seconds: float) -> float:
    """Return milliseconds, without the noise of binary fractions."""
    return round(seconds * 1000, 3)


def _finite_ms(bound: float | None) -> float | None:
    """Return the bound of a quantile in milliseconds; `None`: there is none, or it is infinite."""
    return None if bound is None or bound == float("inf") else _ms(bound)


def _idle(busy: Busy) -> Busy:
    """Return a report about a queue of which the worker holds nothing now.

    The report may be some seconds old, and what it names has ended since.
    """
    return msgspec.structs.replace(busy, running=0, longest=None, since=None)


def take_sample(
    queues: Iterable[str],
    registers: Iterable[str],
    moment: float,
    now: int,
    wanted: Callable[[str], object] = lambda queue: True,
    present: Mapping[str, Collection[str]] | None = None,
) -> Steps[Sample]:
    """Count each queue, and find the workers.

    Args:
        queues: the queues to count.
        registers: the queues with reports of workers; see `bide.observing.heartbeat`.
        moment: the time of the sample, in seconds of any clock.
        now: the store's clock, in Unix milliseconds.
        wanted: tells whether the workers of a queue are wanted, even if it does not exist yet.
        present: other processes that are alive, and their queues.
    """
    counts_by_queue: dict[str, Counts] = {}
    workers: dict[str, Worker] = {}
    partly = False

    def add_worker(
        holder: str, works_on: Iterable[str], silent: int | None, busy: Mapping[str, Busy]
    ) -> None:
        wanted_queues = sorted(filter(wanted, works_on))
        if not wanted_queues:
            return
        worker = workers.setdefault(holder, Worker(holder, seen=moment - (silent or 0) / 1000))
        # One that holds messages, or has another report, was seen now: it is not silent.
        worker.silent = silent if worker.seen < moment else None
        worker.held = dict.fromkeys(wanted_queues, 0) | worker.held
        for name in wanted_queues:
            if name in busy:
                is_known = name in counts_by_queue and not partly
                holds_none = is_known and not worker.held[name]
                worker.busy[name] = _idle(busy[name]) if holds_none else busy[name]

    for queue in queues:
        counts: Counts = yield Count(queue)
        counts_by_queue[queue] = counts
        if counts.sizes.leased:
            page: Page = yield Scan(queue, "leased", limit=MOST_HELD)
            partly = partly or page.cursor is not None
            for message in page.messages:
                holder = message.holder or ""
                worker = workers.setdefault(holder, Worker(holder, seen=moment))
                worker.held[message.queue] = worker.held.get(message.queue, 0) + 1
                if message.until is not None:
                    worker.until = min(message.until, worker.until or message.until)
    for holder, works_on in (present or {}).items():
        add_worker(holder, works_on, silent=None, busy={})
    # The register of the whole store, whose name is the shortest, comes first: its reports decide
    # which supervisor may replace a worker.
    reports, has_more_reports = yield from recent_reports(sorted(registers, key=len), now)
    for register, report, silent in reports:
        for holder, works_on in report.workers.items():
            add_worker(holder, works_on, silent, report.busy)
            if report.supervised and holder in workers and workers[holder].stops is None:
                workers[holder].stops = InternalQueue.STOPS.beside(register)
    alive = [recent.report for recent in reports if recent.silent is None]
    lateness = {
        queue: Lateness.of(histogram)
        for queue, histogram in total(report.lateness for report in alive).items()
        if wanted(queue)
    }
    causes = {
        queue: {cause: _ms(seconds) for cause, seconds in by_cause.items()}
        for queue, by_cause in total(report.causes for report in alive).items()
        if wanted(queue)
    }
    return Sample(
        moment=moment,
        queues=counts_by_queue,
        workers=workers,
        lateness=lateness,
        partly=partly or has_more_reports,
        causes=causes,
    )


def sum_forecasts(forecasts: Sequence[Forecasted]) -> Forecasted:
    """Return how many messages of several queues fall due when.

    Args:
        forecasts: a forecast of each queue, at least one, all with the same buckets.

    Example:
        >>> sum_forecasts([Forecasted(0, 1, [2, 3], 4), Forecasted(0, 0, [10, 0], 5)])
        Forecasted(start=0, overdue=1, buckets=[12, 3], later=9)
    """
    first, *_ = forecasts
    columns = zip(*[forecast.buckets for forecast in forecasts], strict=True)
    return Forecasted(
        start=first.start,
        overdue=sum(forecast.overdue for forecast in forecasts),
        buckets=[sum(column) for column in columns],
        later=sum(forecast.later for forecast in forecasts),
    )
