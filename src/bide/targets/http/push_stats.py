"""The figures of push in one process, which add up with those of others."""

from collections.abc import Mapping

import msgspec

from bide.observing.tally import Tally, total
from bide.targets.http.deliveries import Deliveries
from bide.targets.intake_stats import IntakeStats

__all__ = ["PushStats"]


class PushStats(msgspec.Struct):
    """The figures of push, by the keys of the subscriptions."""

    tallies: Mapping[str, Tally] = {}
    """Lateness, duration and outcomes of deliveries."""
    deliveries: Mapping[str, Deliveries] = {}
    """The answers of receivers."""
    taken: Mapping[str, IntakeStats] = {}
    """What intakes took into the store, by exchange."""

    def plus(self, other: "PushStats") -> "PushStats":
        """Return the sum of both."""
        deliveries = dict(self.deliveries)
        for key, told in other.deliveries.items():
            known = deliveries.get(key)
            deliveries[key] = told if known is None else known.plus(told)
        taken = dict(self.taken)
        for exchange, one in other.taken.items():
            taken[exchange] = taken.get(exchange, IntakeStats()).plus(one)
        return PushStats(total([self.tallies, other.tallies]), deliveries, taken)

    def ceased(self) -> "PushStats":
        """Return the figures without what is running, once push has ended."""
        return PushStats(
            {key: tally.ceased() for key, tally in self.tallies.items()},
            {key: told.ceased() for key, told in self.deliveries.items()},
            {exchange: one.ceased() for exchange, one in self.taken.items()},
        )
