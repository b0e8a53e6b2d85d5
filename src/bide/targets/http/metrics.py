"""The Prometheus metrics of push: deliveries, lateness, answers and circuits."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from bide.observing.tally import OUTCOMES, Tally
from bide.targets.http.circuit import State
from bide.targets.http.deliveries import CLASSES, Deliveries
from bide.targets.http.push_stats import PushStats
from bide.targets.http.survey import Known
from bide.targets.intake_stats import intake_metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["push_metrics"]

STATES: tuple[State, ...] = get_args(State)


def push_metrics(known: Mapping[str, Known], sent: PushStats, now: int) -> "Iterator[Metric]":
    """Yield the metrics of subscriptions.

    Args:
        known: the subscriptions, by the names that the reader knows them by.
        sent: the figures of these and other subscriptions.
        now: the time in Unix milliseconds.
    """
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    labels = ["subscription"]
    requests = CounterMetricFamily(
        "bide_push_requests", "Requests to receivers, by the first digit of the answer's status; "
        "none: nothing that could be read came back.", labels=[*labels, "answer"],
    )  # fmt: skip
    ended = CounterMetricFamily(
        "bide_push_deliveries", "Deliveries that have ended, by how.", labels=[*labels, "outcome"]
    )
    running = GaugeMetricFamily("bide_push_in_flight", "Requests under way.", labels=labels)
    circuit = GaugeMetricFamily(
        "bide_push_circuit", "1 for the state that the circuit is in: open, and the receiver is "
        "left alone; half-open, and it is probed.", labels=[*labels, "state"],
    )  # fmt: skip
    paused = GaugeMetricFamily("bide_push_paused", "Whether nothing is sent.", labels=labels)
    lateness = HistogramMetricFamily(
        "bide_push_lateness_seconds", "From the due moment of a message to the start of its "
        "request.", labels=labels,
    )  # fmt: skip
    duration = HistogramMetricFamily(
        "bide_push_duration_seconds", "How long requests took.", labels=labels
    )
    for name, one in sorted(known.items()):
        mine, key = [name], one.subscription.key
        tally, told = sent.tallies.get(key) or Tally(), sent.deliveries.get(key) or Deliveries()
        for answer in CLASSES:
            requests.add_metric([*mine, answer], told.answers.get(answer, 0))
        for outcome in OUTCOMES:
            ended.add_metric([*mine, outcome], tally.outcomes.get(outcome, 0))
        running.add_metric(mine, told.running)
        found = one.circuit.state(now)
        for state in STATES:
            circuit.add_metric([*mine, state], state == found)
        paused.add_metric(mine, one.subscription.paused)
        lateness.add_metric(mine, tally.lateness.cumulative(), tally.lateness.sum)
        duration.add_metric(mine, tally.duration.cumulative(), tally.duration.sum)
    yield from intake_metrics(sent.taken)
    yield from (requests, ended, running, circuit, paused, lateness, duration)
