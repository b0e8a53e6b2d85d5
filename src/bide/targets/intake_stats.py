"""What has become of the messages that an intake took from elsewhere, in numbers that add up."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["COUNTED", "IntakeStats", "intake_metrics"]

COUNTED = ("stored", "repeated", "renamed", "refused")


class IntakeStats(msgspec.Struct):
    """What the intakes of one exchange have done.

    Example:
        >>> IntakeStats(stored=2, connected=1).plus(IntakeStats(stored=1, connected=1).ceased())
        IntakeStats(stored=3, repeated=0, renamed=0, refused=0, connected=1, waiting=0)
    """

    stored: int = 0
    repeated: int = 0
    """Were stored already: they came again, since the broker had not seen their acknowledgement."""
    renamed: int = 0
    """Had a `message_id` that another message has: they are stored under ids of their own."""
    refused: int = 0
    """Went to the dead-letter exchange."""
    connected: int = 0
    """How many intakes are connected."""
    waiting: int = 0
    """How many intakes wait for a store that is full or away."""

    def plus(self, other: "IntakeStats") -> "IntakeStats":
        """Return both together."""
        mine, its = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return IntakeStats(*map(sum, zip(mine, its, strict=True)))

    def ceased(self) -> "IntakeStats":
        """Return what stays true once nothing is taken any more."""
        return msgspec.structs.replace(self, connected=0, waiting=0)


def intake_metrics(taken: Mapping[str, IntakeStats]) -> "Iterator[Metric]":
    """Yield the metrics of intakes, by exchange."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    messages = CounterMetricFamily(
        "bide_rabbitmq_messages", "Messages that came from RabbitMQ, by what became of them: "
        "stored; repeated, known already; renamed, stored under an id of their own; refused, "
        "published to the dead-letter exchange.", labels=["exchange", "outcome"],
    )  # fmt: skip
    connected = GaugeMetricFamily(
        "bide_rabbitmq_connected", "Intakes that are connected.", labels=["exchange"]
    )
    waiting = GaugeMetricFamily(
        "bide_rabbitmq_waiting", "Intakes that wait for the store.", labels=["exchange"]
    )
    for exchange, one in sorted(taken.items()):
        for outcome in COUNTED:
            messages.add_metric([exchange, outcome], getattr(one, outcome))
        connected.add_metric([exchange], one.connected)
        waiting.add_metric([exchange], one.waiting)
    if taken:
        yield from (messages, connected, waiting)
