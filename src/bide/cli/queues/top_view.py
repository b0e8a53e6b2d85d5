"""What `bide top` shows: as lines in a pipe, and as objects for programs."""

from typing import Any, NamedTuple

from bide.cli.output import Output
from bide.cli.queue_output import facts_of
from bide.cli.times import iso
from bide.model.replies import FLOW, SIZES, Forecasted
from bide.observing.sample import Sample, Worker, rates

BUCKET = 3_600_000
"""Milliseconds. Stores have counters of whole hours, so the cost does not grow with the days."""

BUCKETS = 24


class Ahead(NamedTuple):
    """What falls due in the next hours."""

    forecast: Forecasted
    left_out: int = 0
    """How many queues with delayed messages were not asked."""


class TopView(NamedTuple):
    """What `bide top` shows."""

    sample: Sample
    before: Sample | None
    """The sample before this one, for the rates."""
    workers: list[Worker]
    """The workers of this sample and of the last minute, those that hold most first."""
    now: int
    """The store's clock, in Unix milliseconds."""
    ahead: Ahead | None = None
    """What falls due when; `None`: nothing is delayed."""


def as_facts(view: TopView) -> dict[str, Any]:
    """Return a view for programs. Times and lengths are milliseconds, rates are per second."""
    sample, now = view.sample, view.now
    queues = []
    for name, counts in sample.queues.items():
        facts = {"queue": name, **facts_of(counts), "late": late_by(counts.oldest, now)}
        if (rate := rates(view.before, sample, name)) is not None:
            facts["rates"] = {verb: round(value, 3) for verb, value in rate._asdict().items()}
        if name in sample.lateness:
            facts["lateness"] = sample.lateness[name]
        if name in sample.causes:
            facts["causes"] = sample.causes[name]
        queues.append(facts)
    workers = [
        {
            "holder": worker.holder,
            "holds": worker.holds,
            "queues": worker.held,
            "until": worker.until,
            "seen": round((sample.moment - worker.seen) * 1000),
            "silent": worker.silent,
            "busy": worker.busy,
        }
        for worker in view.workers
    ]
    facts_of_view: dict[str, Any] = {"now": now, "queues": queues, "workers": workers}
    if view.ahead is not None:
        forecast = view.ahead.forecast
        facts_of_view["forecast"] = {
            "start": forecast.start,
            "bucket": BUCKET,
            "overdue": forecast.overdue,
            "counts": forecast.buckets,
            "later": forecast.later,
            "left_out": view.ahead.left_out,
        }
    return facts_of_view


def print_rows(out: Output, view: TopView) -> None:
    """Print a view as lines with tabs: queues first, then workers, then the forecast."""
    for name, counts in view.sample.queues.items():
        sizes = (getattr(counts.sizes, size) for size in SIZES)
        flow = (getattr(counts.flow, counter) for counter in FLOW)
        lateness = view.sample.lateness.get(name)
        quantiles = ("", "")
        if lateness is not None:
            quantiles = _quantile(lateness.p50), _quantile(lateness.p99)
        out.row("queue", name, *sizes, late_by(counts.oldest, view.now), *flow, *quantiles)
    for worker in view.workers:
        held = ",".join(f"{queue}:{count}" for queue, count in sorted(worker.held.items()))
        out.row("worker", worker.holder, worker.holds, held)
    if view.ahead is not None:
        forecast = view.ahead.forecast
        buckets = ",".join(map(str, forecast.buckets))
        out.row("forecast", iso(forecast.start), forecast.overdue, buckets, forecast.later)


def late_by(oldest: int | None, now: int) -> int:
    """Return for how many milliseconds the oldest due message has waited."""
    return 0 if oldest is None else max(0, now - oldest)


def _quantile(ms: float | None) -> str:
    """Return a quantile for programs; `None`: it is above the last bound of the histogram."""
    return "inf" if ms is None else f"{ms:.12g}"
