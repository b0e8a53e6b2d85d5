"""Give OpenTelemetry the metrics. Imported once a provider of meters is set.

The API has no way to take an instrument back, so each provider gets each instrument once, and the
instruments show what is exported at the time of a reading.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import repeat
from threading import Lock
from typing import Any, Self

import msgspec
from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)
from opentelemetry.metrics import Histogram as HistogramInstrument

from bide.engines import losses
from bide.model.replies import Counts
from bide.observing.families import FLOWS, STORE, Family, Metric, store_metrics
from bide.observing.tally import BOUNDS, Histogram

NAMES = {
    "bide.delivery.duration": "messaging.process.duration",
    "bide.messages.claimed": "messaging.client.consumed.messages",
    "bide.http.request": "bide.http.request.time",  # here no unit is a part of a name
}
"""Names of families that have another one here, most by the conventions for messaging."""

OPERATIONS = {
    "messaging.process.duration": "handle",
    "messaging.client.consumed.messages": "claim",
}
"""What the conventions for messaging call the name of the operation, by the name of the metric."""

ATTRIBUTES = {
    "queue": "messaging.destination.name",
    "thread": "thread.name",
    "status": "http.response.status_code",
}
"""The attributes of labels for which there are conventions; others are `bide.` and the label."""

SUMMED = {"bide.delivery.lateness_cause"}
"""Histograms that are counters of seconds here: each value of a histogram costs the library 20 µs,
and of these the sum is what is read."""

LEAST_SHARE = 1e-6
"""How far above the lower bound of its bucket a value is at least, as a share of the bucket: a
value at that bound belongs to the bucket below."""

Labels = tuple[str, ...]
"""The values of the labels of a family."""

Figures = defaultdict[str, dict[Labels, Any]]
"""Numbers and histograms, by family and labels."""


class MetricsExport:
    """Shows the metrics of a program to OpenTelemetry while it is open.

    Use it as a context manager, or call `open` and `close`. Counters stay as they are after the
    end: what has happened since the last collection is exported with the next one.

    Args:
        counts: reads the queues; see `bide.observing.metrics.counts_of`.
        families: which other metrics there may be.
        more: returns these metrics, such as `worker_metrics`.
        now: returns Unix seconds.
        lost: returns the number of lost changes by queue; by default those that this process has
            seen.
        provider: by default the one that the program has set.
    """

    def __init__(
        self,
        counts: Callable[[], Mapping[str, Counts]],
        *,
        families: Iterable[Family] = (),
        more: Callable[[], Iterable[Metric]] = tuple,
        now: Callable[[], float] = time.time,
        lost: Callable[[], Mapping[str, int]] = losses.counted,
        provider: MeterProvider | None = None,
    ) -> None:
        self.of_store = partial(store_metrics, counts, now, lost)
        self.more = more
        self._families = (*STORE, *families)
        self._instruments = _instruments_of(provider or get_meter_provider())

    def open(self) -> None:
        """Show the metrics from now on."""
        self._instruments.show(self, self._families)

    def close(self) -> None:
        """Show them no more. The store is not read again: it may be away."""
        self._instruments.forget(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Instruments:
    """The instruments of one provider, and the reading that they show.

    A reading is made when an instrument is asked that has shown the last one: so each collection
    reads the store once, whatever the number of instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = Lock()
        self._exports: list[MetricsExport] = []
        """What is shown: the open exports."""
        self._families: dict[str, Family] = {}
        """What has an instrument, by name."""
        self._histograms: dict[str, HistogramInstrument] = {}
        """The instruments of histograms. They are given values, and others ask for them."""
        self._reading: Figures = defaultdict(dict)
        """The last reading."""
        self._unshown: set[str] = set()
        """The families whose instruments have not shown the last reading."""
        self._recorded: dict[tuple[str, Labels], Histogram] = {}
        """What the instruments of histograms have been given so far."""
        self._ended: Figures = defaultdict(dict)
        """What exports that were closed had counted."""
        self._stored: Figures = defaultdict(dict)
        """The counters of stores, as of the last time that these could be read."""
        self._first: dict[tuple[str, Labels], float] = {}
        """The first values of counters that a store keeps: instruments begin at 0, and a store may
        be years old."""

    def show(self, export: MetricsExport, families: Iterable[Family]) -> None:
        """Show an export, and make the instruments that are missing."""
        with self._lock:
            self._exports.append(export)
            new = [family for family in families if family.name not in self._families]
            self._families |= {family.name: family for family in new}
        # Without the lock: the library has one of its own, which it holds when it asks for values.
        for family in new:
            self._make_instrument(family)

    def forget(self, export: MetricsExport) -> None:
        """Show no more of an export than what it has counted."""
        with self._lock:
            self._exports.remove(export)
            for metric in export.more():
                if metric.family.type in ("counter", "histogram"):
                    _add(self._ended, metric)

    def _make_instrument(self, family: Family) -> None:
        """Make the instrument of a family."""
        name, meter = _name_of(family), self._meter
        if family.type == "histogram" and family.dotted not in SUMMED:
            self._histograms[family.name] = meter.create_histogram(
                name, family.unit, family.text, explicit_bucket_boundaries_advisory=BOUNDS
            )
            return
        create: Callable[..., object] = {
            "counter": meter.create_observable_counter,
            "histogram": meter.create_observable_counter,  # of its sum
            "sum": meter.create_observable_up_down_counter,
            "gauge": meter.create_observable_gauge,
        }[family.type]
        create(name, [partial(self._observe, family)], family.unit, family.text)

    def _observe(self, family: Family, _options: CallbackOptions) -> list[Observation]:
        """Return the values of a family. The library calls this at each collection."""
        with self._lock:
            is_shown = family.name not in self._unshown
            if is_shown:
                self._unshown = set(self._families)
            self._unshown.discard(family.name)
            if is_shown:
                # If this raises, one instrument tells of it, and the others show nothing.
                self._reading = defaultdict(dict)
                self._reading = self._read()
            return [
                Observation(
                    value.sum if isinstance(value, Histogram) else value,
                    _attributes_of(family, labels),
                )
                for labels, value in self._reading[family.name].items()
            ]

    def _read(self) -> Figures:
        """Return a new reading, and give histograms the values that are new."""
        reading: Figures = defaultdict(dict)
        for export in self._exports:
            for metric in export.of_store():  # two exports may be of one store: nothing adds up
                is_counter = metric.family.type == "counter"
                figures = self._stored if is_counter else reading
                for sample in metric.samples:
                    labels, value = tuple(sample.labels), sample.value
                    if metric.family in FLOWS:
                        value -= self._before(metric.family, labels, value)
                    figures[metric.family.name][labels] = value
        for name, values in (*self._stored.items(), *self._ended.items()):
            reading[name] |= values
        for export in self._exports:
            for metric in export.more():
                _add(reading, metric)
        for name, instrument in self._histograms.items():
            for labels, histogram in reading[name].items():
                self._record(instrument, self._families[name], labels, histogram)
        return reading

    def _before(self, family: Family, labels: Labels, value: float) -> float:
        """Return the value that a counter of a store had when it was first read."""
        key = family.name, labels
        if value < self._first.setdefault(key, value):  # the store was emptied, or replaced
            self._first[key] = 0
        return self._first[key]

    def _record(
        self,
        instrument: HistogramInstrument,
        family: Family,
        labels: Labels,
        histogram: Histogram,
    ) -> None:
        """Give the instrument of a histogram the values that it has not been given yet."""
        key = family.name, labels
        attributes = _attributes_of(family, labels)
        # First a copy: another thread may add values meanwhile.
        histogram = msgspec.structs.replace(histogram, buckets=[*histogram.buckets])
        for value in values_of(histogram.minus(self._recorded.get(key, Histogram()))):
            instrument.record(value, attributes)
        self._recorded[key] = histogram


@lru_cache(maxsize=8)
def _instruments_of(provider: MeterProvider) -> _Instruments:
    return _Instruments(provider.get_meter("bide", version("bide")))


def _add(figures: Figures, metric: Metric) -> None:
    """Add the values of a metric to figures."""
    values = figures[metric.family.name]
    for sample in metric.samples:
        labels, value = tuple(sample.labels), sample.value
        before = values.get(labels)
        if before is None:
            values[labels] = value
        elif isinstance(value, Histogram):
            values[labels] = before.plus(value)
        elif metric.family.type == "gauge":
            values[labels] = max(before, value)
        else:
            values[labels] = before + value


def _name_of(family: Family) -> str:
    return NAMES.get(family.dotted, family.dotted)


def _attributes_of(family: Family, labels: Labels) -> dict[str, str]:
    """Return the attributes of a value."""
    attributes = {
        ATTRIBUTES.get(label, f"bide.{label}"): value
        for label, value in zip(family.labels.split(), labels, strict=True)
    }
    if operation := OPERATIONS.get(_name_of(family)):
        attributes |= {"messaging.system": "bide", "messaging.operation.name": operation}
    return attributes


def values_of(histogram: Histogram) -> Iterator[float]:
    """Yield values that have the buckets, and the sum, of a histogram.

    The instruments of the library take single values. Those of a bucket are told as equal.

    Example:
        >>> late = Histogram()
        >>> late.observe(0.004, 0.004, 3, 7200)
        >>> list(values_of(late))
        [0.00375, 0.00375, 3.75, 7199.2505]
    """
    lower = (0.0, *BOUNDS)
    widths = [upper - bound for bound, upper in zip(lower, BOUNDS, strict=False)]
    counts = histogram.buckets
    beyond = counts[-1]
    """How many values are above all bounds."""
    least = sum(count * bound for count, bound in zip(counts, lower, strict=True))
    room = sum(count * width for count, width in zip(counts, widths, strict=False))
    share = (histogram.sum - least) / room if room else 0.0
    share = min(max(share, LEAST_SHARE), 0.5 if beyond else 1.0)
    for count, bound, width in zip(counts, lower, widths, strict=False):
        yield from repeat(bound + share * width, count)
    if beyond:
        last = BOUNDS[-1]
        above = (histogram.sum - least - share * room) / beyond
        yield from repeat(max(last + above, last * (1 + LEAST_SHARE)), beyond)
