"""The Prometheus metrics of push: deliveries, lateness, answers and circuits."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from bide.observing.metrics import Family, by_outcome
from bide.observing.tally import Tally
from bide.targets.http.circuit import State
from bide.targets.http.push_stats import CLASSES, Deliveries, PushStats
from bide.targets.http.survey import Known
from bide.targets.intake_stats import intake_metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

DELIVERIES = (
    Family("counter", "bide_push_deliveries", "Deliveries that have ended, by how.",
           "subscription outcome", by_outcome),
    Family("histogram", "bide_push_lateness_seconds", "From the due moment of a message to the "
           "start of its request.", "subscription", lambda tally: tally.lateness),
    Family("histogram", "bide_push_duration_seconds", "How long requests took.", "subscription",
           lambda tally: tally.duration),
)  # fmt: skip
REQUESTS = (
    Family("counter", "bide_push_requests", "Requests to receivers, by the first digit of the "
           "answer's status; none: nothing that could be read came back.", "subscription answer",
           lambda told: dict.fromkeys(CLASSES, 0) | told.answers),
    Family("gauge", "bide_push_in_flight", "Requests under way.", "subscription",
           lambda told: told.running),
)  # fmt: skip
CIRCUIT = Family(
    "gauge", "bide_push_circuit", "1 for the state that the circuit is in: open, and the receiver "
    "is left alone; half-open, and it is probed.", "subscription state",
    lambda found: {state: state == found for state in get_args(State)},
)  # fmt: skip
PAUSED = Family("gauge", "bide_push_paused", "Whether nothing is sent.", "subscription")


def push_metrics(known: Mapping[str, Known], sent: PushStats, now: int) -> "Iterator[Metric]":
    """Yield the metrics of subscriptions.

    Args:
        known: the subscriptions, by the names that the reader knows them by.
        sent: the figures of these and other subscriptions.
        now: the time in Unix milliseconds.
    """
    known = dict(sorted(known.items()))
    keys = {name: one.subscription.key for name, one in known.items()}
    yield from intake_metrics(sent.taken)
    for family in DELIVERIES:
        yield family.of({name: sent.tallies.get(key) or Tally() for name, key in keys.items()})
    for family in REQUESTS:
        yield family.of(
            {name: sent.deliveries.get(key) or Deliveries() for name, key in keys.items()}
        )
    yield CIRCUIT.of({name: one.circuit.state(now) for name, one in known.items()})
    yield PAUSED.of({name: one.subscription.paused for name, one in known.items()})
