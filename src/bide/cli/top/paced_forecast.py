"""The forecast of `bide top`: of all queues together, and not read too often."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bide.clock import SYSTEM_CLOCK, Clock
from bide.model.commands import Forecast
from bide.model.errors import StoreError
from bide.model.replies import Counts, Forecasted
from bide.observing.sample import together

BUCKET = 3_600_000
"""Milliseconds. Stores have counters of whole hours, so the cost does not grow with the days."""

BUCKETS = 24

QUEUES = 100
"""How many queues are asked: those with the most delayed messages."""

EVERY = 5.0
"""Seconds between two forecasts, at least."""

PAUSE = 20
"""The next forecast waits at least so many times as long as the last one took."""

_BLOCKS = "▁▂▃▄▅▆▇█"


class Ahead(NamedTuple):
    """What falls due in the next hours."""

    found: Forecasted | None
    """`None`: the store did not answer."""
    left_out: int = 0
    """How many queues with delayed messages were not asked."""
    problem: str = ""
    """Why the store did not answer."""


class PacedForecast:
    """Reads forecasts at a bounded rate, however often it is asked for them.

    Args:
        ask: executes a command.
        clock: tells when the next forecast may be read.
    """

    def __init__(self, ask: Callable[[Forecast], Forecasted], clock: Clock = SYSTEM_CLOCK) -> None:
        self._ask = ask
        self._clock = clock
        self._next = clock.monotonic()
        self._last: Ahead | None = None

    def of(self, queues: Mapping[str, Counts]) -> Ahead | None:
        """Return the last forecast, or a new one if it is time; `None`: nothing is delayed.

        Args:
            queues: the queues with their counts.
        """
        delayed = {name: one.sizes.delayed for name, one in queues.items() if one.sizes.delayed}
        if not delayed:
            return None
        began = self._clock.monotonic()
        if self._last is None or began >= self._next:
            self._last = self._read(sorted(delayed, key=lambda name: (-delayed[name], name)))
            ended = self._clock.monotonic()
            self._next = ended + max(EVERY, PAUSE * (ended - began))
        return self._last

    def _read(self, names: Sequence[str]) -> Ahead:
        try:
            found = [self._ask(Forecast(name, BUCKET, BUCKETS)) for name in names[:QUEUES]]
        except StoreError as error:  # the table is shown without it
            return Ahead(None, problem=str(error))
        return Ahead(together(found), max(0, len(names) - QUEUES))


def sparkline(counts: Sequence[int]) -> str:
    """Return counts as a line of blocks; any count above 0 is visible.

    Example:
        >>> sparkline([0, 1, 500, 1000])
        '·▁▄█'
    """
    most = max(counts, default=0)
    return "".join(
        _BLOCKS[max(1, round(count / most * len(_BLOCKS))) - 1] if count else "·"
        for count in counts
    )
