"""What one process has done on one queue, in numbers that add up with those of others."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bide.model.errors import InvalidArgument

__all__ = ["OUTCOMES", "Histogram", "Tally", "added"]

BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0,
)  # fmt: skip
"""Upper bounds of the buckets in seconds, for lateness and duration alike."""

MOST = 1 << 53
"""The largest number that a histogram from elsewhere may have."""

OUTCOMES = ("acked", "discarded", "retried", "dead", "released", "lost")
"""How a delivery ends: done, no longer wanted, to be tried again, a dead letter, handed back
untouched, or over without us because the lease was."""


class Histogram(msgspec.Struct, gc=False, array_like=True):
    """How many values fell between which bounds.

    Example:
        >>> lateness = Histogram()
        >>> lateness.observe(0.004)
        >>> lateness.observe(7200)
        >>> lateness.count, lateness.quantile(0.5)
        (2, 0.005)
    """

    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value, in seconds."""
        self.buckets[bisect_left(BOUNDS, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count values, in seconds."""
        buckets, first, low = self.buckets, BOUNDS[0], 0
        for value in values:
            if value <= first:
                low += 1
            else:
                buckets[bisect_left(BOUNDS, value)] += 1
        buckets[0] += low
        self.sum += sum(values)

    def check(self) -> None:
        """Check a histogram that came from elsewhere.

        Raises:
            InvalidArgument: it has other buckets than this version, or an impossible number.
        """
        if len(self.buckets) != len(BOUNDS) + 1:
            raise InvalidArgument(
                f"a histogram has {len(self.buckets):,} buckets, not {len(BOUNDS) + 1}"
            )
        if not all(0 <= count <= MOST for count in self.buckets) or not abs(self.sum) <= MOST:
            raise InvalidArgument(f"a histogram has a number below 0 or above {MOST:,}")

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.buckets)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return upper bounds, as Prometheus writes them, with how many values are within."""
        found, total = [], 0
        for bound, count in zip((*BOUNDS, None), self.buckets, strict=True):
            total += count
            found.append(("+Inf" if bound is None else str(bound), total))
        return found

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket that holds this quantile; infinity past the last.

        `None` when nothing was counted.
        """
        wanted, total = share * self.count, 0
        for bound, count in zip((*BOUNDS, float("inf")), self.buckets, strict=True):
            total += count
            if total and total >= wanted:
                return bound
        return None

    def plus(self, other: "Histogram") -> "Histogram":
        """Return both together."""
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Histogram([mine + theirs for mine, theirs in pairs], self.sum + other.sum)

    def minus(self, earlier: "Histogram") -> "Histogram":
        """Return what has come since an earlier state of this one."""
        pairs = zip(self.buckets, earlier.buckets, strict=True)
        return Histogram([now - then for now, then in pairs], self.sum - earlier.sum)


class Tally(msgspec.Struct, gc=False):
    """What was done on a queue since the process began; `running` and `waiting` are of now."""

    claims: int = 0
    """How many claims brought messages."""
    claimed: int = 0
    """How many messages they brought."""
    outcomes: dict[str, int] = {}
    """How deliveries have ended: see `OUTCOMES`."""
    lateness: Histogram = msgspec.field(default_factory=Histogram)
    """From the due moment to the start of the handler."""
    duration: Histogram = msgspec.field(default_factory=Histogram)
    """How long handlers ran."""
    running: int = 0
    waiting: int = 0
    """Claimed, and waiting for a place."""

    def ended(self, outcome: str, count: int = 1) -> None:
        """Count deliveries that have ended in the same way."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def plus(self, other: "Tally") -> "Tally":
        """Return both together."""
        names = self.outcomes | other.outcomes
        return Tally(
            self.claims + other.claims,
            self.claimed + other.claimed,
            {name: self.outcomes.get(name, 0) + other.outcomes.get(name, 0) for name in names},
            self.lateness.plus(other.lateness),
            self.duration.plus(other.duration),
            self.running + other.running,
            self.waiting + other.waiting,
        )

    def ceased(self) -> "Tally":
        """Return what stays true once the process has ended."""
        return msgspec.structs.replace(self, running=0, waiting=0)


def added(tallies: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return the tallies of several processes together, by queue."""
    together: dict[str, Tally] = {}
    for one in tallies:
        for queue, tally in one.items():
            known = together.get(queue)
            together[queue] = tally if known is None else known.plus(tally)
    return together
