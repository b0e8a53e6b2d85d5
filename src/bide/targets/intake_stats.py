"""What has become of the messages that an intake took from elsewhere, in numbers that add up."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from bide.observing.metrics import Family
from bide.observing.tally import Stats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

COUNTED = ("stored", "repeated", "renamed", "refused")


class IntakeStats(Stats):
    """What the intakes of one exchange have done.

    Example:
        >>> IntakeStats(stored=2, connected=1).plus(IntakeStats(stored=1, connected=1).ceased())
        IntakeStats(stored=3, repeated=0, renamed=0, refused=0, connected=1, waiting=0)
    """

    CURRENT = "connected", "waiting"

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


FAMILIES = (
    Family("counter", "bide_rabbitmq_messages", "Messages that came from RabbitMQ, by what became "
           "of them: stored; repeated, known already; renamed, stored under an id of their own; "
           "refused, published to the dead-letter exchange.", "exchange outcome",
           lambda one: {outcome: getattr(one, outcome) for outcome in COUNTED}),
    Family("gauge", "bide_rabbitmq_connected", "Intakes that are connected.", "exchange",
           lambda one: one.connected),
    Family("gauge", "bide_rabbitmq_waiting", "Intakes that wait for the store.", "exchange",
           lambda one: one.waiting),
)  # fmt: skip


def intake_metrics(taken: Mapping[str, IntakeStats]) -> "Iterator[Metric]":
    """Yield the metrics of intakes, by exchange."""
    for family in FAMILIES if taken else ():
        yield family.of(dict(sorted(taken.items())))
