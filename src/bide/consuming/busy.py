"""How busy a consumer is, for heartbeats."""

from collections.abc import Iterable

from bide.clock import Clock
from bide.consuming.handling import Handling
from bide.observing.heartbeat import Busy
from bide.observing.tally import Longest


def longest_of(running: Iterable[Handling], now: float) -> Longest:
    """Return how long the first of some deliveries has run, in the order of their start."""
    first = next(iter(running), None)
    return Longest() if first is None else Longest(round(now - first.began, 3))


def busy_of(running: Iterable[Handling], places: int, clock: Clock) -> Busy:
    """Return what a consumer handles now.

    Args:
        running: its deliveries in the order of their start.
        places: how many it handles at a time.
        clock: of the consumer.
    """
    handled = list(running)
    found = Busy(places, len(handled))
    if handled:
        longest = handled[0]
        lasting = clock.monotonic() - longest.began
        found.longest, found.since = longest.id, round(clock.now() - lasting * 1000)
    return found
