"""What Prometheus reads of push: what this process has sent, how late, and how receivers fare."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from bide.server.push.circuit import State
from bide.server.push.deliveries import CLASSES
from bide.telemetry.tally import OUTCOMES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from bide.server.push.outlet import Outlet

__all__ = ["push_metrics"]

STATES: tuple[State, ...] = get_args(State)


def push_metrics(outlets: "Mapping[str, Outlet]", process: str, now: int) -> "Iterator[Metric]":
    """Yield the metrics of outlets.

    Args:
        outlets: by the names that their subscriptions have for whoever asks.
        process: which process tells it.
        now: the moment, in Unix milliseconds.
    """
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    labels = ["process", "subscription"]
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
    for name, outlet in sorted(outlets.items()):
        mine, tally = [process, name], outlet.station.current()
        told = outlet.current()
        for answer in CLASSES:
            requests.add_metric([*mine, answer], told.answers.get(answer, 0))
        for outcome in OUTCOMES:
            ended.add_metric([*mine, outcome], tally.outcomes.get(outcome, 0))
        running.add_metric(mine, told.running)
        state = outlet.circuit.state(now)
        for one in STATES:
            circuit.add_metric([*mine, one], one == state)
        paused.add_metric(mine, outlet.subscription.paused)
        lateness.add_metric(mine, tally.lateness.cumulative(), tally.lateness.sum)
        duration.add_metric(mine, tally.duration.cumulative(), tally.duration.sum)
    yield from (requests, ended, running, circuit, paused, lateness, duration)
