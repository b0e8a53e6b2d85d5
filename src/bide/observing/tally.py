"""What one process did on one queue, in numbers that can be added."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

import msgspec

BOUNDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)
"""Upper bounds of the buckets in seconds, for lateness and duration."""

_LIMITS = (*BOUNDS, float("inf"))
"""The upper bounds of all buckets."""

MOST = 1 << 53
"""The largest number that a histogram from another process may have."""

Result = Literal["acked", "discarded", "retried", "dead", "released", "cancelled", "lost"]
"""How a delivery ends: done, no longer wanted, failed and retried, dead, returned without an
attempt, cancelled while it ran, or lost because its lease ended."""
OUTCOMES: tuple[Result, ...] = get_args(Result)


S = TypeVar("S")


class Stats(msgspec.Struct):
    """Numbers that add up with those of other processes: fields, mappings and lists of them."""

    CURRENT: ClassVar[tuple[str, ...]] = ()
    """The fields that are 0 once the process has ended."""

    def plus(self, other: Self) -> Self:
        """Return the sum of both."""
        return type(self)(*map(_sum, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def ceased(self) -> Self:
        """Return what remains true after the end of the process."""
        ended = {name: _ceased(getattr(self, name)) for name in self.__struct_fields__}
        return type(self)(**(ended | dict.fromkeys(self.CURRENT, 0)))


def _sum(figure: Any, other: Any) -> Any:
    """Return the sum of two figures of the same form; mappings are added by their keys."""
    if isinstance(figure, Stats):
        return figure.plus(other)
    if isinstance(figure, Mapping):
        both = {key: _sum(figure[key], other[key]) for key in figure.keys() & other.keys()}
        return {**figure, **other, **both}
    if isinstance(figure, list):
        return list(map(_sum, figure, other))
    return figure + other


def _ceased(value: Any) -> Any:
    """Return what remains of a figure after the end of its process; see `Stats.CURRENT`."""
    if isinstance(value, Stats):
        return value.ceased()
    if isinstance(value, Mapping):
        return {key: _ceased(inner) for key, inner in value.items()}
    return value


class Histogram(Stats, gc=False, array_like=True):
    """How many values are in each bucket.

    Example:
        >>> lateness = Histogram()
        >>> lateness.observe(0.004)
        >>> lateness.observe(7200)
        >>> lateness.count, lateness.quantile(0.5)
        (2, 0.005)
    """

    buckets: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=MOST)]],
        msgspec.Meta(min_length=len(BOUNDS) + 1, max_length=len(BOUNDS) + 1),
    ] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """The number of values in each bucket."""
    sum: Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)] = 0.0
    """The sum of all values, in seconds."""

    def observe(self, *values: float) -> None:
        """Count values, in seconds."""
        # All values of a bucket at once: a batch has many, and most are close to each other.
        ordered = sorted(values)
        end = 0
        while end < len(ordered):
            start = end
            bucket = bisect_left(_LIMITS, ordered[start])
            end = bisect_right(ordered, _LIMITS[bucket], start)
            self.buckets[bucket] += end - start
        self.sum += sum(values)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.buckets)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return upper bounds, as Prometheus writes them, each with the number of values within."""
        bounds = *map(str, BOUNDS), "+Inf"
        return list(zip(bounds, accumulate(self.buckets), strict=True))

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket with this quantile; infinity past the last bound.

        `None` if there are no values.

        Args:
            share: the share of the values that are within the bound: 0.5 for the median.
        """
        wanted_count = share * self.count
        for bound, count_within in zip(_LIMITS, accumulate(self.buckets), strict=True):
            if count_within and count_within >= wanted_count:
                return bound
        return None

    def minus(self, earlier: "Histogram") -> "Histogram":
        """Return what was added since an earlier state; 0 where that was more."""
        pairs = zip(self.buckets, earlier.buckets, strict=True)
        return Histogram([max(0, now - then) for now, then in pairs], self.sum - earlier.sum)


class Tally(Stats, gc=False):
    """What was done on a queue since the process started, and what runs now.

    Example:
        >>> Tally(claims=1, longest=3.0).plus(Tally(claims=1, longest=5.0)).longest
        5.0
    """

    CURRENT = "running", "waiting", "longest"

    claims: int = 0
    """Claims that returned messages."""
    claimed: int = 0
    """Messages that they returned."""
    outcomes: dict[str, int] = {}
    """Deliveries by how they ended; see `Result`."""
    lateness: Histogram = msgspec.field(default_factory=Histogram)
    """From the due time to the start of the handler."""
    duration: Histogram = msgspec.field(default_factory=Histogram)
    """How long handlers ran."""
    causes: dict[str, Histogram] = {}
    """Why deliveries began late, by cause; see `bide.consuming.late_causes`."""
    running: int = 0
    """Handlers that run."""
    waiting: int = 0
    """Claimed, and waiting for a free handler."""
    longest: float = 0.0
    """For how many seconds the handler has run that was started first, of those that run."""

    def ended(self, outcome: str, count: int = 1) -> None:
        """Count deliveries that ended in the same way."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def plus(self, other: Self) -> Self:
        """Return the sum of both, with the longest of all handlers."""
        longest = max(self.longest, other.longest)
        return msgspec.structs.replace(super().plus(other), longest=longest)

    def late_since(self, earlier: "Tally") -> "Tally":
        """Return the lateness that was added since an earlier state, and its causes."""
        causes = {
            cause: added
            for cause, histogram in self.causes.items()
            if (added := histogram.minus(earlier.causes.get(cause, Histogram()))).count
        }
        return Tally(lateness=self.lateness.minus(earlier.lateness), causes=causes)


def total(parts: Iterable[Mapping[str, S]]) -> dict[str, S]:
    """Return the sum of the figures of several processes, by name."""
    sums: dict[str, S] = {}
    for part in parts:
        for name, figure in part.items():
            sums[name] = _sum(sums[name], figure) if name in sums else figure
    return sums
