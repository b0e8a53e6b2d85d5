"""What one process has sent to receivers, in numbers that add up with those of others."""

from collections.abc import Mapping

import msgspec

from bide.observing.tally import Tally, added
from bide.targets.http.deliveries import Deliveries
from bide.targets.rabbitmq.intake_stats import IntakeStats

__all__ = ["PushStats"]


class PushStats(msgspec.Struct):
    """What came of what was sent, by the keys of the subscriptions."""

    tallies: Mapping[str, Tally] = {}
    """How late messages were sent, how long that took, and what has become of them."""
    deliveries: Mapping[str, Deliveries] = {}
    """What receivers have answered."""
    taken: Mapping[str, IntakeStats] = {}
    """What came from RabbitMQ, by exchange."""

    def plus(self, other: "PushStats") -> "PushStats":
        """Return both together."""
        deliveries = dict(self.deliveries)
        for key, told in other.deliveries.items():
            known = deliveries.get(key)
            deliveries[key] = told if known is None else known.plus(told)
        taken = dict(self.taken)
        for exchange, one in other.taken.items():
            taken[exchange] = taken.get(exchange, IntakeStats()).plus(one)
        return PushStats(added([self.tallies, other.tallies]), deliveries, taken)

    def ceased(self) -> "PushStats":
        """Return what stays true once nothing is sent any more."""
        return PushStats(
            {key: tally.ceased() for key, tally in self.tallies.items()},
            {key: told.ceased() for key, told in self.deliveries.items()},
            {exchange: one.ceased() for exchange, one in self.taken.items()},
        )
