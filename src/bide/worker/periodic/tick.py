"""What the function of a schedule is called with. By itself: everybody imports it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

__all__ = ["Missed", "Tick"]

Missed = Literal["once", "all", "skip"]
"""What is done about ticks at whose moment no worker was there."""


@dataclass(frozen=True)
class Tick:
    """What the function of a schedule gets: for which moment it is called.

    Example:
        >>> import bide
        >>> app = bide.App("memory://")
        >>> @app.schedule("reports", every="15m")
        ... def report(tick: bide.Tick) -> None:
        ...     print(f"of {tick.previous:%H:%M} to {tick.due:%H:%M}")
    """

    schedule: str
    """The name of the schedule, which is its queue's."""
    due: datetime
    """The moment that it is for, in the time zone of the schedule."""
    previous: datetime | None
    """The moment of the tick before it that was not skipped; `None` for the first one."""
    missed: bool
    """Whether no worker was there at that moment."""
