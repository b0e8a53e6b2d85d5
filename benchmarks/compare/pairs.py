"""What came out of a row: pairs of measurements, old and new, one pair a turn."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Pairs", "interval"]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return two of the values between which the median lies with 95 %, whatever is measured.

    Of fewer than six values, these are the least and the greatest, and the chance is less.

    Example:
        >>> interval([1.0, 1.1, 0.9, 1.2, 1.0, 3.0, 1.1, 0.9, 0.2])
        (0.9, 1.2)
    """
    ordered = sorted(values)
    count, outside = len(ordered), 0
    chance = 0.0
    while outside < (count - 1) // 2:
        chance += 2 * math.comb(count, outside) / 2**count
        if chance > 0.05:
            break
        outside += 1
    low = max(outside - 1, 0)
    return ordered[low], ordered[count - 1 - low]


@dataclass
class Pairs:
    """The turns of one row on one store; times are microseconds of a message."""

    store: str
    row: str
    old: list[dict[str, Any]] = field(default_factory=list)
    new: list[dict[str, Any]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the medians, how many times as fast the new tree is, and the interval of that.

        Where a tree cannot run the row, its figures are missing, and `error` says why.
        """
        figures: dict[str, Any] = {"store": self.store, "row": self.row}
        for name, turns in (("old", self.old), ("new", self.new)):
            errors = [turn["error"] for turn in turns if "error" in turn]
            if errors:
                figures["error"] = f"{name}: {errors[0]}"
                continue
            figures[name] = statistics.median(turn["value"] for turn in turns)
            if "raw" in turns[0]:
                figures["raw"] = turns[0]["raw"]
                figures[f"{name}_raw"] = statistics.median(turn["raw_value"] for turn in turns)
                figures[f"{name}_in_raw"] = statistics.median(
                    turn["value"] / turn["raw_value"] for turn in turns
                )
        if "error" not in figures:
            turns_of_both = zip(self.old, self.new, strict=True)
            speeds = [old["value"] / new["value"] for old, new in turns_of_both]
            figures["speed"] = statistics.median(speeds)
            figures["low"], figures["high"] = interval(speeds)
        return figures
