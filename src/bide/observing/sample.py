"""Samples of a store: counts of queues, workers, how late deliveries are; sums of forecasts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Scan
from bide.model.internal_queues import InternalQueue
from bide.model.replies import Counts, Forecasted, Page
from bide.observing.heartbeat import REMEMBER, Busy, recent_reports
from bide.observing.tally import Histogram, total

HELD_MOST = 1_000
"""The maximum number of held messages of a queue that a sample reads."""

SLIGHT = 100.0
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
        lasting = [(name, busy) for name, busy in self.busy.items() if busy.since is not None]
        return min(lasting, key=lambda pair: pair[1].since or 0, default=None)


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
        bounds = (histogram.quantile(share) for share in (0.5, 0.99))
        median, most = (
            None if bound is None or bound == float("inf") else _ms(bound) for bound in bounds
        )
        return cls(median, most, histogram.count)


class Sample(msgspec.Struct, frozen=True):
    """A store at one time."""

    moment: float
    """Seconds of any clock; only differences count."""
    queues: dict[str, Counts]
    workers: dict[str, Worker] = {}
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
        self._known: dict[str, Worker] = {}

    def see(self, sample: Sample) -> list[Worker]:
        """Return the workers that were seen lately, those that hold most first."""
        for name, worker in self._known.items():
            if name not in sample.workers:
                worker.held, worker.until, worker.busy = {}, None, {}
        self._known |= sample.workers
        self._known = {
            name: worker
            for name, worker in self._known.items()
            if sample.moment - worker.seen <= REMEMBER
        }
        return sorted(self._known.values(), key=lambda worker: (-worker.holds, worker.holder))


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
    failed = (new.retried + new.died + new.lapsed) - (old.retried + old.died + old.lapsed)
    return Rates((new.put - old.put) / seconds, (new.acked - old.acked) / seconds, failed / seconds)


def main_cause(causes: Mapping[str, float] | None) -> str:
    """Return the cause of most of the lateness, with its share; nothing if there was hardly any.

    Example:
        >>> main_cause({"backlog": 900.0, "timer": 100.0}), main_cause({"timer": 2.0})
        ('backlog 90%', '')
    """
    total = sum((causes or {}).values())
    if not causes or total < SLIGHT:
        return ""
    cause = max(causes, key=lambda name: causes[name])
    return f"{cause} {causes[cause] / total:.0%}"


def _ms(seconds: float) -> float:
    """Return milliseconds, without the noise of binary fractions."""
    return round(seconds * 1000, 3)


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
        moment: the time of the sample.
        now: the store's clock, in Unix milliseconds.
        wanted: tells whether the workers of a queue are wanted, even if it does not exist yet.
        present: other processes that are alive, and their queues.
    """
    counts_by_queue: dict[str, Counts] = {}
    workers: dict[str, Worker] = {}
    partly = False

    def see(
        holder: str, works_on: Iterable[str], silent: int | None, busy: Mapping[str, Busy]
    ) -> None:
        if not (named := sorted(filter(wanted, works_on))):
            return  # it works on other queues
        worker = workers.setdefault(holder, Worker(holder, seen=moment - (silent or 0) / 1000))
        worker.silent = silent if worker.seen < moment else None
        worker.held = dict.fromkeys(named, 0) | worker.held
        worker.busy |= {name: busy[name] for name in named if name in busy}

    for queue in queues:
        counts = counts_by_queue[queue] = yield Count(queue)
        if counts.sizes.leased:
            page: Page = yield Scan(queue, "leased", limit=HELD_MOST)
            partly = partly or page.cursor is not None
            for message in page.messages:
                name = message.holder or ""
                worker = workers.setdefault(name, Worker(name, seen=moment))
                worker.held[message.queue] = worker.held.get(message.queue, 0) + 1
                if message.until is not None:
                    worker.until = min(message.until, worker.until or message.until)
    for holder, works_on in (present or {}).items():
        see(holder, works_on, None, {})
    # That of the whole store first.
    reports, more = yield from recent_reports(sorted(registers, key=len), now)
    for register, report, silent in reports:
        for holder, works_on in report.workers.items():
            see(holder, works_on, silent, report.busy)
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
    return Sample(moment, counts_by_queue, workers, lateness, partly or more, causes)


def sum_forecasts(forecasts: Sequence[Forecasted]) -> Forecasted:
    """Return how many messages of several queues fall due when.

    Args:
        forecasts: a forecast of each queue, at least one, all with the same buckets.

    Example:
        >>> sum_forecasts([Forecasted(0, 1, [2, 3], 4), Forecasted(0, 0, [10, 0], 5)])
        Forecasted(start=0, overdue=1, buckets=[12, 3], later=9)
    """
    return Forecasted(
        forecasts[0].start,
        sum(forecast.overdue for forecast in forecasts),
        [sum(column) for column in zip(*[forecast.buckets for forecast in forecasts], strict=True)],
        sum(forecast.later for forecast in forecasts),
    )
