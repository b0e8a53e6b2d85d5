"""A figure: one thing that was measured, and what it is held against."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "paired"]


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Args:
        name: what was done.
        value: how much came out.
        unit: of what, such as "/s" or "ms".
        limit: the same work done without bide, in the same run.
        ratio: value to limit, from pairs of rounds when they were taken so.
        goal: what is to be reached, in words.
        met: whether it was.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None

    def __post_init__(self) -> None:
        if self.ratio is None and self.limit:
            object.__setattr__(self, "ratio", self.value / self.limit)


def paired(
    rounds: int, ours: Callable[[], float], raw: Callable[[], float]
) -> tuple[float, float, float]:
    """Measure in turn, so that a noisy machine is noisy for both.

    Returns:
        The medians of ours and of raw, and the median of the ratios of ours to raw.
    """
    pairs: Sequence[tuple[float, float]] = [(raw(), ours()) for _ in range(rounds)]
    return (
        statistics.median(mine for _, mine in pairs),
        statistics.median(base for base, _ in pairs),
        statistics.median(mine / base for base, mine in pairs),
    )
