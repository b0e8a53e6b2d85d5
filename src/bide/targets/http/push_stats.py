"""The figures of push in one process, which add up with those of others."""

from collections.abc import Mapping

from bide.observing.tally import Stats, Tally
from bide.targets.http.deliveries import Deliveries
from bide.targets.intake_stats import IntakeStats

__all__ = ["PushStats"]


class PushStats(Stats):
    """The figures of push, by the keys of the subscriptions."""

    tallies: Mapping[str, Tally] = {}
    """Lateness, duration and outcomes of deliveries."""
    deliveries: Mapping[str, Deliveries] = {}
    """The answers of receivers."""
    taken: Mapping[str, IntakeStats] = {}
    """What intakes took into the store, by exchange."""
