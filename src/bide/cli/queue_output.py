"""How the counts of a queue are shown."""

from typing import Any

import msgspec

from bide.cli.output import STYLES, Cell, counted
from bide.cli.times import rounded, when
from bide.model.replies import SIZES, Counts
from bide.model.times import limits_of

MUCH_LATENESS = 60_000
"""Milliseconds of lateness that are shown in red."""


def facts_of(counts: Counts) -> dict[str, Any]:
    """Return counts as names and values."""
    facts = msgspec.structs.asdict(counts.sizes) | msgspec.structs.asdict(counts.flow)
    facts |= {"kept": counts.kept, "paused": counts.paused, "keep": counts.keep}
    if counts.paused_until is not None:
        facts["paused_until"] = counts.paused_until
    if counts.oldest is not None:
        facts["oldest"] = counts.oldest
    if counts.overdue:
        facts["overdue"] = counts.overdue
    return facts | {name: value for name, value in limits_of(counts).items() if value}


def paused_text(counts: Counts) -> str:
    """Return whether a queue is paused, and until when; empty if it is not."""
    if counts.paused_until is not None:
        return f"paused until {when(counts.paused_until)}"
    return "paused" if counts.paused else ""


def size_cells(counts: Counts) -> list[Cell]:
    """Return the numbers of messages in each state, as cells."""
    return [counted(getattr(counts.sizes, size), STYLES[size]) for size in SIZES]


def quantile_cell(ms: float | None) -> Cell:
    """Return the cell of a quantile; `None`: it is above the last bound of the histogram."""
    if ms is None:
        return "over 30m", "red"
    return _bound(ms), "red" if ms >= MUCH_LATENESS else ""


def _bound(ms: float) -> str:
    """Return the bound of a bucket, which is a round number.

    Example:
        >>> _bound(2.5), _bound(50.0), _bound(2_500.0), _bound(1_800_000.0)
        ('2.5ms', '50ms', '2.5s', '30m')
    """
    return f"{ms:g}ms" if ms < 1_000 else rounded(ms).replace(".0s", "s")
